"""A replay whose Spark job is cancelled, by the UI as a person does, or by Spark's interfaces."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbpair.errors import ExitCode, JobCancelled
from sbpair.replay import driver, progress
from sbpair.replay.run_description import ReplayOptions
from sbpair.replay.spark import job_name
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import all_runs
from tests.kit.running import OTHER
from tests.replay.replay_process import POLL_SECONDS
from tests.replay.world import HASTY, World

WORLD = {"lock_seconds": 5}
MESSAGES = 400
SLOW_MS = 1_500  # how late the backlog answers, and a rate of four messages a second, make a phase last
UI = {**HASTY, "spark.ui.enabled": "true", "spark.ui.port": "0"}
OPTIONS = ReplayOptions(segment_messages=20, empty_seconds=0.1, rate=4.0)


def context() -> Any:
    from pyspark import SparkContext

    return SparkContext.getOrCreate()


def ask(path: str, form: bytes | None = None) -> str:
    with urllib.request.urlopen(f"{context().uiWebUrl}{path}", form, 30) as answer:  # noqa: S310  our own
        return str(answer.read().decode())


def cancel_all() -> None:
    context().cancelAllJobs()


def press_kill() -> None:
    """Send the form of the first link (kill) on the page of all jobs."""
    page = ask("/jobs/")
    if form := re.search(r'<form action="([^"]*/kill/)".*?</form>', page, re.DOTALL):
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[0]))
        ask(form[1], urllib.parse.urlencode(fields).encode())


@pytest.mark.java
@pytest.mark.parametrize(("phase", "cancel"), [("drain", cancel_all), ("send", press_kill)])
def test_a_run_whose_job_is_cancelled_is_partial_and_resumed(
    phase: str, cancel: Callable[[], None], place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.strand_many(MESSAGES)
    monkeypatch.setattr(driver, "run_action", partial(progress.run_action, poll_seconds=POLL_SECONDS))
    monkeypatch.setattr(progress, "SAMPLE_PAUSE", 0)
    described: set[str] = set()

    def cancel_in_phase(event: progress.Event) -> None:
        """Cancel what runs, if anything does: a job may have ended, and the next one not begun."""
        if isinstance(event, progress.PhaseProgress) and event.phase == phase and event.files:
            api = f"/api/v1/applications/{context().applicationId}"
            jobs = json.loads(ask(f"{api}/jobs")) + json.loads(ask(f"{api}/stages"))
            begun = (each for each in jobs if each["status"] not in ("SKIPPED", "PENDING"))
            described.update(each.get("description") for each in begun)
            cancel()

    request = place.request(tmp_path, settings=UI)
    slow = place.during("latency", OTHER, ms=SLOW_MS if phase == "drain" else 0)
    with slow, pytest.raises(JobCancelled, match=r"^Spark's job was cancelled: .*[Cc]ancel") as ended:
        driver.start_run(request, OPTIONS, place.queues, cancel_in_phase)

    with RunDatabase(request.state, request.pair.ends) as state:
        [run] = all_runs(state)
    assert (run.outcome, run.exit_code) == ("partial", ExitCode.PARTIAL_OR_FINDINGS)
    assert ended.value.hint == f"nothing is lost: continue with sbpair replay resume {run.id}"
    drain = f"drain {', '.join(place.queues)}"
    plan = {"plan: copies, expiry and destinations", "send invoices, orders"} if phase == "send" else set()
    assert described == {drain, *plan}

    result = driver.resume_run(request, run.id, lambda _event: None, rate=None)
    assert result.proof.balanced
    place.check_arrived((each["message_id"] for each in result.document()["doubtful"]), max_twice=MESSAGES)


def test_a_job_of_many_names_has_the_first_and_a_count() -> None:
    assert job_name("send", ["orders"]) == "send orders"
    assert job_name("drain", ["a/0", "a/1", "a/2", "a/3", "a/4"]) == "drain a/0, a/1, a/2 and 2 more"
