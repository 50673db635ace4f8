"""The log and the small files of a store on a real HDFS: the contract of every storage."""

from __future__ import annotations

import pytest

from bucket_store.places.place import Place
from tests.bucket_store.log.test_log_contract import *  # noqa: F403  the contract's tests
from tests.services.test_hdfs_names import ONE_AND_TWO, new_root

pytestmark = pytest.mark.services

# A thousand rounds of eight processes are in test_hdfs_names.
del test_a_thousand_rounds_of_eight_creators  # noqa: F821


@pytest.fixture(params=ONE_AND_TWO)
def root(request: pytest.FixtureRequest) -> Place:
    """An empty directory; in place of the contract's own storages."""
    return new_root(request.getfixturevalue(request.param))
