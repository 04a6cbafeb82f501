"""Messages prepared an outbox equal direct sends, but for the time that has passed."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.amqp.message import BATCH_FORMAT, Sections
from sbpair.failover import outbox_delivery, sdk_encoding, sdk_messages
from sbpair.failover.entity_states import Deliver, EntityEvent, State
from sbpair.failover.events import EntityChanged, OutboxEmptied, OutboxRefused, SendInDoubt
from sbpair.failover.failures import is_transient, to_sdk_error
from sbpair.failover.outbox import Outbox, OutboxMessage
from sbpair.failover.outbox_delivery import TURN_SECONDS, OutboxDelivery, prepare_delivery
from sbpair.failover.sdk_messages import for_backlog
from sbpair.move.message.envelope import partition_key, read_facts
from sbpair.move.message.route import Send, route
from tests.failover.test_sdk_messages import MESSAGES, encoded, timeless
from tests.failover.test_states import a_pair, new_state

PUT_MS = 1_800_000_000_000


def kept(message: Any, path: str = "billing/Invoices", waited_ms: int = 0) -> OutboxMessage:
    encoded_message = sdk_encoding.encode(for_backlog(sdk_messages.prepare_one(message), path))
    return OutboxMessage(1, waited_ms, False, encoded_message)


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_a_delivery_to_the_primary_equals_a_direct_send(message: ServiceBusMessage) -> None:
    direct = encoded(sdk_messages.prepare_one(message))
    prepared = prepare_delivery(kept(message), PUT_MS, restored=True)
    assert timeless(prepared.payload) == timeless(direct)
    assert prepared.message_id == message.message_id
    assert prepared.key == (message.session_id, message.partition_key)
    assert not prepared.expired


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_a_delivery_to_the_backlog_equals_a_direct_send(message: ServiceBusMessage) -> None:
    at_once = encoded(for_backlog(sdk_messages.prepare_one(message), "billing/Invoices"))
    assert kept(message).message == at_once
    prepared = prepare_delivery(kept(message), PUT_MS, restored=False)
    assert timeless(prepared.payload) == timeless(at_once)
    assert prepared.key == (None, message.partition_key)
    (_, facts), (_, wanted) = read_facts("q", prepared.payload), read_facts("q", at_once)
    assert facts._replace(size=0) == wanted._replace(size=0)


@given(life=st.integers(1, 10**6), waited=st.integers(0, 2 * 10**6), restored=st.booleans())
def test_a_time_to_live_continues_in_the_outbox(life: int, waited: int, restored: bool) -> None:
    message = ServiceBusMessage(b"x", time_to_live=timedelta(seconds=life))
    prepared = prepare_delivery(kept(message, waited_ms=waited * 1000), PUT_MS, restored=restored)
    # A clock that was put back gives no life.
    left_ms = max(1, 1000 * (life - waited))
    assert prepared.expired is (waited >= life)
    if restored:
        sections = Sections.split(prepared.payload)
        assert sections.read_header().ttl == left_ms
    else:
        towards = route(read_facts("q", prepared.payload)[1])
        assert isinstance(towards, Send)
        assert towards.ttl_ms == left_ms


PRIMARY, SECONDARY = (getattr(a_pair(), side).name for side in ("primary", "secondary"))
GONE, MISSING = errors.Unreachable("gone"), errors.EntityMissing("no such queue")
REFUSED = errors.ServiceRefused("no", condition="amqp:not-allowed")


class LinkedDelivery:
    """The delivery of a real outbox over a link whose sends end as given. A send takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, *ends: Exception | None, **terms: Any) -> None:
        self.ends, self.sent, self.now = list(ends), list[tuple[str, ...]](), 0.0
        self.events, self.max_batch_size = list[Any](), 10_000
        self.state = new_state(self.events.append, **{"backlog_queues": 1} | terms)
        self.box = Outbox(path, a_pair())
        self.keys: list[tuple[Any, Any]] = []
        self.names, self.targets, self.forced_after = list[str](), list[tuple[str, str]](), 0
        self._delivery = OutboxDelivery(a_pair(), self.state, self.box, is_transient, now=lambda: self.now)
        monkeypatch.setattr(outbox_delivery, "connect", self._connect)

    @asynccontextmanager
    async def _connect(self, endpoint: Any, **_options: Any) -> AsyncIterator[Any]:
        self._side = endpoint.name
        yield self

    async def sender(self, path: str) -> Any:
        self.targets.append((self._side, path.rpartition("/")[2]))
        return self

    async def send(self, payload: bytes, *, message_format: int) -> None:
        found = tuple(name for name in self.names if name.encode() in payload)
        assert (message_format == BATCH_FORMAT) is (len(found) > 1)
        self.sent.append(found)
        envelope = Sections.split(payload)
        self.keys.append((envelope.read_properties().group_id, partition_key(envelope)))
        self.now += 1
        if len(self.sent) == self.forced_after:
            self.state.command(EntityEvent.FORCE, "orders", self.now)
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end

    def put(self, *names: str, **own: Any) -> None:
        self.names += names
        messages = [ServiceBusMessage(b"x", message_id=name, **own) for name in names]
        self.box.put("orders", [kept(each, "orders").message for each in messages])

    async def run(self) -> None:
        self.state.outbox_stored("orders", None, self.now)
        self.state.pop_due(self.now)
        await self._delivery.run("orders")

    @property
    def due(self) -> float | None:
        """When the next delivery is due."""
        return next((when for task, (when, *_) in self.state.timers._due.items() if isinstance(task, Deliver)), None)

    @property
    def left(self) -> list[bool]:
        """Whether each message that is left may have arrived."""
        return [each.tried for each in self.box.peek("orders", 100, 10_000)]


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., LinkedDelivery]]:
    with ExitStack() as stack:

        def make(*ends: Exception | None, **terms: Any) -> LinkedDelivery:
            found = LinkedDelivery(monkeypatch, tmp_path / "outbox.db", *ends, **terms)
            stack.callback(found.box.close)
            return found

        yield make


@pytest.mark.parametrize(
    ("key", "side", "batches", "keys"),
    [
        ("session_id", "primary", [("m0", "m1"), ("m2",)], [("a", None), ("b", None)]),
        ("session_id", "secondary", [("m0", "m1", "m2")], [(None, None)]),
        ("partition_key", "primary", [("m0", "m1"), ("m2",)], [(None, "a"), (None, "b")]),
        ("partition_key", "secondary", [("m0", "m1"), ("m2",)], [(None, "a"), (None, "b")]),
    ],
)
async def test_messages_of_a_batch_share_what_their_side_partitions_by(
    linked: Callable[..., LinkedDelivery], key: str, side: str, batches: list[tuple[str, ...]], keys: list[Any]
) -> None:
    delivery = linked()
    if side == "secondary":
        delivery.state.command(EntityEvent.FORCE, "orders", 0.0)
    delivery.put("m0", "m1", **{key: "a"})
    delivery.put("m2", **{key: "b"})
    await delivery.run()
    assert (delivery.sent, delivery.keys) == (batches, keys)


async def test_messages_of_a_refused_batch_are_sent_alone(linked: Callable[..., LinkedDelivery]) -> None:
    delivery = linked(REFUSED, None, REFUSED)
    delivery.put("m0", "m1", "m2")
    await delivery.run()
    assert delivery.sent == [("m0", "m1", "m2"), ("m0",), ("m1",), ("m2",)]
    refused = [event for event in delivery.events if isinstance(event, OutboxRefused)]
    assert [event.message_ids for event in refused] == [("m1",)]
    assert (delivery.left, len(delivery.box)) == ([], 1)
    delivery.put("m3", "m4")
    await delivery.run()
    assert delivery.sent[4:] == [("m3", "m4")]


@pytest.mark.parametrize(
    ("ends", "forced", "targets", "out", "empty"),
    [
        ([None], False, ["orders"], 0, True),
        ([GONE, None], False, ["orders", "0"], 0, True),
        ([GONE, GONE, None], False, ["orders", "0", "1"], 1, True),
        ([GONE, GONE, GONE], False, ["orders", "0", "1"], 2, False),
        ([MISSING], False, ["orders"], 0, False),
        ([REFUSED], True, ["0"], 0, False),
    ],
)
async def test_a_delivery_goes_where_a_message_is_accepted(
    linked: Callable[..., LinkedDelivery], ends: list[Any], forced: bool, targets: list[str], out: int, empty: bool
) -> None:
    # `out` is the number of backlog queues that are out afterwards.
    delivery = linked(*ends, failover_interval=0, backlog_queues=2, ping_interval=60)
    state = delivery.state
    if forced:
        state.command(EntityEvent.FORCE, "orders", 0.0)
    delivery.put("m0")
    await delivery.run()
    assert ([path for _, path in delivery.targets], len(state.queues_out)) == (targets, out)
    assert (OutboxEmptied("orders") in delivery.events) is empty
    assert (delivery.left, delivery.due) == (([], None) if empty else ([False], delivery.now + 60))
    assert (state.outbox_stuck("orders") is not None) is (ends == [MISSING])
    expected = State.FORCED if forced else State.FAILED_OVER if ends[0] is GONE else State.HEALTHY
    assert state.states()["orders"] is expected


@pytest.mark.parametrize(("error", "doubtful"), [(GONE, False), (errors.InDoubt("silence"), True)])
async def test_a_delivery_without_an_answer_is_repeated_in_doubt(
    linked: Callable[..., LinkedDelivery], error: Exception, doubtful: bool
) -> None:
    delivery = linked(error)
    delivery.put("m0", "m1")
    await delivery.run()
    assert (delivery.left, delivery.state.states()["orders"]) == ([doubtful] * 2, State.FAILING)
    await delivery.run()
    assert (delivery.left, delivery.state.states()["orders"]) == ([], State.HEALTHY)
    [reason, _] = [event.reason for event in delivery.events if isinstance(event, EntityChanged)]
    assert str(error) in reason
    doubts = [event.message_ids for event in delivery.events if isinstance(event, SendInDoubt)]
    assert doubts == [("m0", "m1")] * doubtful


async def test_a_delivery_follows_its_target_until_its_turn_ends(linked: Callable[..., LinkedDelivery]) -> None:
    delivery = linked()
    delivery.max_batch_size, delivery.forced_after = 1, 3
    delivery.put(*(f"m{number:02}" for number in range(20)))
    await delivery.run()
    assert delivery.targets == [(PRIMARY, "orders"), (SECONDARY, "0")]
    assert (len(delivery.sent), len(delivery.left), delivery.due) == (TURN_SECONDS, 10, TURN_SECONDS)
    await delivery.run()
    assert delivery.sent == [(f"m{number:02}",) for number in range(20)]


async def test_a_message_put_at_the_end_of_a_delivery_is_delivered(linked: Callable[..., LinkedDelivery]) -> None:
    # As a thread does, as soon as the delivery has found that the outbox is empty.
    delivery = linked()
    holds = delivery.box.holds

    def put_at_the_end(entity: str) -> bool:
        found = holds(entity)
        if not found and delivery.names == ["m0"]:
            delivery.put("m1")
            delivery.state.outbox_stored(entity, sdk.OperationTimeoutError(), delivery.now)
        return found

    delivery.put("m0")
    delivery.box.holds = put_at_the_end  # type: ignore[method-assign]
    await delivery.run()
    assert (delivery.sent, delivery.due) == ([("m0",)], delivery.now)
    await delivery.run()
    assert delivery.sent == [("m0",), ("m1",)]


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
