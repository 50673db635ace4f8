"""An error of the client is one, also when the client has stumbled over it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from deduper.kafka.error_actions import client_errors


def test_the_error_below_a_system_error_is_the_one() -> None:
    """As the client leaves it when it logs with an error set."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    with pytest.raises(KafkaException) as found, client_errors():
        raise SystemError("<function Logger.debug> returned a result with an exception set") from fenced
    assert found.value is fenced


@pytest.mark.parametrize("cause", [None, ValueError("of something else")])
def test_any_other_stays_what_it_is(cause: Exception | None) -> None:
    """It is a fault of somebody's."""
    fault = SystemError("bad call")
    with pytest.raises(SystemError) as found, client_errors():
        raise fault from cause
    assert found.value is fault
