"""Messages that others have locked: reported, waited for or left; and locks of lost connections."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import DELIVERY_ANNOTATIONS, Sections, encode_map
from sbpair.amqp.types import Map, Symbol
from sbpair.backlog import Aliases
from sbpair.move.peek.locked import ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS
from sbpair.replay import driver
from sbpair.replay.archive import SEGMENTS, Archive
from sbpair.replay.progress import LocksFound
from sbpair.replay.run_description import ReplayMode, ReplayOptions
from tests.cli.test_replay import java_in, sbpair
from tests.replay.segments import rows_of
from tests.replay.tasks import drain, job_of, proof_of, send, stranded
from tests.replay.test_tasks import after_the_first
from tests.replay.world import OTHER, SENDING, World

QUICK = ReplayOptions(empty_seconds=0.1)
MODES = pytest.mark.parametrize("mode", SENDING)
MESSAGES = 60
LOCK_SECONDS = 300  # longer than Spark takes to start
WORLD = {"lock_seconds": LOCK_SECONDS}


def set_aside(place: World) -> None:
    """Defer a message of the first queue."""
    messages = place.backlog(0).messages
    [message] = place.running.do(lambda: messages.receive(1))
    place.running.do(lambda: messages.defer(message.lock_token))


def found_locks(events: list[Any]) -> list[tuple[int, bool, bool]]:
    return [(each.locked, each.waiting, each.overdue) for event in events for each in event.queues]


class Heard(list[Any]):
    """Reported locks. After so many reports, the emulator's clock passes their end."""

    def __init__(self, place: World, reports: int) -> None:
        super().__init__()
        self._place, self._reports = place, reports

    def __call__(self, event: Any) -> None:
        if isinstance(event, LocksFound):
            self.append(event)
            if len(self) == self._reports:
                self._place.running.advance(LOCK_SECONDS + 1)


@MODES
@pytest.mark.usefixtures("local_tasks")
def test_locked_messages_are_reported_and_waited_for(place: World, tmp_path: Path, mode: ReplayMode) -> None:
    place.strand_many(10)
    set_aside(place)
    place.lock(3)
    heard, now_ms = Heard(place, 1), int(1000 * time.time())
    result = driver.start_run(place.request(tmp_path), replace(QUICK, mode=mode), place.queues, heard)
    [event] = heard
    [found] = event.queues
    assert (found.queue, found.locked, found.waiting, found.overdue) == (place.queues[0], 3, True, False)
    assert found.until_ms - now_ms >= 1_000 * LOCK_SECONDS, "the lock duration, from the time of the report on"
    proof = result.proof
    assert (len(place.ids()), proof.locked, proof.remaining_in_queues) == (9, 0, {place.queues[0]: 1}), (
        "one is deferred"
    )
    assert (proof.balanced, result.exit_code) == (True, 3)
    assert result.document()["released"] == 0


@MODES
@pytest.mark.usefixtures("local_tasks")
def test_locked_messages_are_left_on_request_and_sent_by_a_resume(
    place: World, tmp_path: Path, mode: ReplayMode
) -> None:
    place.strand_many(10)
    place.lock(3)

    def replay(*words: str) -> tuple[int, dict[str, Any], list[str]]:
        command = (*words, "--archive", str(tmp_path / "archive"), "--no-wait-for-locks", "--output", "json")
        done = sbpair(*command, home=java_in(tmp_path), **place.shell(tmp_path))
        return done.returncode, json.loads(done.stdout), done.stderr.splitlines()

    code, receipt, lines = replay("run", "--mode", mode)
    counts = {"acknowledged": 7, "locked": 3, "released": 0, "remaining_in_queues": {place.queues[0]: 3}}
    assert (code, {name: receipt[name] for name in counts}) == (3, counts)
    said = f"warning: 3 messages in {place.queues[0]} are locked by another receiver or over a lost connection, until"
    assert any(said in line for line in lines)
    assert "3 messages remain in the backlog" in lines[-1]
    assert f"sbpair replay resume {receipt['run']}" in lines[-1]
    assert "--no-wait-for-locks" not in lines[-1]
    place.running.advance(LOCK_SECONDS + 1)
    code, receipt, _lines = replay("resume", receipt["run"])
    assert (code, receipt["acknowledged"], receipt["locked"], receipt["remaining_in_queues"]) == (0, 10, 0, {})
    place.check_arrived()


@pytest.mark.usefixtures("local_tasks")
def test_without_manage_locks_may_last_longer_than_assumed(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.strand_many(10)
    place.lock(3)
    place.without_manage(monkeypatch)
    heard = Heard(place, 2)
    options = replace(QUICK, locked_seconds=1.0)
    now_ms = int(1000 * time.time())
    result = driver.start_run(place.request(tmp_path), options, place.queues, heard)
    assert found_locks(heard) == [(3, True, False), (3, True, True)]
    ends = [(each.queues[0].until_ms - now_ms) / 1000 for each in heard]
    assert ends[0] >= ASSUMED_LOCK_SECONDS
    assert ends[1] >= MAX_LOCK_SECONDS
    assert (result.exit_code, result.proof.acknowledged, place.left()) == (0, 10, 0)


@pytest.mark.parametrize("kind", ["reset", "detach"])
def test_a_drain_completes_archived_messages_over_its_next_connection(kind: str, place: World, tmp_path: Path) -> None:
    """Without a wait for their locks, and without copies."""
    job = stranded(place, tmp_path, MESSAGES, segment_messages=20)
    wanted = {"count": 1} if kind == "reset" else {}
    with after_the_first(Archive, "put", place.during(kind, OTHER, **wanted)):
        drain(job)
    proof = proof_of(job)
    assert (proof.archived, proof.copies, place.left()) == (MESSAGES, 0, 0)
    send(job)
    place.check_arrived()


def test_a_segment_keeps_a_senders_delivery_annotations(place: World, tmp_path: Path) -> None:
    hop = encode_map(DELIVERY_ANNOTATIONS, Map([(Symbol("x-opt-hop"), "mine")]))
    place.strand(0, "plain", Aliases("orders"))
    place.strand(0, "annotated", Aliases("orders"), delivery_annotations=hop)
    job = job_of(place, tmp_path)
    drain(job)
    archive = job.open()
    rows = rows_of(archive, SEGMENTS)
    kept = {row["message_id"]: Sections.split(row["message"]).delivery_annotations for row in rows}
    assert kept == {"plain": b"", "annotated": hop}
    send(job)
    arrived = {each.sections.read_properties().message_id: each.sections for each in place.arrived()["orders"]}
    assert {name: each.delivery_annotations for name, each in arrived.items()} == kept
