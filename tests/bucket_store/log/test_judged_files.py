"""The table of judged files: look-ups, folds, forgetting, bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.errors import CorruptionError
from bucket_store.log.judged_files import (
    Digest,
    JudgedFiles,
    decode_judged,
    encode_judged,
    judged_ref,
    read_judged,
)
from bucket_store.log.sources_file import FOLDED_DIRECTORY
from bucket_store.places.local import local_place

# Few first words, so that digests share them.
digests = st.tuples(st.integers(0, 2) | st.just(2**64 - 1), st.integers(0, 4) | st.just(2**64 - 1))
files = st.dictionaries(digests, st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=12)


def table(of: dict[Digest, tuple[int, int]], folder: str = "/in") -> JudgedFiles:
    return JudgedFiles.empty(folder).joined(of, folder)


def words(of: list[Digest]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(of, np.uint64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def rows(of: JudgedFiles) -> dict[Digest, tuple[int, int]]:
    keys = zip(of.hi.tolist(), of.lo.tolist(), strict=True)
    return dict(zip(keys, zip(of.modified_ms.tolist(), of.size_bytes.tolist(), strict=True), strict=True))


@pytest.mark.slow
@given(files, files, st.lists(digests))
def test_a_table_is_a_dictionary_of_digests(
    first: dict[Digest, tuple[int, int]], later: dict[Digest, tuple[int, int]], asked: list[Digest]
) -> None:
    """Joined with later files it holds both, the later one where both have a path; each is found, no other is."""
    joined = table(first).joined(later, "/in")
    assert rows(joined) == {**first, **later}
    found = joined.find(*words(asked))
    assert [at >= 0 for at in found.tolist()] == [digest in {**first, **later} for digest in asked]
    for digest, at in zip(asked, found.tolist(), strict=True):
        if at >= 0:
            assert (int(joined.hi[at]), int(joined.lo[at])) == digest
    assert decode_judged(encode_judged(7, joined), file="f")[0] == 7
    assert rows(decode_judged(encode_judged(7, joined), file="f")[1]) == rows(joined)


def test_a_file_is_forgotten_only_when_it_was_gone_for_so_long() -> None:
    """One listing without it begins the time; being there again ends it."""
    both = table({(1, 1): (5, 6), (2, 2): (7, 8)})
    here, away = words([(1, 1), (2, 2)]), words([(1, 1)])

    def after(before: JudgedFiles, listed: tuple[np.ndarray, np.ndarray], now_us: int) -> JudgedFiles:
        return before.seen(*listed, now_us=now_us, forget_after_us=100)

    gone = after(both, away, 1000)
    assert gone.missing_since_us.tolist() == [0, 1000]
    assert after(gone, away, 1099).missing_since_us.tolist() == [0, 1000]
    assert rows(after(gone, away, 1100)) == {(1, 1): (5, 6)}
    ahead = after(both, away, 10**18)
    assert after(ahead, away, 1000).missing_since_us.tolist() == [0, 1000], "by a clock that was far ahead"
    back = after(gone, here, 1099)
    assert back.missing_since_us.tolist() == [0, 0]
    assert len(after(back, away, 1200)) == 2


def test_the_folder_is_kept_whatever_its_name() -> None:
    """Also one that is no UTF-8."""
    folder = b"/in/\xff".decode("utf-8", "surrogateescape")
    assert decode_judged(encode_judged(0, table({}, folder)), file="f")[1].folder == folder


def test_a_file_costs_forty_bytes() -> None:
    """What a source of many files pays for each, on disk and in memory."""
    of = {(n, n): (n, n) for n in range(1000)}
    assert len(encode_judged(0, table(of))) - len(encode_judged(0, table({}))) == 40 * len(of)


def test_a_table_that_is_not_the_named_one_is_corruption(tmp_path: Path) -> None:
    """Missing, cut off, of another window, or with digests out of order."""
    whole = table({(1, 1): (5, 6), (2, 2): (7, 8)})
    data = encode_judged(3, whole)
    ref = judged_ref("a.judged", 3, whole, data)
    path = tmp_path / FOLDED_DIRECTORY / ref.name
    path.parent.mkdir()
    path.write_bytes(data)
    assert rows(read_judged(local_place(tmp_path), ref)) == rows(whole)
    for bad in (data[:-1], encode_judged(4, whole), None):
        path.unlink(missing_ok=True)
        if bad is not None:
            path.write_bytes(bad)
        with pytest.raises(CorruptionError) as caught:
            read_judged(local_place(tmp_path), ref)
        assert caught.value.file == str(path)
    backwards = JudgedFiles("", whole.hi[::-1], whole.lo[::-1], whole.size_bytes, whole.size_bytes, whole.size_bytes)
    with pytest.raises(CorruptionError, match="ascend"):
        decode_judged(encode_judged(3, backwards), file="f")
