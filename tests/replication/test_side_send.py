"""The sends to one side, step by step in virtual time: retries, doubts, and a side that was away."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbpair import sync_async
from sbpair.failover.sdk_messages import prepare_one
from sbpair.replication import senders
from sbpair.replication.senders import SideOutcome, SideSend
from sbpair.sync_async import drive
from tests.failover.test_failover_send import DENIED, FAILS, OK, Attempts, Link
from tests.kit.failover_rig import a_message


class OneSide(Attempts):
    """The sends to a side, whose attempts end as given, with two retries each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: Any) -> None:
        super().__init__(*ends)
        monkeypatch.setattr(sync_async, "sleep", self.pause)
        monkeypatch.setattr(senders, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._side = SideSend("primary", "orders", lambda _side, path: Link(self, path), retries=2)

    def send(self, seconds: float) -> SideOutcome:
        return drive(self._side.send([prepare_one(a_message("m"))], self.now + seconds))


@pytest.mark.parametrize(
    ("seconds", "ends", "tried", "accepted"),
    [
        (60, [OK], "orders 60", True),
        (60, [FAILS, FAILS, OK], "orders 60, pause 0.8, orders 58.2, pause 1.6, orders 55.6", True),
        (60, [FAILS, FAILS, FAILS], "orders 60, pause 0.8, orders 58.2, pause 1.6, orders 55.6", False),
        (4.4, [FAILS, FAILS, OK], "orders 4.4, pause 0.8, orders 2.6", False),
        (60, [DENIED], "orders 60", False),
    ],
)
def test_a_side_is_tried_again_after_errors_that_may_pass(
    monkeypatch: pytest.MonkeyPatch, seconds: float, ends: list[Any], tried: str, accepted: bool
) -> None:
    side = OneSide(monkeypatch, *ends)
    outcome = side.send(seconds)
    assert ", ".join(f"{name} {time:g}" for name, time in side.tried) == tried
    assert (outcome.error is None, outcome.unanswered is not None) == (accepted, ends != [OK])


def test_a_side_that_was_away_is_tried_once_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    side = OneSide(monkeypatch, FAILS, FAILS, FAILS, FAILS, OK, FAILS, OK)
    assert [side.send(60).error is None for _ in range(4)] == [False, False, True, True]
    names = [name for name, _ in side.tried]
    assert names == ["orders", "pause", "orders", "pause", *["orders"] * 4, "pause", "orders"]
