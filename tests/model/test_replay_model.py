"""The sending of an archive, checked completely within small bounds: it has its properties, and defects are found."""

import pytest

from sbpair.replay.ledger import Ledger
from sbpair.replay.send_task import LedgerTally
from sbpair.replay.verify import _Verification
from tests.model.replay_model import Attempt, Budget, ReplayModel
from tests.model.search import search

BOUNDS = (("A", Budget(1, 0, 1)), ("A", Budget(0, 1, 1)), ("A", Budget(disks=1)), ("AB", Budget(deaths=1)))


@pytest.mark.parametrize(("to", "budget"), BOUNDS, ids=str)
def test_the_sending_has_its_properties(to: str, budget: Budget) -> None:
    found = search(ReplayModel(to, budget))
    assert (found.wrong, found.trace) == ("", ())
    assert found.states > 5


TWICE = "a message is there twice, and the proof does not name it"
KEPT = "a message that cannot arrive is kept twice, for two to send it again"


@pytest.mark.parametrize(
    ("where", "name", "budget", "wrong"),
    [
        (Ledger, "hold", Budget(deaths=1), TWICE),
        (LedgerTally, "doubtful", Budget(answers=1), TWICE),
        (_Verification, "_list_doubled", Budget(deaths=1), TWICE),
        (Attempt, "may_refuse", Budget(drivers=1, answers=1), KEPT),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_step_that_is_left_out_is_found(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, budget: Budget, wrong: str
) -> None:
    monkeypatch.setattr(where, name, lambda *_: None)
    found = search(ReplayModel("A", budget))
    assert found.wrong == wrong
    assert found.trace
