"""Connections of a replay on a cluster that break, fall silent or lose links, in each phase; then a count."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.replay.replays import LATENCY_MS, Ground, nothing_is_lost, replay
from tests.replay.world import NAMESPACE, OTHER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 4_000
WITH = {"drain": OTHER, "plan": NAMESPACE, "send": NAMESPACE}
"""The namespace that each phase works with."""

WANTED = {
    # The connections that there are, and the first ones that are made in their place.
    "reset": {"count": 3},
    "drop": {"count": 3},
    "throttle": {"count": 3},
    # Silent until they are given up, a minute later.
    "stall": {"count": 2},
    # Accepted without an answer, which is awaited as long.
    "swallow-acks": {"count": 3},
}
STRUCK = {
    "breaks": [
        *(("drain", 2, "reset"), ("drain", 6, "drop"), ("drain", 10, "detach")),
        ("plan", 0, "reset"),
        *(("send", 1, "reset"), ("send", 3, "drop"), ("send", 5, "detach"), ("send", 7, "throttle")),
    ],
    "silence while draining": [("drain", 4, "stall")],
    "silence while sending": [("send", 2, "stall")],
    "sends without an answer": [("send", 2, "swallow-acks")],
}
"""What strikes in which phase, once so many files are there."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground.prepared(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.parametrize("struck", STRUCK.values(), ids=STRUCK)
def test_connection_faults_in_each_phase_lose_nothing(
    struck: list[tuple[str, int, str]], ground: Ground, tmp_path: Path
) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with contextlib.ExitStack() as faults, replay(place, tmp_path, request=request) as running:
        faults.enter_context(place.during("latency", OTHER, ms=LATENCY_MS))
        for phase, files, kind in struck:
            running.until(phase, files)
            faults.enter_context(place.during(kind, WITH[phase], **WANTED.get(kind, {})))
            assert running.is_in(phase, MESSAGES), "the fault came too late to prove anything"
        receipt = running.receipt()
    assert receipt is not None, "it goes on by itself"
    if receipt["unsent"] or place.left():
        with replay(place, tmp_path, request=request, resume=running.run) as again:
            receipt = again.receipt()
        assert receipt is not None
    nothing_is_lost(place, receipt)
