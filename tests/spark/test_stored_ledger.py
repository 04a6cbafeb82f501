"""A ledger and an archive in an object store, through pyarrow: Spark needs no connector for them."""

from pathlib import Path

import pytest

from sbpair.errors import LeaseLost, StateRefused
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import RUN_FILE
from sbpair.spark.archive_frame import ArchiveFrame
from tests.replay.object_store import Store
from tests.replay.test_object_store import store  # noqa: F401  a fixture
from tests.replay.world import World
from tests.spark.test_archive_frame import RUN, frame, message, put
from tests.spark.test_write_runs import interrupted
from tests.spark.writes import numbered, start, write

LEDGER_URL = "s3://bucket/ledger"


def test_a_run_again_sends_only_the_rest_by_a_stored_ledger(place: World, store: Store, tmp_path: Path) -> None:  # noqa: F811
    interrupted(start(place, tmp_path, ledger=LEDGER_URL), numbered(range(1_500)))
    before = len(place.ids())
    replaced = start(place, tmp_path, ledger=LEDGER_URL)
    receipt = write(start(place, tmp_path, ledger=LEDGER_URL), numbered(range(2_000)))
    assert receipt["acknowledged_before"] + receipt["acknowledged"] == receipt["rows"] == 2_000
    assert 0 < before <= receipt["acknowledged_before"] + receipt["doubtful_total"]
    assert len(place.ids()) - 2_000 <= receipt["doubtful_total"]
    with pytest.raises(LeaseLost, match="has taken over this run"):
        write(replaced, numbered([1]))
    assert not [name for name in store.objects if "/claims/" in name]
    assert [*tmp_path.iterdir()] == []


def test_a_stored_archive_is_read_and_a_newer_one_refused(store: Store) -> None:  # noqa: F811
    archive = Archive("s3://bucket/backlog", RUN.id)
    put(archive, message(b""))
    assert len(frame(archive)) == 1
    [name] = [name for name in store.objects if name.endswith("one.parquet")]
    store.objects[name] = store.objects[name][:-9]
    with pytest.raises(StateRefused, match=r"one\.parquet is broken"):
        ArchiveFrame.open({"path": archive.url + "/r1"}).check_files()
    archive.write_json(RUN_FILE, {**RUN.document(), "version": 2})
    with pytest.raises(StateRefused, match="version 2; expected"):
        ArchiveFrame.open({"path": archive.url + "/r1"})
