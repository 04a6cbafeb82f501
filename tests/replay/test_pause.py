"""A replay that is paused in each phase: its tasks end, nothing stays locked, and it goes on where it was."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors, runs
from sbpair.replay import driver, phases
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import PAUSE, STOP_FILE
from sbpair.replay.progress import PauseChanged, Pauses, PhaseProgress, ReplayPhase, run_action
from sbpair.replay.run import ReplayMode, ReplayOptions
from sbpair.replay.spark_task import retry_while_progressing
from sbpair.replay.task_lease import HeldLease
from sbpair.runs.control import Wanted
from sbpair.runs.run_log import RunOutcome
from tests.replay.world import OTHER, World

MESSAGES = 200


def wait_for(holds: Callable[[], object]) -> None:
    """Wait for a thread: until a condition holds, for a minute at most."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        threading.Event().wait(0.01)


class FakeControl:
    """Requests and confirmations of one run."""

    def __init__(self) -> None:
        self.requested = Wanted.RUNNING
        self.confirmed: list[Wanted] = []

    def wanted(self) -> Wanted:
        return self.requested

    def confirm(self, state: Wanted) -> None:
        self.confirmed.append(state)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        yield self


class Driven:
    """An archive, requests to its run, and the driver's waits for them."""

    def __init__(self, directory: Path) -> None:
        self.archive, self.control, self.held = Archive(str(directory), "r1"), FakeControl(), HeldLease()
        self.archive.create()
        self.pauses = Pauses(self.archive)
        self.events: list[Any] = []

    def request(self, wanted: Wanted) -> None:
        self.control.requested = wanted

    def run_tasks(self) -> threading.Event:
        """Run tasks in another thread, which end once a stop is requested. Returns the event of their start."""
        begun = threading.Event()

        def drive() -> None:
            with self.pauses.tasks(self.held, self.events.append):
                begun.set()
                wait_for(self.archive.stop_requested)

        threading.Thread(target=drive, daemon=True).start()
        return begun


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    made = Driven(tmp_path)
    with made.pauses.obeying(made.control.opened, made.events.append):
        yield made


def test_a_pause_ends_the_tasks_before_it_is_confirmed(driven: Driven) -> None:
    assert driven.run_tasks().wait(10)
    driven.request(Wanted.PAUSED)
    wait_for(lambda: driven.control.confirmed == [Wanted.PAUSED])
    assert (driven.archive.read(STOP_FILE), driven.pauses.interrupted) == (PAUSE, True)
    assert (driven.archive.pause_requested(), driven.archive.stops_for_good()) == (True, False)
    again = driven.run_tasks()
    assert not again.wait(0.2)
    driven.request(Wanted.RUNNING)
    assert again.wait(10)
    wait_for(lambda: driven.control.confirmed == [Wanted.PAUSED, Wanted.RUNNING])
    assert not driven.archive.stop_requested()
    states = [each.state for each in driven.events if isinstance(each, PauseChanged)]
    assert states == ["pausing", "paused", "running"]
    driven.archive.write(STOP_FILE, b"")


def test_a_run_without_tasks_pauses_at_once_and_waits_before_the_next(driven: Driven) -> None:
    driven.request(Wanted.PAUSED)
    wait_for(lambda: driven.control.confirmed == [Wanted.PAUSED])
    assert not driven.archive.stop_requested()
    begun = driven.run_tasks()
    assert not begun.wait(0.2)
    driven.request(Wanted.CANCELLED)
    assert begun.wait(10), "its tasks see the stop"
    assert (driven.archive.stops_for_good(), driven.pauses.interrupted) == (True, False)


def test_a_stop_replaces_a_pause(driven: Driven) -> None:
    assert driven.run_tasks().wait(10)
    driven.request(Wanted.PAUSED)
    wait_for(lambda: driven.control.confirmed == [Wanted.PAUSED])
    driven.archive.write(STOP_FILE, b"")  # as sbpair replay stop does
    assert not driven.pauses.interrupted
    driven.request(Wanted.RUNNING)
    wait_for(lambda: driven.control.confirmed[-1] is Wanted.RUNNING)
    assert driven.archive.stops_for_good()


def test_a_lease_that_is_lost_during_a_pause_ends_the_run(driven: Driven) -> None:
    driven.request(Wanted.PAUSED)
    wait_for(lambda: driven.control.confirmed == [Wanted.PAUSED])
    driven.held.lost = errors.LeaseLost("it is another's")
    with pytest.raises(errors.LeaseLost), driven.pauses.tasks(driven.held, driven.events.append):
        pytest.fail("no task may run")


@pytest.mark.parametrize(("content", "raised"), [(PAUSE, False), (b"", True)])
async def test_a_pause_during_an_outage_is_no_failure(content: bytes, raised: bool, tmp_path: Path) -> None:
    archive = Driven(tmp_path).archive
    tries = 0

    async def attempt() -> None:
        nonlocal tries
        tries += 1
        archive.write(STOP_FILE, content)
        raise errors.Unreachable("it is away")

    trying = retry_while_progressing("q", attempt, lambda: 0, archive)
    if raised:
        with pytest.raises(errors.Unreachable):
            await trying
    else:
        async with asyncio.timeout(5):
            await trying
    assert tries == 1


class PausedIn:
    """Pauses and resumes a replay from another thread in the middle of each phase."""

    def __init__(self, place: World, state: Path, *phases: str) -> None:
        self._place, self._state, self._phases = place, state, deque(phases)
        self._threads: list[threading.Thread] = []
        self._run = ""
        self.paused: list[tuple[str, RunOutcome, list[str], set[int]]] = []
        self.resumed: list[RunOutcome] = []

    def __call__(self, event: Any) -> None:
        if isinstance(event, ReplayPhase):
            self._run = event.run or self._run
        elif (
            isinstance(event, PhaseProgress) and [*self._phases][:1] == [event.phase] and 0 < event.messages < MESSAGES
        ):
            self._threads.append(threading.Thread(target=self._pause, args=(self._phases.popleft(),)))
            self._threads[-1].start()

    def _pause(self, phase: str) -> None:
        found = runs.pause(self._place.pair, self._run, state=self._state, seconds=30.0)
        assert (self._place.left() > 0) == (phase != "send")
        self.paused.append((phase, found.outcome, self._place.locked(), {0, *self._place.delivery_counts()}))
        self.resumed.append(runs.resume(self._place.pair, self._run, state=self._state, seconds=30.0).outcome)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self._phases


@pytest.mark.usefixtures("local_tasks")
@pytest.mark.parametrize(("mode", "names"), [(ReplayMode.ARCHIVE, ("drain", "send")), (ReplayMode.DIRECT, ("move",))])
def test_a_paused_replay_holds_nothing_and_goes_on(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ReplayMode, names: tuple[str, ...]
) -> None:
    place.strand_many(MESSAGES)
    monkeypatch.setattr(phases, "run_action", partial(run_action, poll_seconds=0.02))
    request = place.request(tmp_path)
    heard = PausedIn(place, request.state, *names)
    options = ReplayOptions(mode=mode, empty_seconds=0.5, segment_messages=5, rate=120.0)
    with place.during("latency", OTHER, ms=50):
        result = driver.start_run(request, options, place.queues, None, heard)
    heard.join()
    assert heard.paused == [(phase, RunOutcome.PAUSED, [], {0}) for phase in names]
    assert heard.resumed == [RunOutcome.RUNNING] * len(names)
    proof = result.proof
    assert (result.exit_code, result.stopped, proof.acknowledged, proof.copies) == (0, False, MESSAGES, 0)
    place.check_arrived()


@pytest.mark.usefixtures("local_tasks")
@pytest.mark.parametrize("mode", ReplayMode)
def test_a_cancelled_replay_is_stopped_and_can_be_resumed(place: World, tmp_path: Path, mode: ReplayMode) -> None:
    """One with an archive is cancelled while it is planned."""
    place.strand_many(MESSAGES)
    direct = mode is ReplayMode.DIRECT
    request, told, cancelling = place.request(tmp_path), list[str](), list[threading.Thread]()

    def tell(event: Any) -> None:
        told.append(event.name if isinstance(event, ReplayPhase) else "")
        moves = direct and isinstance(event, PhaseProgress) and event.messages
        if (moves or told[-1] == "plan") and not cancelling:
            [run] = [path.name for path in (tmp_path / "archive").iterdir()]
            cancel = {"target": runs.cancel, "args": (place.pair, run), "kwargs": {"state": request.state}}
            cancelling.append(threading.Thread(**cancel))  # type: ignore[arg-type]
            cancelling[0].start()
            wait_for(Archive(request.archive, run).stops_for_good)

    options = ReplayOptions(mode=mode, empty_seconds=0.5, rate=40.0 if direct else None)
    first = driver.start_run(request, options, place.queues, None, tell)
    cancelling[0].join()
    assert (first.stopped, first.exit_code, place.locked(), "send" in told) == (True, 130, [], False)
    assert 0 < len(place.ids()) < MESSAGES if direct else place.ids() == []
    result = driver.resume_run(request, first.run.id, lambda _event: None)
    assert (result.exit_code, result.proof.acknowledged, result.proof.remaining_in_queues) == (0, MESSAGES, {})
    again = driver.resume_run(request, first.run.id, lambda _event: None)
    assert again.proof == result.proof
    place.check_arrived()
