"""Random operations on an emulator that restarts from its file, and on one that never stops, with equal results."""

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
)
from sbpair.amqp.types import Int, Map, Symbol, Timestamp, UInt
from sbpair.amqp_server.refusals import ServiceError
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.partitions import PartitionedReadyQueue
from sbpair.emulator.entities.rules import SqlAction, SubscriptionRule
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.entities.transaction import SendVia, Transaction
from sbpair.rules.filters import CorrelationRuleFilter, FalseRuleFilter, SqlRuleFilter
from sbpair.rules.values import from_amqp, read_typed
from sbpair.timespan import TICKS_PER_SECOND
from tests.emulator.storage_worlds import World, state_of

LOCK_SECONDS = 30
QUEUES: dict[str, QueueDescription] = {
    "plain": QueueDescription(
        lock_duration=LOCK_SECONDS * TICKS_PER_SECOND,
        max_delivery_count=3,
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live=300 * TICKS_PER_SECOND,
    ),
    "sessions": QueueDescription(requires_session=True, max_delivery_count=2),
    "once": QueueDescription(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=60 * TICKS_PER_SECOND
    ),
    "parts": QueueDescription(enable_partitioning=True, requires_duplicate_detection=True),
    "session-parts": QueueDescription(enable_partitioning=True, requires_session=True),
    "Forwards": QueueDescription(
        forward_to="sb://contoso/once", forward_dead_lettered_messages_to="sb://contoso/plain"
    ),
    "lost": QueueDescription(forward_to="sb://contoso/nowhere"),
}
TOPIC = "News/Daily"
TARGETS = (*QUEUES, TOPIC)
SUBSCRIPTIONS = {
    "all": SubscriptionRule(),
    "red": SubscriptionRule(
        "red",
        SqlRuleFilter("color = @c OR sys.Label LIKE 'r%'", (("@c", read_typed("string", "red")),)),
        SqlAction("SET seen = @n; REMOVE color", (("@n", from_amqp(Int(7))),)),
    ),
    "some": SubscriptionRule("some", CorrelationRuleFilter(label="red", properties=(("n", from_amqp(Int(1))),))),
}
SOURCES = (*QUEUES, *(f"{TOPIC}/Subscriptions/{name}" for name in SUBSCRIPTIONS))
PARTS: tuple[Callable[[Any], SubQueue], ...] = (
    lambda entity: entity.messages,
    lambda entity: entity.dead_letters,
    lambda entity: entity.transfer_dead_letters,
)
Outcome = Any


def payload(number: int, options: dict[str, Any], now_ms: int) -> bytes:
    """Return an encoded message. What two entities do in the same millisecond has no order: no two are due together."""
    annotations: dict[Any, Any] = {}
    if options["delay"]:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(now_ms + options["delay"] + number)
    key = f"key-{options['key']}"
    if options["session"] is None:
        annotations[Symbol("x-opt-partition-key")] = key
    return Sections(
        header=Header(ttl=UInt(options["ttl"] + number)).encode() if options["ttl"] else b"",
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, Map(annotations.items())) if annotations else b"",
        properties=Properties(
            message_id=f"id-{options['id']}", subject=options["color"], group_id=options["session"]
        ).encode(),
        application_properties=encode_map(
            APPLICATION_PROPERTIES, Map([("color", options["color"]), ("n", Int(options["id"] % 3))])
        ),
        body=data_body(b"body %d \x00" % number),
    ).join()


OPTIONS = st.fixed_dictionaries(
    {
        "ttl": st.sampled_from([0, 0, 5_000, 200_000]),
        "delay": st.sampled_from([0, 0, 0, 10_000, 100_000]),
        "session": st.sampled_from([None, "", "a", "b"]),
        "key": st.integers(0, 3),
        "id": st.integers(0, 8),
        "color": st.sampled_from(["red", "blue"]),
    }
)
SOURCE = st.sampled_from(SOURCES)
WHICH = st.integers(0, 100)


@dataclass(frozen=True)
class Operation:
    run: Callable[..., None]
    arguments: st.SearchStrategy[dict[str, Any]]


OPERATIONS: list[Operation] = []
"""All operations, each as often as its weight."""


def operation(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(run: Callable[..., None]) -> Callable[..., None]:
        OPERATIONS.extend([Operation(run, st.fixed_dictionaries(arguments))] * weight)
        return run

    return add


class Restarts:
    """`worlds` are the one that restarts and the one that does not. `held` has their tokens, side by side."""

    def __init__(self, directory: Path, *, commits: bool) -> None:
        self.commits = commits
        self.held: list[tuple[str, int, str | None, tuple[bytes, bytes]]] = []
        self.sent = 0
        self.worlds = [World.start(ManualClock(), directory / "data"), World.start(ManualClock())]
        for world in self.worlds:
            for path, description in QUEUES.items():
                world.namespace.create_queue(path, description)
            topic = world.namespace.create_topic(TOPIC, TopicDescription(enable_partitioning=False))
            for name, first in SUBSCRIPTIONS.items():
                topic.create_subscription(name, SubscriptionDescription(requires_session=name == "some"), first)

    def both(self, operation: Callable[[World], Outcome]) -> list[Outcome]:
        outcomes = []
        for world in self.worlds:
            try:
                outcomes.append(operation(world))
            except ServiceError as error:
                outcomes.append((type(error), error.message))
        if self.commits:
            self.commit()
        return outcomes

    def same(self, operation: Callable[[World], Outcome]) -> Outcome:
        first, second = self.both(operation)
        assert first == second
        return first

    @operation(6, path=st.sampled_from(TARGETS), options=st.lists(OPTIONS, min_size=1, max_size=4), batch=st.booleans())
    def send(self, path: str, options: list[dict[str, Any]], batch: bool) -> None:
        self.sent += 1

        def send_to(world: World) -> list[int]:
            entity = world.namespace.entity(path)
            with_id = entity.description.requires_duplicate_detection
            payloads = [payload(self.sent, each, world.clock.now_ms()) for each in options]
            messages = [service_envelope.read_message(each, with_id=with_id) for each in payloads]
            read = [each for each in messages if each is not None]
            for group in [read] if batch else [[each] for each in read]:
                entity.send(group)
            return [each.sequence_number for each in read]

        self.same(send_to)

    def choose(self, which: int) -> tuple[str, int]:
        """Return a source and one of its parts, with messages if there are any."""
        entities = [(source, self.worlds[0].namespace.entity(source)) for source in SOURCES]
        filled = [(source, part) for source, entity in entities for part in range(3) if len(PARTS[part](entity))]
        return filled[which % len(filled)] if filled else ("plain", 0)

    @operation(3, path=st.sampled_from(TARGETS), which=WHICH, option=OPTIONS, commits=st.booleans())
    def transact(self, path: str, which: int, option: dict[str, Any], commits: bool) -> None:
        """Settle a held message, and send one, in a transaction."""
        held = self.held.pop(which % len(self.held)) if self.held else None
        self.sent += 1

        def transact_in(world: World) -> None:
            transaction = Transaction(world.namespace, b"txn")
            entity = world.namespace.entity(path if held is None or "/" in held[0] else held[0])
            with_id = entity.description.requires_duplicate_detection
            read = service_envelope.read_message(payload(self.sent, option, world.clock.now_ms()), with_id=with_id)
            assert read is not None
            transaction.send(entity, [read])
            if held is not None:
                source, part, session, tokens = held
                messages: Any = PARTS[part](world.namespace.entity(source))
                if isinstance(messages, SessionMessages):
                    messages = messages.held_session(session or "")
                token = tokens[self.worlds.index(world)]
                transaction.settle(
                    world.namespace.entity(source), messages, [token], lambda each, token: each.defer(token)
                )
            if commits:
                transaction.commit()

        self.same(transact_in)

    @operation(3, via=st.sampled_from(["plain", "once", TOPIC]), option=OPTIONS, down=st.booleans())
    def send_via(self, via: str, option: dict[str, Any], down: bool) -> None:
        """Send by way of an entity; what cannot be transferred waits there while the destination is down."""
        self.sent += 1

        def send_in(world: World) -> None:
            read = service_envelope.read_message(payload(self.sent, option, world.clock.now_ms()))
            assert read is not None
            if world.down and not down:
                world.faults.end_all()
            elif down and not world.down:
                world.faults.entity_down("contoso", "sessions")
            world.down = down
            SendVia(world.namespace.entity(via), world.namespace.entity("sessions")).send([read])

        self.same(send_in)

    @operation(6, which=WHICH, count=st.integers(1, 6), session=st.sampled_from(["", "a", "b"]))
    def receive(self, which: int, count: int, session: str) -> None:
        source, part = self.choose(which)

        def receive_from(world: World) -> list[StoredMessage]:
            messages = PARTS[part](world.namespace.entity(source))
            if not isinstance(messages, SessionMessages):
                return messages.receive(count)
            with suppress(ServiceError):
                messages.accept(session)
            return messages.held_session(session).receive(count)

        first, second = self.both(receive_from)
        if isinstance(first, tuple) or isinstance(second, tuple):
            assert first == second
            return
        assert [described(each) for each in first] == [described(each) for each in second]
        for one, other in zip(first, second, strict=True):
            self.held.append((source, part, one.session_id, (one.lock_token, other.lock_token)))

    @operation(
        10,
        which=WHICH,
        outcome=st.sampled_from(["complete", "abandon", "release", "defer", "dead_letter"]),
        modify=st.booleans(),
    )
    def settle(self, which: int, outcome: str, modify: bool) -> None:
        if not self.held:
            return
        source, part, session, tokens = self.held.pop(which % len(self.held))

        def settle_in(world: World) -> None:
            messages: Any = PARTS[part](world.namespace.entity(source))
            if isinstance(messages, SessionMessages):
                messages = messages.held_session(session or "").checked()
            token = tokens[self.worlds.index(world)]
            if modify:
                changes = Map([("color", "green"), ("more", "x" * 20)])
                messages.modify(token, lambda message: service_envelope.modify_properties(message, changes))
            getattr(messages, outcome)(token, *(["reason", None] if outcome == "dead_letter" else []))

        self.same(settle_in)

    @operation(4, which=WHICH, outcome=st.sampled_from(["deferred", "cancel"]), session=st.sampled_from("ab"))
    def take_by_number(self, which: int, outcome: str, session: str) -> None:
        source, part = self.choose(which)

        def take(world: World) -> Outcome:
            messages: Any = PARTS[part](world.namespace.entity(source))
            wanted = 1 if outcome == "deferred" else 2
            numbers = [each.sequence_number for each in messages.peek(0, 1_000) if each.state == wanted][:2]
            if outcome == "cancel":
                return messages.cancel_scheduled(numbers)
            receiver = messages.held_session(session) if isinstance(messages, SessionMessages) else messages
            received = receiver.receive_deferred(numbers)
            return [(each.sequence_number, messages.complete(each.lock_token)) for each in received]

        self.same(take)

    @operation(
        2, source=SOURCE, session=st.sampled_from("ab"), state=st.sampled_from([None, b"", b"state", b"\x00" * 9])
    )
    def set_state(self, source: str, session: str, state: bytes | None) -> None:
        def set_in(world: World) -> Outcome:
            messages = world.namespace.entity(source).messages
            if isinstance(messages, SessionMessages):
                with suppress(ServiceError):
                    messages.accept(session)
                messages.held_session(session).set_state(state)
                return messages.list_sessions()
            return None

        self.same(set_in)

    @operation(2, ms=st.sampled_from([1, 4_000, 31_000, 70_000, 400_000]))
    def advance(self, ms: int) -> None:
        for world in self.worlds:
            world.advance(ms)

    @operation(1, source=SOURCE, ttl=st.integers(1, 50), delivery=st.integers(1, 4), right=st.sampled_from(AccessRight))
    def update(self, source: str, ttl: int, delivery: int, right: AccessRight) -> None:
        key = AuthorizationRule("key", "one==", "two==", frozenset({right}), created_at="2026-01-02T03:04:05Z")

        def update_in(world: World) -> None:
            entity = world.namespace.entity(source)
            seconds = ttl * TICKS_PER_SECOND
            entity.update(
                replace(
                    entity.description,
                    default_message_time_to_live=seconds,
                    max_delivery_count=delivery,
                    authorization_rules=(key,),
                    user_metadata="\u00e9'\x01",
                )
            )
            world.namespace.keys = (world.namespace.keys[0], replace(key, key_name=f"n{ttl}"))

        self.same(update_in)

    @operation(1, name=st.sampled_from(sorted(SUBSCRIPTIONS)), rule_name=st.sampled_from(["x", "Y"]), add=st.booleans())
    def change_rules(self, name: str, rule_name: str, add: bool) -> None:
        def change(world: World) -> None:
            subscription = world.namespace.topic(TOPIC).subscription(name)
            if not add:
                subscription.remove_rule(rule_name)
            elif subscription.find_rule(rule_name):
                subscription.change_rule(SubscriptionRule(rule_name, SqlRuleFilter("n > 1")))
            else:
                subscription.add_rule(SubscriptionRule(rule_name, FalseRuleFilter()))

        self.same(change)

    @operation(1, path=st.sampled_from([*QUEUES, TOPIC, f"{TOPIC}/Subscriptions/red"]))
    def recreate(self, path: str) -> None:
        def recreate_in(world: World) -> None:
            entity = world.namespace.entity(path)
            entity.delete()
            if path in QUEUES:
                world.namespace.create_queue(path, QUEUES[path])
                return
            if path == TOPIC:
                world.namespace.create_topic(TOPIC)
            for name, first in SUBSCRIPTIONS.items():
                with suppress(ServiceError):
                    world.namespace.topic(TOPIC).create_subscription(name, SubscriptionDescription(), first)

        self.same(recreate_in)
        self.held = [each for each in self.held if each[0] != path and not each[0].startswith(path)]

    @operation(1)
    def commit(self) -> None:
        assert self.worlds[0].namespace.store_changes()

    @operation(2, kill=st.booleans())
    def restart(self, kill: bool) -> None:
        for world in self.worlds:
            world.unlock_all()
        for world in self.worlds:
            world.forget_faults()
        self.worlds[0] = self.worlds[0].restart(kill=kill)
        self.worlds[1].namespace.resume()
        assert state_of(self.worlds[0]) == state_of(self.worlds[1])
        self.held.clear()
        # Whose turn it is among partitions is not kept.
        for world in self.worlds:
            for entity in world.namespace.all_entities():
                if entity.partitions is not None:
                    entity.partitions._last_chosen = 0
                for part in PARTS:
                    if isinstance(ready := part(entity)._ready, PartitionedReadyQueue):
                        ready._first = 0


def described(message: StoredMessage) -> tuple[Any, ...]:
    reason = message.dead_letter
    return message.sequence_number, message.delivery_count, message.sections.join(), message.enqueued_at_ms, reason


def restart_at_random(data: st.DataObject, steps: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        restarts = Restarts(Path(directory), commits=data.draw(st.booleans()))
        try:
            for _ in range(data.draw(st.integers(1, steps))):
                step = data.draw(st.sampled_from(OPERATIONS))
                step.run(restarts, **data.draw(step.arguments))
            restarts.restart(kill=False)
        finally:
            for world in restarts.worlds:
                world.close()


@settings(max_examples=50, deadline=None, phases=(Phase.reuse, Phase.generate))
@given(st.data())
def test_an_emulator_restarts_with_all_that_it_had(data: st.DataObject) -> None:
    restart_at_random(data, 80)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_many_emulators_restart_with_all_that_they_had(data: st.DataObject) -> None:
    restart_at_random(data, 100)


def test_a_deferred_message_under_lock_is_deferred_after_a_restart(tmp_path: Path) -> None:
    world = World.start(ManualClock(), tmp_path / "data")
    messages = world.namespace.create_queue("orders").messages
    messages.enqueue([StoredMessage(b"", 1)])
    [received] = messages.receive(1)
    messages.defer(received.lock_token)
    messages.receive_deferred([1])
    again = world.restart(kill=True)
    assert again.namespace.queue("orders").messages.receive_deferred([1])
    again.close()


def test_the_key_of_a_transfer_is_found_after_a_restart(tmp_path: Path) -> None:
    world = World.start(ManualClock(), tmp_path / "data")
    annotations = encode_map(MESSAGE_ANNOTATIONS, Map([(Symbol("x-opt-via-partition-key"), "key")]))
    content = Sections(message_annotations=annotations, body=data_body(b""))
    world.namespace.create_queue("orders").send([StoredMessage(content, 1)])
    again = world.restart(kill=True)
    [message] = again.namespace.queue("orders").messages.receive(1)
    assert service_envelope.via_partition_key(message) == "key"
    again.close()


def test_times_of_use_are_kept_over_a_stop(tmp_path: Path) -> None:
    world = World.start(ManualClock(), tmp_path / "data")
    world.namespace.create_queue("orders")
    world.advance(1_000)
    world.namespace.queue("orders").messages.peek(0, 1)
    used = world.clock.now_ms()
    again = world.restart(kill=False)
    messages = again.namespace.queue("orders").messages
    assert (messages.accessed_at_ms, messages.read_at_ms) == (used, used)
    again.close()


def test_nothing_is_left_in_the_file_of_a_deleted_entity(tmp_path: Path) -> None:
    world = World.start(ManualClock(), tmp_path / "data")
    queue = world.namespace.create_queue("orders", replace(QUEUES["sessions"], requires_duplicate_detection=True))
    queue.send([StoredMessage(b"", 1, session_id="a", message_id="1")])
    assert isinstance(queue.messages, SessionMessages)
    queue.messages.accept("a").set_state(b"half way")
    done = queue.messages.accept("b")
    done.set_state(b"half way")
    assert world.namespace.store_changes()
    done.set_state(None)
    assert world.namespace.store_changes()
    assert world.storage is not None
    states = "SELECT key FROM contents WHERE part = 'sessions'"
    assert world.storage._db.execute(states).fetchall() == [("a",)]
    queue.send([StoredMessage(b"", 1, session_id="a", message_id="2")])
    world.namespace.delete_queue("orders")
    world.close()
    db = sqlite3.connect(tmp_path / "data")
    assert db.execute("SELECT id FROM entities").fetchall() == [("contoso",)]
    assert not db.execute("SELECT * FROM contents").fetchall()
    db.close()
