"""Jumps of this machine's clock, in each part that remembers or waits: nothing is lost, or comes twice unnamed."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sbpair
from sbpair.amqp.message import Sections
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import ExitCode, LeaseHeld
from sbpair.failover.events import OutboxExpired
from sbpair.model.pair import Pair
from sbpair.move.events import QueuesFound
from sbpair.move.message.route import TimeToLive
from sbpair.replay.driver import start_time
from sbpair.runs.database import RunDatabase
from sbpair.runs.file_lease import Lease
from sbpair.runs.run_log import all_runs
from sbpair.runs.session_lease import hold_lease, valid_seconds
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from sbpair.timespan import TICKS_PER_SECOND
from tests.failover.test_outbox_delivery import LinkedDelivery
from tests.replay.tasks import drain, job_of, left, send
from tests.replay.world import exported
from tests.runs.states import KEY, endpoint, sending
from tests.syphon.worlds import world

HOUR, DAY, YEAR = 3_600.0, 86_400.0, 31_557_600.0
TODAY = time.time()

JUMPS = {
    "2 h ahead": 2 * HOUR,
    "2 h back": -2 * HOUR,
    "1 day ahead": DAY,
    "1 day back": -DAY,
    "40 days ahead": 40 * DAY,
    "40 days back": -40 * DAY,
    "10 years ahead": 10 * YEAR,
    "10 years back": -10 * YEAR,
    "to 1970": 60 - TODAY,
    "to 2038": 2.0**31 - TODAY,
}

service_time = time.time  # of the service, which never jumps


class Jump:
    """A call sets this machine's clock, and `undo` corrects it."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ahead = seconds, 0.0

    def time(self) -> float:
        return service_time() + self._ahead

    def __call__(self) -> None:
        self._ahead = self._seconds

    def undo(self) -> None:
        self._ahead = 0.0


@pytest.fixture(params=JUMPS.values(), ids=JUMPS)
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Jump:
    made = Jump(request.param)
    monkeypatch.setattr(time, "time", made.time)
    return made


# The journal and the list of runs


def a_pair() -> Pair:
    """Return a pair whose clocks know nothing yet."""
    return Pair("orders", endpoint("contoso"), endpoint("contoso-dr"))


def with_contact(pair: Pair) -> Pair:
    """Let an answer show the service's time, of today."""
    pair.secondary.clock.observe_lock(TODAY + 60, 60.0)
    return pair


def test_the_journal_forgets_nothing_by_a_wrong_clock(jump: Jump, tmp_path: Path) -> None:
    with RunStore(syphon_request(with_contact(a_pair()), once=True, lease=False), tmp_path, LiveRun()) as store:
        store.journal.note_accepted([sending(store.journal, [KEY], "orders")])
        store.finish(ExitCode.PARTIAL_OR_FINDINGS)
    jump()
    for has_contact in (False, True):
        pair = with_contact(a_pair()) if has_contact else a_pair()
        with RunStore(syphon_request(pair, once=True, lease=False), tmp_path, LiveRun()) as store:
            assert store.journal.was_accepted(KEY)
            store.finish(ExitCode.DONE)
    with RunStore(syphon_request(a_pair(), once=True, lease=False), tmp_path, LiveRun()) as store:
        assert store.journal.was_accepted(KEY)


@pytest.mark.parametrize("jumps_first", [True, False])
def test_a_crash_is_named_by_the_next_run(jump: Jump, tmp_path: Path, jumps_first: bool) -> None:
    def finished() -> None:
        with RunStore(syphon_request(a_pair(), once=True, lease=False), tmp_path, LiveRun()) as store:
            store.finish(ExitCode.DONE)

    if jumps_first:
        jump()
        finished()
        jump.undo()
    else:
        finished()
        jump()
    store = RunStore(syphon_request(a_pair(), once=True, lease=False), tmp_path, LiveRun())
    crashed = store.run
    sending(store.journal, [KEY], "orders")
    with RunDatabase(tmp_path, a_pair().ends) as state:
        state.write(("UPDATE flights SET state = 2", [()]))
    store._recorded.close()  # type: ignore[union-attr]
    with RunStore(syphon_request(a_pair(), once=True, lease=False), tmp_path, LiveRun()) as after:
        assert [doubt.run for doubt in after.journal.in_doubt()] == [crashed]
    with RunDatabase(tmp_path, a_pair().ends) as state:
        assert [run.outcome for run in all_runs(state)][1] == "crashed"


async def test_a_pause_of_forty_days_sends_nothing_twice(tmp_path: Path) -> None:
    async with world() as made:
        made.strand(1)
        [message] = made.backlog().messages.peek(0, 1)
        key = ("contoso-dr", made.backlog().path.lower(), message.sequence_number, message.enqueued_at_ms, "m1")
        with RunStore(syphon_request(made.pair, once=True, lease=False), tmp_path, LiveRun()) as crashed:
            crashed.journal.note_accepted(crashed.journal.note_sending([[key]], "orders"))
        made.emulator.advance(int(40 * DAY * 1000))
        receipt = (await made.run(state=tmp_path)).receipt
        assert (receipt.already_sent, receipt.sent) == (1, 0)


async def test_a_run_once_takes_all_though_the_clock_jumps_in_it(jump: Jump) -> None:
    async with world() as made:
        made.strand(*range(600))
        made.watchers.append(lambda event: jump() if isinstance(event, QueuesFound) else None)
        result = await made.run()
        assert (result.receipt.sent, result.remaining) == (600, None)


# Leases


def test_a_lease_of_this_machine_does_not_run_out(jump: Jump, tmp_path: Path) -> None:
    with Lease(tmp_path, "first"):
        jump()
        with pytest.raises(LeaseHeld):
            Lease(tmp_path, "second")


async def test_a_lease_is_never_relied_on_for_longer_than_its_lock(jump: Jump) -> None:
    jump()
    async with world() as made:
        description = QueueDescription(requires_session=True, lock_duration=10 * TICKS_PER_SECOND)
        made.secondary.create_queue("leases", description)
        async with hold_lease(made.pair.ends, "leases", "r") as lease:
            lease.check()
            assert 0 < lease.confirmed_seconds() <= valid_seconds(11.0)  # a Date has whole seconds


# The outbox


class TimedDelivery(LinkedDelivery):
    """A delivery that notes the time to live of each message, in seconds."""

    def __init__(self, *details: Any) -> None:
        super().__init__(*details)
        self.lives: list[float] = []

    async def send(self, payload: bytes, *, message_format: int) -> None:
        self.lives.append((Sections.split(payload).read_header().ttl or 0) / 1000)
        await super().send(payload, message_format=message_format)


@pytest.mark.parametrize("restarts", [False, True])
async def test_no_message_expires_in_the_outbox_by_a_wrong_clock(
    jump: Jump, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restarts: bool
) -> None:
    delivery = TimedDelivery(monkeypatch, tmp_path / "x.db")
    delivery.put("m", time_to_live=timedelta(hours=1))
    jump()
    if restarts:
        delivery.box.close()
        delivery = TimedDelivery(monkeypatch, tmp_path / "x.db")
    await delivery.run()
    delivery.box.close()
    [life] = delivery.lives
    assert HOUR - 600 < life <= HOUR
    assert not [event for event in delivery.events if isinstance(event, OutboxExpired)]


# Receivers


class Received(SimpleNamespace):
    """A message as the SDK gives it, locked for a minute by the service's clock."""

    def __init__(self, number: int, message_id: str) -> None:
        super().__init__(
            sequence_number=number,
            locked_until_utc=datetime.fromtimestamp(service_time() + 60, UTC),
            raw_amqp_message=SimpleNamespace(properties=SimpleNamespace(message_id=message_id)),
        )


def given(receiver: Any, side: str, number: int, message_id: str) -> list[Any]:
    """Receive a message, and complete it if it is given. Return what is given."""
    receiver._received.append(receiver._lock(side, Received(number, message_id), None))
    found = receiver._give(10)
    for message in found:
        locked = receiver._given.pop(id(message))
        receiver._copies.completing(locked, receiver._clock.now())
        receiver._copies.completed(locked, receiver._clock.now())
    return list(found)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_receiver_gives_each_message_once(jump: Jump, tmp_path: Path, restarts: bool) -> None:
    receiver: Any = sbpair.DedupReceiver(a_pair(), "orders", store=tmp_path / "keys")
    assert len(given(receiver, "primary", 1, "a")) == 1
    jump()
    if restarts:
        receiver.close()
        receiver = sbpair.DedupReceiver(a_pair(), "orders", store=tmp_path / "keys")
    assert len(given(receiver, "primary", 2, "b")) == 1
    for number, message_id in ((1, "a"), (2, "b")):
        assert given(receiver, "secondary", number, message_id) == []
    receiver._received.clear()
    receiver._duplicates.clear()
    receiver.close()


# Replays


def test_a_replay_waits_for_the_messages_that_were_there_at_its_start(
    jump: Jump, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with exported(monkeypatch, queues=1) as place:
        place.strand_many(3)
        jump()
        started_ms, is_service_time = start_time(place.pair.secondary)
        job = job_of(place, tmp_path, started_ms=started_ms)
        job = replace(job, run=replace(job.run, service_time=is_service_time))
        place.running.advance(120)
        place.strand_many(2)
        assert left(job, 0) == {place.queues[0]: 3}


def test_no_archived_message_expires_by_a_wrong_clock(
    jump: Jump, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with exported(monkeypatch, queues=1) as place:
        place.strand_many(3)
        job = job_of(place, tmp_path, ttl=TimeToLive.REMAINING)
        drain(job)
        jump()
        send(job)
        assert sum(map(len, place.arrived().values())) == 3
