"""What is recorded of a replay: its receipt, as `sbpair runs` shows it; its report with timeline and cost."""

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sbpair import errors
from sbpair.replay import driver
from sbpair.replay.archive import Archive
from sbpair.replay.progress import Event, PhaseProgress, ReplayPhase, request_stop
from sbpair.replay.run_description import ReplayOptions, ReplayResult
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import all_runs, timeline_of
from tests.kit import command
from tests.replay.world import World


def test_the_last_figures_are_written_before_the_end_of_the_run(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report shows the figures at the end of a run: later ones would be between two samples."""

    def fail(failing: driver.Driver) -> NoReturn:
        for messages in (0, 61):  # the second one within two seconds of the first
            failing._on_event(PhaseProgress("drain", messages, 1))
        raise errors.Unreachable("it is away")

    monkeypatch.setattr(driver.Driver, "act", fail)
    request = place.request(tmp_path)
    with pytest.raises(errors.Unreachable):
        driver.start_run(request, ReplayOptions(), place.queues, lambda _event: None)
    with RunDatabase(request.state, place.pair.ends) as state:
        [run] = all_runs(state)
        last = timeline_of(state, run.id)[-1]
    assert run.ended_ms is not None
    assert (last.figures.counts, last.at_ms <= run.ended_ms) == ({"received": 61}, True)


@pytest.mark.usefixtures("local_tasks")
def test_a_replay_is_reported_with_timeline_and_cost(place: World, tmp_path: Path) -> None:
    place.strand_many(60)
    place.strand(0, "nowhere", None)
    result = driver.start_run(
        place.request(tmp_path), ReplayOptions(empty_seconds=0.1), place.queues, lambda _event: None
    )
    ticket, page = tmp_path / "r.md", tmp_path / "r.html"
    words = ("runs", "report", result.run.id, "--state", str(tmp_path / "state"))
    done = command.run(*words, "--markdown", str(ticket), "--html", str(page), env=place.shell(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    text = ticket.read_text()
    timeline = text.partition("## Timeline\n")[2].partition("\n## ")[0].strip().splitlines()
    assert timeline[0].startswith("| time | archived | sent | sent a second |")
    assert re.match(r"\| `[^`]+` \| 61 \| 60 \|", timeline[-1])

    cost = text.partition("## Cost\n")[2]
    assert "| `to receive and settle` | 122 |" in cost
    assert "| `to send` | 60 |" in cost
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.usefixtures("local_tasks")
def test_all_that_show_a_replay_agree_with_its_receipt(place: World, tmp_path: Path) -> None:
    """It is stopped before it sends, and resumed; one message has no destination."""
    place.strand_many(30)
    place.strand(0, "nowhere", None)
    request, options = place.request(tmp_path), ReplayOptions(empty_seconds=0.1)
    archives: list[Archive] = []

    def stop(event: Event) -> None:
        if isinstance(event, ReplayPhase) and event.run:
            archives.append(Archive(request.archive, event.run))
        if isinstance(event, ReplayPhase) and event.name == "plan":
            request_stop(archives[0])

    stopped = driver.start_run(request, options, place.queues, stop)
    before = shown(place, tmp_path, stopped)
    assert before.items() >= {"outcome": "stopped", "exit_code": 130, "sent": 0, "undeliverable": 0}.items()
    assert before["remaining"] == {"messages": 31, "exact": True}
    resumed = driver.resume_run(request, stopped.run.id, lambda _event: None)
    after = shown(place, tmp_path, resumed)
    assert after.items() >= {"outcome": "partial", "exit_code": 3, "sent": 30, "undeliverable": 1}.items()
    assert (after["remaining"], after["started"]) == (None, before["started"])


def shown(place: World, directory: Path, result: ReplayResult) -> dict[str, Any]:
    """Return what `runs list` has of a replay, after checks that its receipt and its report are in line."""
    env, state, receipt = place.shell(directory), ("--state", str(directory / "state")), result.document()
    with RunDatabase(directory / "state", place.pair.ends) as opened:
        [run] = all_runs(opened)
    listed = command.run("runs", "list", "-o", "json", "-q", *state, env=env)
    [found] = json.loads(listed.stdout)["runs"]
    text = command.run("runs", "show", run.id, *state, env=env).stdout
    expected = {
        "exit_code": result.exit_code,
        "received": receipt["archived"],
        "sent": receipt["acknowledged"],
        "undeliverable": receipt["expired"] + receipt["quarantined"],
        "remaining": {"messages": receipt["unsent"], "exact": True} if receipt["unsent"] else None,
        "in_doubt": 0,
        "doubtful_total": receipt["doubtful_total"],
    }
    assert (found, run.seconds) == (found | expected, receipt["seconds"])
    assert f"archived {receipt['archived']} = {receipt['acknowledged']} acknowledged" in text
    assert ("sbpair replay resume" in text) == bool(receipt["unsent"])
    return dict(found)
