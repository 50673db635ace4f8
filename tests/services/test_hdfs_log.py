"""The commit log on a real HDFS: the contract of every storage, with one DataNode and with two."""

from __future__ import annotations

import pytest

from tests.bucket_store.log.test_log_contract import *  # noqa: F403  the contract's tests
from tests.services import test_hdfs_names

root = test_hdfs_names.root  # in place of the contract's own
pytestmark = pytest.mark.services
