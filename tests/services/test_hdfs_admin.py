"""The commands on a store and a port in a real HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.window import table_folder
from tests.deduper.admin.test_elsewhere import (
    StoreElsewhere,
    test_a_key_is_explained_from_its_port,
    test_a_living_owner_is_left_alone,
    test_damage_is_named_by_its_url,
    test_its_state_is_shown,
    test_verify_reads_all_of_it,
    test_what_no_record_names_is_listed_and_deleted,
)
from tests.services.hdfs import Hdfs
from tests.services.test_hdfs_names import new_root

pytestmark = [pytest.mark.services, pytest.mark.night]

CASES = (
    test_a_key_is_explained_from_its_port,
    test_a_living_owner_is_left_alone,
    test_damage_is_named_by_its_url,
    test_its_state_is_shown,
    test_verify_reads_all_of_it,
    test_what_no_record_names_is_listed_and_deleted,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hdfs_pair: Hdfs) -> StoreElsewhere:
    """Four windows, on two DataNodes; in place of the store of the same tests in an object store."""
    monkeypatch.setattr(table_folder, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    return StoreElsewhere(tmp_path, base=new_root(hdfs_pair).url).make()
