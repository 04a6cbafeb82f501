"""Which runs of an archive are unfinished, and how many reads it takes to know. Real kills are in test_kill_replay."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.errors import StateRefused, Unsafe
from sbpair.model.pair import Pair
from sbpair.replay.archive import RECEIPT_FILE, REMOVED_FILE, RUN_FILE, SEGMENTS, Archive, run_ids
from sbpair.replay.run_description import ReplayRequest, load_run, save_run
from sbpair.replay.unfinished import find_unfinished, unfinished_runs
from sbpair.runs.database import RunDatabase, identity
from sbpair.runs.run_log import RunEntry
from tests.kit import replay_archives
from tests.runs.states import PAIR

RUN = replace(replay_archives.RUN, pair=identity(PAIR.ends))
OTHER_PAIR = {"primary": "fabrikam", "secondary": "fabrikam-dr"}


def receipt(archive: Archive, **fields: object) -> None:
    archive.write_json(RECEIPT_FILE, {"run": archive.run, "unsent": 0, **fields})


WAYS: dict[str, tuple[Callable[[Archive], object], bool]] = {
    "killed": (lambda _archive: None, True),
    "sent": (receipt, False),
    "unsent": (lambda archive: receipt(archive, unsent=3), True),
    "excluded": (lambda archive: receipt(archive, unsent=3, excluded=3), False),
    "direct": (lambda archive: receipt(archive, unsent=None, mode="direct"), False),
    "stopped": (lambda archive: receipt(archive, unsent=None, mode="direct", stopped=True), True),
    "removed": (lambda archive: archive.write_json(REMOVED_FILE, {}), False),
    "none": (lambda archive: archive.remove(RUN_FILE), False),
    "other": (lambda archive: save_run(archive, replace(RUN, id=archive.run, pair=OTHER_PAIR)), False),
    "newer": (lambda archive: archive.write_json(RUN_FILE, {"pair": OTHER_PAIR, "version": 99}), False),
}


def run_in(url: str, run: str, change: Callable[[Archive], object]) -> Archive:
    archive = Archive(url, run)
    save_run(archive, replace(RUN, id=run))
    change(archive)
    return archive


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("url", ["archive", "s3://bucket/backlog"])
def test_runs_with_messages_to_send_are_found(url: str, tmp_path: Path) -> None:
    url = url if "://" in url else str(tmp_path / url)
    assert unfinished_runs(url, PAIR, tmp_path) == []
    for name, (change, _) in WAYS.items():
        run_in(url, name, change)
    found = [each.id for each in unfinished_runs(url, PAIR, tmp_path)]
    assert found == sorted(name for name, (_, unfinished) in WAYS.items() if unfinished)


def request(url: str, directory: Path, pair: Pair = PAIR) -> ReplayRequest:
    return ReplayRequest(pair, url, directory)


def test_a_run_of_this_machine_that_goes_on_is_not_unfinished(tmp_path: Path) -> None:
    run_in(str(tmp_path / "archive"), "r1", lambda _archive: None)
    with RunDatabase(tmp_path / "state", PAIR.ends) as state:
        with closing(RunEntry(state, "replay run", run_id="r1")):
            assert find_unfinished(request(str(tmp_path / "archive"), tmp_path / "state"), beside=False) == []
        with pytest.raises(Unsafe, match=r"run r1 in .*archive has not ended"):
            find_unfinished(request(str(tmp_path / "archive"), tmp_path / "state"), beside=False)


@pytest.mark.parametrize("file", [RUN_FILE, RECEIPT_FILE, REMOVED_FILE])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"unsent": "x"}'])
def test_a_broken_run_may_be_unfinished(file: str, text: bytes, tmp_path: Path) -> None:
    archive = run_in(str(tmp_path), "r1", lambda _archive: None)
    archive.write(file, text)
    if file == REMOVED_FILE and text[:1] == b"{" and len(text) > 1:
        return  # gc has written it, whatever is in it
    with pytest.raises(StateRefused, match="r1"):
        find_unfinished(request(str(tmp_path), tmp_path), beside=False)
    [note] = find_unfinished(request(str(tmp_path), tmp_path), beside=True)
    assert "r1" in note


def test_a_run_that_has_lost_its_description_is_refused_and_listed(tmp_path: Path) -> None:
    archive = run_in(str(tmp_path), "r1", lambda archive: archive.write(f"{SEGMENTS}/q/one.parquet", b"messages"))
    archive.remove(RUN_FILE)
    assert run_ids(str(tmp_path)) == ["r1"]
    for refuses in (lambda: find_unfinished(request(str(tmp_path), tmp_path), beside=False), lambda: load_run(archive)):
        with pytest.raises(StateRefused, match=r"r1/run\.json is broken: it is missing"):
            refuses()


def test_all_unfinished_runs_are_named_the_oldest_first(tmp_path: Path) -> None:
    for at_ms, name in enumerate(("r3", "r1", "r2"), 1):
        save_run(Archive(str(tmp_path), name), replace(RUN, id=name, started_ms=at_ms))
    with pytest.raises(Unsafe, match=r"run r3 in .*; 2 more: r1, r2") as refused:
        find_unfinished(request(str(tmp_path), tmp_path), beside=False)
    assert refused.value.exit_code == 4
    assert "sbpair replay resume r3;" in refused.value.hint
    beside = find_unfinished(request(str(tmp_path), tmp_path), beside=True)
    assert [note.split()[-1] for note in beside] == ["r3", "r1", "r2"]


@pytest.mark.usefixtures("store")
def test_a_finished_run_costs_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://bucket/backlog"
    for number in range(40):
        run_in(url, f"r{number:02}", receipt)
    run_in(url, "r99", lambda _archive: None)
    read: list[str] = []
    find_json = Archive.find_json
    monkeypatch.setattr(
        Archive, "find_json", lambda self, path: (read.append(f"{self.run}/{path}"), find_json(self, path))[1]
    )
    assert [each.id for each in unfinished_runs(url, PAIR, tmp_path)] == ["r99"]
    assert [each for each in read if not each.startswith("r99")].count(f"r00/{RECEIPT_FILE}") == 1
    assert len(read) <= 40 + 5
