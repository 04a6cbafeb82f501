"""Messages prepared an outbox equal direct sends, but for the time that has passed."""

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.amqp.message import Sections
from sbpair.failover import sdk_messages
from sbpair.failover.entity_states import Deliver
from sbpair.failover.failures import is_transient, to_sdk_error
from sbpair.failover.outbox import OutboxMessage
from sbpair.failover.outbox_delivery import OutboxDelivery, prepare_delivery
from sbpair.failover.sdk_messages import for_backlog
from sbpair.failover.shared_state import FailoverState
from sbpair.move.message.envelope import read_facts
from sbpair.move.message.route import Send, route
from tests.failover.test_sdk_messages import MESSAGES, encoded, timeless
from tests.failover.test_states import a_pair, new_state

PUT_MS = 1_800_000_000_000


def kept(message: Any, path: str = "billing/Invoices") -> OutboxMessage:
    return OutboxMessage(1, PUT_MS, False, sdk_messages.encode(for_backlog(sdk_messages.prepare_one(message), path)))


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_a_delivery_to_the_primary_equals_a_direct_send(message: ServiceBusMessage) -> None:
    direct = encoded(sdk_messages.prepare_one(message))
    prepared = prepare_delivery(kept(message), PUT_MS, for_primary=True)
    assert timeless(prepared.payload) == timeless(direct)
    assert prepared.message_id == message.message_id
    assert prepared.key == (message.session_id, message.partition_key)
    assert not prepared.expired


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_a_delivery_to_the_backlog_equals_a_direct_send(message: ServiceBusMessage) -> None:
    at_once = encoded(for_backlog(sdk_messages.prepare_one(message), "billing/Invoices"))
    assert kept(message).message == at_once
    prepared = prepare_delivery(kept(message), PUT_MS, for_primary=False)
    assert timeless(prepared.payload) == timeless(at_once)
    assert prepared.key == (None, message.partition_key)
    (_, facts), (_, wanted) = read_facts("q", prepared.payload), read_facts("q", at_once)
    assert facts._replace(size=0) == wanted._replace(size=0)


@given(life=st.integers(1, 10**6), waited=st.integers(-(10**6), 2 * 10**6), for_primary=st.booleans())
def test_a_time_to_live_continues_in_the_outbox(life: int, waited: int, for_primary: bool) -> None:
    message = ServiceBusMessage(b"x", time_to_live=timedelta(seconds=life))
    prepared = prepare_delivery(kept(message), PUT_MS + waited * 1000, for_primary=for_primary)
    # A clock that was put back gives no life.
    left_ms = max(1, 1000 * (life - max(0, waited)))
    assert prepared.expired is (waited >= life)
    if for_primary:
        sections = Sections.split(prepared.payload)
        assert sections.read_header().ttl == left_ms
    else:
        towards = route(read_facts("q", prepared.payload)[1])
        assert isinstance(towards, Send)
        assert towards.ttl_ms == left_ms


class FilledAtTheEnd:
    """An outbox into which a thread puts a message as soon as a delivery has found that it is empty."""

    def __init__(self, state: FailoverState) -> None:
        self.state = state
        self.answers = [False]

    def holds(self, entity: str) -> bool:
        if not self.answers:
            return True
        self.state.outbox_stored(entity, sdk.OperationTimeoutError(), 0.0)
        return self.answers.pop()


async def test_a_message_put_at_the_end_of_a_delivery_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deliver_nothing(*_: object) -> None: ...

    monkeypatch.setattr(OutboxDelivery, "_deliver_to", deliver_nothing)
    state = new_state()
    state.outbox_stored("orders", None, 0.0)
    assert state.pop_due(0.0) == Deliver("orders")
    outbox: Any = FilledAtTheEnd(state)
    await OutboxDelivery(a_pair(), state, outbox, bool, now=lambda: 0.0).run("orders")
    assert state.pop_due(0.0) == Deliver("orders")


ERRORS: list[tuple[errors.SbpairError, type[Exception], bool]] = [
    (errors.Unreachable("gone"), sdk.ServiceBusConnectionError, True),
    (errors.TimedOut("slow"), sdk.OperationTimeoutError, True),
    (errors.InDoubt("silence"), sdk.OperationTimeoutError, True),
    (errors.Throttled("busy"), sdk.ServiceBusServerBusyError, True),
    (errors.QuotaExceeded("full"), sdk.ServiceBusQuotaExceededError, False),
    (errors.EntityMissing("no such queue"), sdk.MessagingEntityNotFoundError, False),
    (errors.NotAuthenticated("wrong key"), sdk.ServiceBusAuthorizationError, False),
    (errors.ServiceRefused("no", condition="amqp:not-allowed"), sdk.ServiceBusError, False),
]


@pytest.mark.parametrize(("error", "theirs", "passing"), ERRORS, ids=lambda each: type(each).__name__)
def test_delivery_errors_become_sdk_errors(error: Any, theirs: type[Exception], passing: bool) -> None:
    meant = to_sdk_error(error)
    assert type(meant) is theirs
    assert error.message in str(meant)
    assert is_transient(meant) is passing
