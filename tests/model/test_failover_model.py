"""Every state that a client with failover can reach."""

from collections.abc import Callable
from typing import Any

import pytest

from sbpair.failover import entity_states
from sbpair.failover.entity_states import EntityTimers
from sbpair.failover.shared_state import FailoverState
from tests.model.failover_model import FailoverModel
from tests.model.search import search


def test_a_client_has_its_properties_in_every_state() -> None:
    found = search(FailoverModel())
    assert (found.wrong, found.trace) == ("", ())
    assert found.states > 400


def nothing(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("where", "name", "changed", "wrong"),
    [
        (FailoverState, "_schedule_probe", nothing, "a backlog queue that failed is never probed again"),
        (FailoverState, "_deliver_at", nothing, "messages in the outbox are never delivered"),
        (EntityTimers, "cancel", nothing, "a backlog queue is probed that works"),
        (entity_states, "_timer", nothing, "a failing entity has no timer, and never fails over"),
        (entity_states, "_PING_ENDS", frozenset(), "an entity that is not healthy is never pinged again"),
    ],
)
def test_a_defect_of_a_client_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, changed: Callable[..., object] | object, wrong: str
) -> None:
    monkeypatch.setattr(where, name, changed)
    assert search(FailoverModel()).wrong == wrong
