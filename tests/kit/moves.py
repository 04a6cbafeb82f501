"""Moves between entities of two emulated namespaces, by the library, and the messages that they leave and deliver."""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

from sbpair.amqp import splice
from sbpair.amqp.message import Sections
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.stored_message import DeadLetterReason, StoredMessage
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import SIDES, Ends, Pair, SasKey
from sbpair.model.retries import Backoff
from sbpair.move.message.route import MessageForm, kept_for
from sbpair.move.timings import MoveTimings
from sbpair.syphon import runner
from sbpair.syphon.move_ends import EntityAddress, check_ends, check_names
from sbpair.syphon.run_request import RunRequest, RunTimings, syphon_request
from sbpair.testing import Emulator

HASTY = RunTimings(
    backoff=Backoff(0.02, 60.0),
    empty_wait_seconds=0.03,
    count_wait_seconds=(0.01, 0.02, 0.3),
    report_seconds=0.01,
    destinations_seconds=0.01,
    move=MoveTimings(backoff=Backoff(0.01, 60.0)),
)


class World:
    """Two namespaces, and moves between entities of them."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.namespaces = [emulator.namespaces[name] for name in ("contoso", "contoso-dr")]
        self.endpoints = [
            endpoint_from_connection_string(each.connection_string, name=each.name) for each in self.namespaces
        ]

    def create(self, kind: str, name: str, side: int = 0) -> tuple[str, QueueEntity, QueueEntity]:
        """Create an entity. Returns its path, the entity that takes messages, and the one that has them."""
        namespace, sessions = self.namespaces[side], "session" in kind
        if kind in ("topic", "subscription", "session subscription"):
            topic = namespace.create_topic(name)
            made = topic.create_subscription("s", SubscriptionDescription(requires_session=sessions))
            return (name if kind == "topic" else f"{name}/subscriptions/s"), topic, made
        terms = {"requires_session": sessions, "enable_partitioning": kind == "partitioned"}
        queue = namespace.create_queue(name, QueueDescription(**terms))
        return name, queue, queue

    def delete(self, path: str, side: int = 0) -> None:
        """Delete a queue or a topic, if it is there."""
        namespace = self.namespaces[side]
        if namespace.find_topic(path) is not None:
            namespace.delete_topic(path)
        elif namespace.find_queue(path) is not None:
            namespace.delete_queue(path)

    def may_only(self, side: str, *claims: AccessRight, key: str = "key") -> None:
        """From here on, an end has a key that grants these claims alone."""
        at = SIDES.index(side)
        namespace = self.namespaces[at]
        namespace.keys = (*namespace.keys, AuthorizationRule("only", "key", "other", frozenset(claims)))
        self.endpoints[at] = replace(self.endpoints[at], credential=SasKey("only", key))

    def address(self, path: str, side: int = 0) -> EntityAddress:
        return EntityAddress(SIDES[side], self.endpoints[side], path)

    async def move(self, source: str, to: str, *, sides: tuple[int, int] = (0, 0), **more: Any) -> runner.SyphonResult:
        ends = Ends(name="p", source=self.endpoints[sides[0]], destination=self.endpoints[sides[1]])
        start, end = self.address(source, sides[0]), self.address(to, sides[1])
        check_names(start, end)
        checked = await check_ends(start, end, None)
        more = {**move_terms("move", kept_for(to), source), "sessions": checked.sessions, **more}
        more = {"default_ttl_ms": checked.default_ttl_ms or None, **more}
        result = await run_syphon(ends, **more)
        assert result.receipt.balanced
        return result


def move_terms(command: str, form: MessageForm, source: str) -> dict[str, Any]:
    """Return the options of a request that moves one source once, as the command of that name does."""
    names = {"command": command, "form": form, "source": source, "timings": HASTY}
    return {**names, "once": True, "keeps_refused": True, "max_missing": 0, "lease": False}


async def run_syphon(pair: Pair | Ends, **terms: Any) -> runner.SyphonResult:
    """Run the mover. `terms` are the options of its request and its other arguments."""
    options = {each.name: terms.pop(each.name) for each in fields(RunRequest) if each.name in terms}
    if isinstance(pair, Pair):
        return await runner.run(syphon_request(pair, **options), **terms)
    return await runner.run(RunRequest(ends=pair, **options), **terms)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Emulator() as emulator:
        yield World(emulator)


def peeked(queue: QueueEntity, *, dead: bool = False) -> list[StoredMessage]:
    """Return all messages: one peek returns those of one partition."""
    found: list[StoredMessage] = []
    while page := (queue.dead_letters if dead else queue.messages).peek(
        found[-1].sequence_number + 1 if found else 0, 10_000
    ):
        found += page
    return found


def stored(queue: QueueEntity, *, dead: bool = False) -> list[Sections]:
    return [each.sections for each in peeked(queue, dead=dead)]


def bury(queue: QueueEntity) -> None:
    """Add a dead letter for each message."""
    for each in peeked(queue):
        queue.dead_letters.add_dead_letter(each.as_dead_letter(DeadLetterReason("Bad", "why", queue.path)))


def defer_all(queue: QueueEntity, sessions: Sequence[str] = ("S0", "S1", "S2")) -> None:
    """Defer all active messages, of these sessions if the queue has some."""
    messages = queue.messages
    if not isinstance(messages, SessionMessages):
        for each in messages.receive(10_000):
            messages.defer(each.lock_token)
        return
    for held in map(messages.accept, sessions):
        for each in held.receive(10_000):
            messages.defer(each.lock_token)
        held.close()


def by_session(found: list[Sections], *, dead: bool = False) -> dict[str | None, list[tuple[object, ...]]]:
    """Return all bytes that a move keeps, in order within a session."""
    sessions = defaultdict(list)
    for each in found:
        sessions[each.read_properties().group_id].append(kept_parts(each, dead=dead))
    return dict(sessions)


def kept_parts(message: Sections, *, dead: bool = False) -> tuple[object, ...]:
    """Return all that a move keeps of a message.

    Where the service has written the head of a map, as in the application properties of `dead` letters, only its pairs
    are compared.
    """
    header, own = message.read_header(), message.application_properties
    return (
        _pairs(message.delivery_annotations),
        _pairs(message.message_annotations),
        message.properties,
        _pairs(own) if dead else own,
        message.body,
        message.footer,
        header.ttl,
        header.priority,
        header.durable,
    )


SERVICE_ANNOTATIONS = (
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    "x-opt-partition-id",
)


def _pairs(raw: bytes) -> tuple[bytes, ...]:
    return tuple(pair for key, pair, _ in splice.map_pairs(raw) if key not in SERVICE_ANNOTATIONS)


def ids(queue: QueueEntity, *, dead: bool = False) -> list[object]:
    return [each.read_properties().message_id for each in stored(queue, dead=dead)]
