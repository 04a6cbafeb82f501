"""Fixtures of the replication tests: both namespaces, and short waits."""

import gc
from collections.abc import Iterator

import pytest

from sbpair.model.retries import Backoff
from sbpair.replication import receivers, senders, side_receiver
from tests.kit.running import Running
from tests.replication.both import Both


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(side_receiver, "SIDE_BACKOFF", Backoff(0.2, 30.0))
    monkeypatch.setattr(side_receiver, "OPEN_SECONDS", 2.0)
    # Opening a link takes the SDK half a second at least.
    monkeypatch.setattr(senders, "ACTIVE_SHARE", 0.4)


@pytest.fixture
def both() -> Iterator[Both]:
    with Running() as running:
        yield Both(running)
    # What the SDK has left open is complained of here, and not in a test that has nothing to do with it.
    gc.collect()
