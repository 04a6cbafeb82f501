"""The model of the move, checked completely within small bounds, and followed by the code."""

from collections.abc import Callable
from typing import Any

import pytest

from sbpair.move import mover, settlement
from sbpair.runs import journal
from tests.model import move_model
from tests.model.move_code import follow_all
from tests.model.move_model import Budget, Message, MoveModel, crashed, delivered, refused, unlocked
from tests.model.search import has_loop, search

BOUNDS = {
    "three": MoveModel("ABA", Budget(crashes=1)),
    "faults": MoveModel("A", Budget(1, 1, 1, 1, 1, 1)),
    "order": MoveModel("AA", Budget(1, 1, 1)),
    "limit": MoveModel("A", Budget(2, 1, 1, 1), limit=1),
    "duplicates": MoveModel("AA", Budget(1, 0, 1), detects_duplicates=True),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_model_has_its_properties(bound: str) -> None:
    found = search(BOUNDS[bound])
    assert (found.wrong, found.trace) == ("", ())
    assert found.states > 400


def test_a_run_without_faults_ends() -> None:
    assert not has_loop(MoveModel("A", Budget(1, 1, 1, 1, 1, 1)))


@pytest.mark.parametrize(
    "made",
    [
        MoveModel("A", Budget(1, 0, 1)),
        MoveModel("A", Budget(0, 0, 1, 1)),
        MoveModel("A", Budget(0, 0, 0, 1, 1, 1)),
        MoveModel("A", Budget(1, 1), limit=1),
        MoveModel("AA", Budget(crashes=1)),
    ],
    ids=lambda made: f"{made.to} {tuple(made.first.budget)}",
)
def test_the_code_does_what_the_model_does(made: MoveModel) -> None:
    traces, events = follow_all(made)
    assert events > traces > 20


# A defect of the model is found by its properties, and one of the code by the model.


def forget_crashes(m: Message) -> bool:
    return m.row == move_model.ACCEPTED or m.doubt not in ("", "o")


def lose_doubts(m: Message, has_arrived: bool, detects_duplicates: bool) -> Message:
    after = crashed(m, has_arrived, detects_duplicates)
    return after._replace(doubt="") if m.row == move_model.SENDING else after


def complete_first(m: Message, number: int) -> Message:
    after = delivered(m, number)
    return after._replace(hold=f"{move_model.SETTLES}{number}") if after.hold == move_model.WAITS else after


def keep_locks(m: Message) -> Message:
    return unlocked(m)._replace(source=m.source)


def complete_refused(m: Message, buries: str) -> Message:
    after = refused(m, buries)
    return after._replace(hold=f"{move_model.SETTLES}0") if buries else after


@pytest.mark.parametrize(
    ("name", "changed", "bound", "wrong"),
    [
        ("is_named", forget_crashes, "limit", "a message is in both namespaces, and no receipt names it"),
        ("crashed", lose_doubts, "three", "a message is sent again that is known to have arrived"),
        ("delivered", complete_first, "three", "a message left the backlog, and the primary does not have it"),
        ("refused", complete_refused, "faults", "a message left the backlog, and the primary does not have it"),
        ("unlocked", keep_locks, "faults", "a run holds a message while it is paused or over"),
    ],
)
def test_a_defect_of_the_model_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, changed: Callable[..., Any], bound: str, wrong: str
) -> None:
    monkeypatch.setattr(move_model, name, changed)
    move_model.reported.cache_clear()
    found = search(BOUNDS[bound])
    move_model.reported.cache_clear()
    assert found.wrong == wrong
    assert found.trace


async def complete_instead(self: settlement.Settlement, message: Any, decision: Any) -> None:
    del decision
    await self._complete([message])


async def complete_without_record(self: settlement.Settlement, messages: list[Any]) -> None:
    await self._complete(messages)


@pytest.mark.parametrize(
    ("where", "name", "changed", "made"),
    [
        (settlement.Settlement, "_complete_accepted", complete_without_record, MoveModel("A", Budget(crashes=1))),
        (settlement.Settlement, "_dead_letter", complete_instead, MoveModel("A", Budget(primary=1))),
        (journal.Journal, "was_accepted", lambda *_: False, MoveModel("A", Budget(crashes=1))),
        (journal.Journal, "unconfirmed", lambda _: [], MoveModel("A", Budget(1, 1), limit=1)),
        (journal.Journal, "note_in_doubt", journal.Journal.note_unsent, MoveModel("A", Budget(primary=1))),
        (mover.Mover, "unsettled", (), MoveModel("A", Budget(backlog=1))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_defect_of_the_code_is_found(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, changed: object, made: MoveModel
) -> None:
    follow_all(made)
    monkeypatch.setattr(where, name, changed)
    with pytest.raises(AssertionError):
        follow_all(made)
