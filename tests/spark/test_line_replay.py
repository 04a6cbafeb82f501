"""Connections of a replay on a cluster that break, fall silent or lose their links, in each phase; then a count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.replays import LATENCY_MS, Ground, nothing_is_lost, replay
from tests.spark.world import NAMESPACE, OTHER

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 2_000
OF_PHASE = {"drain": OTHER, "plan": NAMESPACE, "send": NAMESPACE}
"""Who is talked with."""

FAULTS = {
    # As many connections as there are tasks, and those that are made instead of them.
    "reset": {"count": 4},
    "drop": {"count": 4},
    # Nothing passes any more on these, until it is given up.
    "stall": {"count": 2},
    "detach": {},
    # Taken in, and nobody is told.
    "swallow-acks": {"count": 300},
    "throttle": {"count": 20},
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground.prepared(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        *(("drain", kind) for kind in ("reset", "drop", "stall", "detach")),
        *(("plan", kind) for kind in ("reset", "drop")),
        *(("send", kind) for kind in ("reset", "drop", "stall", "detach", "swallow-acks", "throttle")),
    ],
)
def test_what_breaks_on_the_way_loses_nothing(kind: str, phase: str, ground: Ground, tmp_path: Path) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with replay(place, tmp_path, request=request) as running, place.during("latency", OTHER, ms=LATENCY_MS):
        running.until(phase)
        with place.during(kind, OF_PHASE[phase], **FAULTS[kind]):
            assert running.is_in(phase, MESSAGES), "the fault came too late to prove anything"
            told = running.receipt()
    if told is None or told["left"] or place.left():
        with replay(place, tmp_path, request=request, resume=running.run) as again:
            told = again.receipt()
        assert told is not None, again.said
    nothing_is_lost(place, told)
