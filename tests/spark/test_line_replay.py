"""Connections of a replay on a cluster that break, fall silent or lose their links, in each phase; then a count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.replays import LATENCY_MS, Ground, nothing_is_lost, replay
from tests.spark.world import NAMESPACE, OTHER

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 2_000
PHASES = {"drain": OTHER, "plan": NAMESPACE, "send": NAMESPACE}
"""Who is talked with in each."""

FAULTS = {
    # Those that there are, and the first ones that are made in their place.
    "reset": {"count": 3},
    "drop": {"count": 3},
    # Nothing passes any more on these, until they are given up.
    "stall": {"count": 2},
    "detach": {},
    "throttle": {"count": 20},
    # Taken in, and nobody is told: there is nothing to take in but in the send.
    "swallow-acks": {"count": 300},
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground.prepared(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.parametrize("kind", FAULTS)
def test_what_breaks_in_each_phase_loses_nothing(kind: str, ground: Ground, tmp_path: Path) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with contextlib.ExitStack() as faults, replay(place, tmp_path, request=request) as running:
        faults.enter_context(place.during("latency", OTHER, ms=LATENCY_MS))
        for phase, namespace in PHASES.items():
            running.until(phase)
            faults.enter_context(place.during(kind, namespace, **FAULTS[kind]))
            assert running.is_in(phase, MESSAGES), "the fault came too late to prove anything"
        told = running.receipt()
    if told is None or told["left"] or place.left():
        with replay(place, tmp_path, request=request, resume=running.run) as again:
            told = again.receipt()
        assert told is not None
    nothing_is_lost(place, told)
