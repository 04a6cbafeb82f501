"""Event lines of `--watch`: the form of each line, and their rate."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sbpair.cli.progress.move_progress import BURST, PROGRESS_SECONDS, EventLines
from sbpair.cli.render.screen import Document
from sbpair.move.events import (
    DeadLettered,
    DestinationBackingOff,
    DestinationProgress,
    DestinationRecovered,
    QueueBlocked,
    QueueDone,
    QueueFailed,
    QueueOpened,
    QueueProgress,
    SyphonEvent,
)
from sbpair.move.run_state import RunState

NOW_MS = 1_800_000_000_000


class Lines(EventLines):
    """Lines of a run whose state takes each event first."""

    def __init__(self) -> None:
        self._state = RunState()
        super().__init__(self._state, 0.0)

    def take(self, event: SyphonEvent, now: float, now_ms: int) -> list[Document]:
        self._state.take(event, now)
        return super().take(event, now, now_ms)


def taken(lines: EventLines, *events: SyphonEvent, now: float = 0.0) -> list[dict[str, Any]]:
    return [dict(each) for event in events for each in lines.take(event, now, NOW_MS)]


def test_what_is_left_out_is_counted() -> None:
    lines = Lines()
    flood = [event for _ in range(BURST) for event in (QueueBlocked("q", ("d",)), QueueDone("q"))]
    assert len(taken(lines, *flood)) == BURST
    assert taken(lines, QueueOpened("q"), now=0.5) == []
    found = taken(lines, QueueDone("q"), now=10.0)
    emitted = [(each["event"], each.get("events")) for each in found]
    assert emitted == [("events-dropped", BURST + 1), ("queue-done", None)]
    assert [each["event"] for each in taken(lines, QueueDone("q"), now=10.0)] == ["queue-done"]


queues = st.sampled_from(["q0", "q1", "q2"])
destinations = st.sampled_from(["d0", "d1"])
events = st.one_of(
    st.builds(QueueOpened, queues),
    st.builds(QueueFailed, queues, st.text(max_size=3), st.none() | st.floats(0, 60)),
    st.builds(DestinationBackingOff, queues, destinations, st.text(max_size=3), st.floats(0, 60), st.integers(0, 9)),
    st.builds(DestinationRecovered, queues, destinations),
    st.builds(QueueProgress, queues, st.integers(0, 99), st.integers(0, 99), st.integers(0, 9)),
    st.builds(DestinationProgress, destinations, st.integers(0, 99), st.integers(0, 9)),
    st.builds(DeadLettered, queues, st.integers(0, 99), st.none(), st.sampled_from("ab"), st.just("")),
)


@given(st.lists(events, max_size=60), st.integers(1, 200))
def test_a_run_of_any_length_writes_no_more_than_it_may(some: list[SyphonEvent], rounds: int) -> None:
    lines, written, now = Lines(), 0, 0.0
    for _ in range(rounds):
        for event in some:
            written += len(lines.take(event, now, NOW_MS))
        now += 1.0
        written += len(lines.tick(now, NOW_MS))
    progress = (3 + 3) * (now // PROGRESS_SECONDS)  # the queues and destinations there are, and that of no destination
    assert written <= BURST + now + progress


def test_an_hour_of_idleness_writes_nothing_more() -> None:
    lines = Lines()
    taken(lines, QueueOpened("q"), QueueProgress("q", 1, 1, 0))
    lines.tick(PROGRESS_SECONDS, NOW_MS)
    assert [lines.tick(float(now), NOW_MS) for now in range(60, 3_660)] == [[]] * 3_600
