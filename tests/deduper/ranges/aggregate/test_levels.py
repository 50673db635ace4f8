"""Answers from several indexes are those of one index with all ranges."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deduper.ranges.aggregate import range_index
from deduper.ranges.aggregate.aggregates import SUBTRACTED, AnswerTooLargeError, answer_type, parse_aggregate
from deduper.ranges.aggregate.points import ENDS
from deduper.ranges.aggregate.range_index import RangeIndex, level_answers
from tests.deduper.ranges.aggregate import oracle
from tests.deduper.ranges.aggregate.test_indexes import ORDERED, SUMMED, TIMES, VALUES, as_events, as_ranges, rows, same
from tests.tiers import examples


@pytest.mark.night(but=["integers", "decimals", "near doubles", "texts"])
@pytest.mark.slow
@pytest.mark.parametrize("values", VALUES)
@settings(
    deadline=None,
    max_examples=examples(200) // 5,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_levels_answer_as_one_index(values: str, monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """However ranges are spread over indexes of different units, and with ranges that are added and taken back."""
    (time, times), (kind, value, drawn) = TIMES[data.draw(st.sampled_from(sorted(TIMES)))], VALUES[values]
    ends = data.draw(st.sampled_from(ENDS))
    events, ranges = rows(data, times, drawn)
    texts = (*ORDERED, *(SUMMED if kind != "other" else ()))
    aggregates = {text: parse_aggregate(text) for text in texts}
    level = [data.draw(st.integers(0, 3)) for _ in ranges]
    is_back = [data.draw(st.booleans()) for _ in ranges]
    asked = as_events(events, time, value)

    def asked_of(names: list[str], *, with_backs: bool) -> None:
        wanted = {name: aggregates[name] for name in names}
        parts = [
            ([row for row, of in zip(ranges, level, strict=True) if of == number], 1)
            for number in range(max(level, default=0) + 1)
        ]
        if with_backs:
            parts.append(([row for row, back in zip(ranges, is_back, strict=True) if back], -1))
        indexes = [
            (RangeIndex(as_ranges(of, time, value), ends, wanted, {}, is_level=True), sign) for of, sign in parts
        ]
        held = [row for row, back in zip(ranges, is_back, strict=True) if not (back and with_backs)]
        sums = oracle.of_events(events, held, ends, "sum(value)", kind) if kind == "int" else []
        if any(one is not None and not -(2**63) <= one < 2**63 for one in sums):
            with pytest.raises(AnswerTooLargeError):
                level_answers(indexes, wanted, {"value": value}, asked)
            return
        found = level_answers(indexes, wanted, {"value": value}, asked)
        for text, column in zip(names, found, strict=True):
            expected = oracle.of_events(events, held, ends, text, kind)
            assert same(column.to_pylist(), expected), (text, column.to_pylist(), expected)
            assert column.type == answer_type(aggregates[text], value)

    monkeypatch.setattr(range_index, "MOST_LISTED", data.draw(st.sampled_from([3, 1 << 21])))
    asked_of(list(aggregates), with_backs=False)
    asked_of([name for name, one in aggregates.items() if one.kind in SUBTRACTED], with_backs=True)
