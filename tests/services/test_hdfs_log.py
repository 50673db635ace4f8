"""The log and the small files of a store on a real HDFS: the contract of every storage."""

from __future__ import annotations

import pytest

from bucket_store.places.place import Place
from tests.bucket_store.log.test_log_contract import *  # noqa: F403  the contract's tests
from tests.services.test_hdfs_names import ONE_AND_TWO, new_root
from tests.tiers import is_night

pytestmark = pytest.mark.services

# A thousand rounds of eight processes are in test_hdfs_names.
del test_a_thousand_rounds_of_eight_creators  # noqa: F821
if not is_night():
    del test_of_all_claims_at_once_each_epoch_has_one_owner  # noqa: F821
    del test_folded_records_go_and_a_sleeper_in_a_freed_slot_is_fenced  # noqa: F821
    del test_whatever_a_creation_says_the_outcome_is_true  # noqa: F821


@pytest.fixture(params=ONE_AND_TWO)
def root(request: pytest.FixtureRequest) -> Place:
    """An empty directory; in place of the contract's own storages."""
    return new_root(request.getfixturevalue(request.param))
