"""A replay that is paused in each phase: its tasks end, nothing stays locked, and it goes on where it was."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors, runs
from sbpair.move.events import RunEvent, RunPaused, RunPausing, RunResumed
from sbpair.replay import driver
from sbpair.replay.archive import PAUSE, STOP_FILE, Archive
from sbpair.replay.progress import Pauses, PhaseProgress, ReplayPhase, run_action
from sbpair.replay.queue_task import retry_while_progressing
from sbpair.replay.run_description import ReplayMode, ReplayOptions
from sbpair.replay.task_lease import HeldLease
from sbpair.runs.control import Wanted
from sbpair.runs.run_record import RunOutcome
from tests.kit.waiting import PATIENCE_SECONDS
from tests.replay.segments import created
from tests.replay.world import OTHER, World

MESSAGES = 200


def wait_for(holds: Callable[[], object]) -> None:
    """Wait for a thread: until a condition holds, for a minute at most."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < until
        threading.Event().wait(0.01)


def test_a_lease_that_is_lost_during_a_pause_ends_the_run(tmp_path: Path) -> None:
    pauses, held = Pauses(created(tmp_path)), HeldLease(lost=errors.LeaseLost("it is another's"))
    pauses._wanted = Wanted.PAUSED
    with pytest.raises(errors.LeaseLost), pauses.tasks(held, lambda _event: None):
        pytest.fail("no task may run")


@pytest.mark.parametrize(("content", "raised"), [(PAUSE, False), (b"", True)])
async def test_a_pause_during_an_outage_is_no_failure(content: bytes, raised: bool, tmp_path: Path) -> None:
    archive = created(tmp_path)
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
        await trying
    assert tries == 1


class PausedIn:
    """Pauses and resumes a replay: before its tasks send, and in the middle of phases, from another thread."""

    def __init__(self, place: World, state: Path, *phases: str) -> None:
        self._place, self._state, self._phases = place, state, deque(phases)
        self._threads: list[threading.Thread] = []
        self._at_tasks, self._sends = threading.Event(), threading.Event()
        self._run = ""
        self.paused: list[tuple[str, RunOutcome, list[str], set[int]]] = []
        self.states: list[type[RunEvent]] = []

    def __call__(self, event: Any) -> None:
        phase = event.name if isinstance(event, ReplayPhase) else getattr(event, "phase", "")
        if isinstance(event, ReplayPhase):
            self._run = event.run or self._run
        elif isinstance(event, RunEvent):
            self.states.append(type(event))
        if phase == "send":
            (self._sends if isinstance(event, PhaseProgress) else self._at_tasks).set()
        if not self._phases or phase != self._phases[0]:
            return
        if phase == "plan":
            self._phases.popleft()
            self._pause(phase)  # the driver goes on, and waits before its tasks
            self._resume_after(self._check_waiting)
        elif isinstance(event, PhaseProgress) and 0 < event.messages < MESSAGES:
            self._phases.popleft()
            self._resume_after(partial(self._pause, phase))

    def _check_waiting(self) -> None:
        assert self._at_tasks.wait(PATIENCE_SECONDS)
        assert not self._sends.wait(0.2)

    def _pause(self, phase: str) -> None:
        found = runs.pause(self._place.pair, self._run, state=self._state, seconds=30.0)
        self.paused.append((phase, found.outcome, self._place.locked(), {0, *self._place.delivery_counts()}))

    def _resume_after(self, action: Callable[[], object]) -> None:
        def act() -> None:
            try:
                action()
            finally:
                runs.resume(self._place.pair, self._run, state=self._state, seconds=30.0)

        self._threads.append(threading.Thread(target=act))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self._phases


@pytest.mark.usefixtures("local_tasks")
@pytest.mark.parametrize(
    ("mode", "names"), [(ReplayMode.ARCHIVE, ("drain", "plan", "send")), (ReplayMode.DIRECT, ("move",))]
)
def test_a_paused_replay_holds_nothing_and_goes_on(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ReplayMode, names: tuple[str, ...]
) -> None:
    place.strand_many(MESSAGES)
    monkeypatch.setattr(driver, "run_action", partial(run_action, poll_seconds=0.02))
    request = place.request(tmp_path)
    heard = PausedIn(place, request.state, *names)
    options = ReplayOptions(mode=mode, empty_seconds=0.5, segment_messages=5, rate=120.0)
    with place.during("latency", OTHER, ms=50):
        result = driver.start_run(request, options, place.queues, heard)
    heard.join()
    assert heard.paused == [(phase, RunOutcome.PAUSED, [], {0}) for phase in names]
    assert heard.states == [RunPausing, RunPaused, RunResumed] * len(names)
    proof = result.proof
    assert (result.exit_code, result.end.stopped, proof.acknowledged, proof.copies) == (0, False, MESSAGES, 0)
    place.check_arrived()


def paused_and_cancelled(*given: Any, **options: Any) -> None:
    runs.pause(*given, **options)
    runs.cancel(*given, **options)


def interrupted(*_given: Any, **_options: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A shell has what it starts in the background ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("local_tasks", "interrupts")
@pytest.mark.parametrize(
    ("mode", "phase", "stop"),
    [
        *((ReplayMode.ARCHIVE, phase, runs.cancel) for phase in ("drain", "plan", "send")),
        *((ReplayMode.ARCHIVE, phase, paused_and_cancelled) for phase in ("drain", "plan")),
        *((ReplayMode.DIRECT, "move", stop) for stop in (runs.cancel, interrupted)),
    ],
)
def test_a_stopped_replay_finishes_its_messages_and_can_be_resumed(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ReplayMode, phase: str, stop: Any
) -> None:
    """What its tasks have received and not moved goes back."""
    place.strand_many(MESSAGES)
    monkeypatch.setattr(driver, "run_action", partial(run_action, poll_seconds=0.02))
    request, told, stopping = place.request(tmp_path), list[str](), list[threading.Thread]()

    def tell(event: Any) -> None:
        told.append(event.name if isinstance(event, ReplayPhase) else "")
        moves = isinstance(event, PhaseProgress) and event.phase == phase and event.messages
        if (moves or told[-1] == phase == "plan") and not stopping:
            [run] = [path.name for path in (tmp_path / "archive").iterdir()]
            stopping.append(threading.Thread(target=stop, args=(place.pair, run), kwargs={"state": request.state}))
            stopping[0].start()
            if phase == "plan":
                wait_for(Archive(request.archive, run).stops_for_good)

    options = ReplayOptions(mode=mode, empty_seconds=0.5, segment_messages=5, rate=60.0)
    with place.during("latency", OTHER, ms=50):
        first = driver.start_run(request, options, place.queues, tell)
    stopping[0].join()
    proof = first.proof
    assert (first.end.stopped, first.exit_code, place.locked(), proof.doubtful) == (True, 130, [], [])
    assert ("send" in told, "stop" in told) == (phase == "send", stop is interrupted)
    assert place.left() == MESSAGES - proof.archived
    assert stop is paused_and_cancelled or bool(first.end.released) == bool(place.left())
    assert first.end.released <= place.left()
    assert len(place.ids()) == proof.acknowledged
    assert 0 < proof.acknowledged < MESSAGES if phase in ("send", "move") else not proof.acknowledged
    result = driver.resume_run(request, first.run.id, lambda _event: None, rate=None)
    assert (result.exit_code, result.proof.acknowledged, result.proof.remaining_in_queues) == (0, MESSAGES, {})
    again = driver.resume_run(request, first.run.id, lambda _event: None)
    assert again.proof == result.proof
    place.check_arrived()
