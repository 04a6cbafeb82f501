"""Models that are the code itself: every state has its properties, and a defect of the code is found."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sbpair.failover import entity_states
from sbpair.failover.entity_states import LOSSES, EntityTimers, State
from sbpair.failover.shared_state import FailoverState
from sbpair.model.pair import Side
from sbpair.relay import relay_client
from sbpair.relay.relay_client import AsyncRelayClient
from sbpair.relay.relay_endpoint import other_side
from sbpair.replay.ledger import Ledger
from sbpair.replay.send_task import LedgerTally
from sbpair.replay.verify import _Verification
from tests.model.failover_model import FailoverModel
from tests.model.relay_model import RelayModel
from tests.model.replay_model import Attempt, Budget, ReplayModel
from tests.model.search import Model, search

relay = partial(RelayModel, 0, 1)


def sending(to: str = "A", **budget: int) -> Callable[[], Model]:
    return partial(ReplayModel, to, Budget(**budget))


@pytest.mark.parametrize(
    ("made", "states"),
    [
        pytest.param(FailoverModel, 400, id="failover"),
        pytest.param(relay, 800, id="relay"),
        pytest.param(sending(deaths=1, answers=1), 5, id="replay: a death and an answer"),
        pytest.param(sending(drivers=1, answers=1), 5, id="replay: a driver and an answer"),
        pytest.param(sending(disks=1), 5, id="replay: a disk"),
        pytest.param(sending("AB", deaths=1), 5, id="replay: 2 destinations"),
    ],
)
def test_a_model_has_its_properties_in_every_state(made: Callable[[], Model], states: int) -> None:
    found = search(made())
    assert (found.wrong, found.trace) == ("", ())
    assert found.states > states


def nothing(*_: object) -> None: ...


def always(*_: object, **__: object) -> bool:
    return True


def swap_always(self: AsyncRelayClient, failed: Side, reason: str) -> None:
    del failed
    self._become(other_side(self._active), reason)


def deny(_: AsyncRelayClient, side: Side, failure: relay_client.SideFailure) -> Exception:
    del side
    return failure.error


STAYS = "the side that failed stays active after its request went to the other"
TWICE = "a message is there twice, and the proof does not name it"
WITHOUT_LOSS = {key: state for key, state in entity_states.TRANSITIONS.items() if key[1] not in LOSSES}
KEPT = "a message that cannot arrive is kept twice, for two to send it again"


@pytest.mark.parametrize(
    ("made", "where", "name", "changed", "wrong"),
    [
        (FailoverModel, FailoverState, "_schedule_probe", nothing, "a backlog queue that failed is never probed again"),
        (FailoverModel, FailoverState, "_deliver_at", nothing, "messages in the outbox are never delivered"),
        (FailoverModel, EntityTimers, "cancel", nothing, "a backlog queue is probed that works"),
        (FailoverModel, entity_states, "_PINGED", frozenset(State), "an entity is pinged that needs no ping"),
        (
            FailoverModel,
            entity_states,
            "TRANSITIONS",
            WITHOUT_LOSS,
            "an entity goes on as if nothing was lost",
        ),
        (FailoverModel, entity_states, "_timer", nothing, "a failing entity has no timer, and never fails over"),
        (
            *(FailoverModel, entity_states, "_PING_ENDS", frozenset()),
            "an entity that is not healthy is never pinged again",
        ),
        (relay, relay_client, "may_reissue", always, "a request was executed twice that must not be"),
        (relay, AsyncRelayClient, "_leave", swap_always, STAYS),
        (relay, AsyncRelayClient, "_leave", nothing, STAYS),
        (relay, AsyncRelayClient, "_alone", deny, "a request was executed, and its error denies that"),
        (sending(deaths=1), Ledger, "hold", nothing, TWICE),
        (sending(answers=1), LedgerTally, "doubtful", nothing, TWICE),
        (sending(deaths=1), _Verification, "_doubled", lambda *_: (), TWICE),
        (sending(drivers=1, answers=1), Attempt, "may_refuse", nothing, KEPT),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_defect_of_the_code_is_found_by_its_model(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], Model], where: Any, name: str, changed: object, wrong: str
) -> None:
    monkeypatch.setattr(where, name, changed)
    assert search(made()).wrong == wrong
