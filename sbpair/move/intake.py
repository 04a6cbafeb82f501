"""The first stage of a mover: keys of received messages, redeliveries, and routing."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, repeat
from operator import itemgetter, not_
from typing import TYPE_CHECKING

from sbpair.move.filter import UndecodedMessages
from sbpair.move.interface import RoutedMessage, get_facts, get_key, get_number, get_ordinal, get_size
from sbpair.move.message.route import NO_TTL, Send, field_getter
from sbpair.runs.journal import message_keys

if TYPE_CHECKING:
    import asyncio

    from sbpair.move.context import Choose, MoveContext
    from sbpair.move.destination_sender import DestinationSenders
    from sbpair.move.interface import ReceivedMessage
    from sbpair.move.message.route import Facts, Route
    from sbpair.move.settlement import Settlement
    from sbpair.runs.journal import Key

ASSUMED_BYTES = 1024 * 1024
"""Size of a message, assumed before the first one is received."""

MAX_COMPARED = 1_000
"""Limit of earlier messages with which those of a receive are compared by number, before they are decoded."""

_new: Callable[..., RoutedMessage] = tuple.__new__
"""Equals RoutedMessage(...), at a third of its cost."""


_number_of = itemgetter(2)  # of a key
_destination_of: Callable[[Route], str] = field_getter(Send, "destination")


class Intake:
    """Hands each received message to the sender of its destination, or to settlement if it can have none."""

    def __init__(
        self,
        source_queue: str,
        route: Callable[[Sequence[Facts]], list[Route]],
        senders: DestinationSenders,
        settlement: Settlement,
        context: MoveContext,
        service_ms: Callable[[], int],
    ) -> None:
        self._source_queue = source_queue
        self._route = route
        self._senders = senders
        self._settlement = settlement
        self._context = context
        self._service_ms = service_ms
        self._redeliveries: dict[int, tuple[ReceivedMessage, ReceivedMessage]] = {}

    @property
    def redeliveries(self) -> list[ReceivedMessage]:
        """Deliveries that wait until the one they supersede has ended."""
        held = self._settlement.held
        return [redelivery for superseded, redelivery in self._redeliveries.values() if superseded in held]

    def forget_redeliveries(self) -> list[ReceivedMessage]:
        """Admit none of them any more, and return them."""
        forgotten = [redelivery for _, redelivery in self._redeliveries.values()]
        self._redeliveries.clear()
        return forgotten

    def abandon_redeliveries(self) -> None:
        """Admit none of them any more. Those of messages that the destination has end here."""
        for redelivery in self.forget_redeliveries():
            if self._context.journal.was_accepted(redelivery.key):
                # The destination's acceptance was counted for the superseded delivery.
                self._settlement.end_already_sent(redelivery)

    @property
    def room(self) -> int:
        """How many more messages may be received, if none is larger than the largest so far."""
        context, held = self._context, self._settlement.held
        bytes_left = context.max_held_bytes - held.bytes
        if bytes_left <= 0:
            return 0
        backing_off = sum(len(sender.queue) for sender in self._senders.backing_off())
        limit = min(context.max_held, context.batch_limits.prefetch + backing_off) - len(held)
        return max(0, min(limit, max(1, bytes_left // (held.largest or ASSUMED_BYTES))))

    def accept(self, messages: Sequence[ReceivedMessage]) -> None:
        if (self._context.chosen is not None or self._settlement.skipped.times) and not (
            messages := self._without_skipped(messages)
        ):
            return
        held, journal = self._settlement.held, self._context.journal
        by_key, repeats = self._by_key(messages), 0
        keys = by_key.keys()
        if len(by_key) == len(messages) and not (held.contains_any(keys) or journal.seen_any(keys)):
            # Nearly always: a third of the cost of one by one.
            held.add_all(by_key)
            self._send(messages)
        else:
            repeats = sum([self._accept(message) for message in messages])
        held.added.set()
        self._context.tally.received(self._source_queue, len(messages), repeats=repeats)
        self._settlement.spend("received", messages)

    def drop_lost(self, message: ReceivedMessage) -> None:
        """Return a message whose lock is lost, if it waits. If it is being sent, its sender decides."""
        if self._senders.drop(message):
            self._settlement.count_returned(message)

    def _without_skipped(self, messages: Sequence[ReceivedMessage]) -> Sequence[ReceivedMessage]:
        """Skip messages that are not chosen or were skipped before, and return the others."""
        settlement, known = self._settlement, self._settlement.skipped.times
        if isinstance(messages, UndecodedMessages):
            if self._context.chosen is not None and known.keys().isdisjoint(messages.numbers.sequence_numbers):
                return self._without_undecoded(messages, self._context.chosen)
            messages = messages.decoded()
        if known and not known.keys().isdisjoint(map(get_number, messages)):
            is_known = [known.get(each.facts.sequence_number) == each.facts.enqueued_at for each in messages]
            again = list(compress(messages, is_known))
            settlement.skipped.add(again)
            settlement.spend("received", again)
            messages = list(compress(messages, map(not_, is_known)))
        if self._context.chosen is None or not messages:
            return messages
        return self._choose(messages, self._context.chosen(messages, self._service_ms()))

    def _without_undecoded(self, messages: UndecodedMessages, choose: Choose) -> Sequence[ReceivedMessage]:
        """Skip messages that are not chosen, and decode only the others."""
        chosen = choose(messages, self._service_ms())
        left = list(map(not_, chosen))
        count = sum(left)
        if messages.is_decoded or not self._settlement.has_room_to_skip(count) or self._may_know(messages):
            return self._choose(messages.decoded(), chosen)
        if count:
            sizes, settlement = list(compress(messages.sizes, left)), self._settlement
            self._context.tally.received(self._source_queue, count)
            settlement.held.note_size(max(sizes))
            settlement.spend_sizes("received", count, sizes)
            settlement.skip_kept(messages.keep(left))
        return messages.select(chosen)

    def _may_know(self, messages: UndecodedMessages) -> bool:
        """Return whether one of them may be moved already, or may have been delivered to this run before."""
        held, journal = self._settlement.held.keys(), self._context.journal
        if journal.count_seen() > MAX_COMPARED:
            return True
        numbers = set(messages.numbers.sequence_numbers)
        return not (
            numbers.isdisjoint(map(_number_of, held)) and numbers.isdisjoint(map(_number_of, journal.all_seen()))
        )

    def _choose(self, messages: Sequence[ReceivedMessage], chosen: Sequence[bool]) -> Sequence[ReceivedMessage]:
        """Skip messages that are not chosen, and return the others."""
        settlement = self._settlement
        left = list(compress(messages, map(not_, chosen)))
        if not left:
            return messages
        skipped, repeats = self._unknown(left)
        self._context.tally.received(self._source_queue, len(skipped), repeats=repeats)
        settlement.held.note_size(max(map(get_size, skipped), default=0))
        settlement.spend("received", skipped)
        settlement.skip(skipped)
        if skipped is left:
            return list(compress(messages, chosen))
        kept = set(map(id, skipped))
        return [each for each in messages if id(each) not in kept]

    def _unknown(self, messages: Sequence[ReceivedMessage]) -> tuple[Sequence[ReceivedMessage], int]:
        """Return messages that are not being moved already, and that the destination does not have.

        Also returns how many of them were delivered to this run before.
        """
        held, journal = self._settlement.held, self._context.journal
        keys = self._by_key(messages).keys()
        if not (held.contains_any(keys) or journal.seen_any(keys)):
            return messages, 0
        unknown = [
            each
            for each in messages
            if not (held.contains_any({each.key: None}.keys()) or journal.was_accepted(each.key))
        ]
        return unknown, sum(map(journal.seen, map(get_key, unknown)))

    def _by_key(self, messages: Sequence[ReceivedMessage]) -> dict[Key, ReceivedMessage]:
        """Set the keys of messages, and return the messages by key."""
        keys = message_keys(self._context.namespace, list(map(get_facts, messages)))
        for message, key in zip(messages, keys, strict=True):
            message.key = key
        return dict(zip(keys, messages, strict=True))

    def _accept(self, message: ReceivedMessage) -> bool:
        """Take over one message. Return whether it was delivered before."""
        superseded = self._settlement.held.add(message)
        seen = self._context.journal.seen(message.key)
        if superseded is None or self._has_ended(superseded):
            self._admit(message)
        else:
            # The end of the superseded delivery decides whether this one is sent at all.
            self._redeliveries[id(superseded)] = superseded, message
            self._settlement.end_of(superseded).add_done_callback(partial(self._admit_redelivery, superseded))
        return seen or superseded is not None

    def _has_ended(self, superseded: ReceivedMessage) -> bool:
        """Drop a delivery that has lost its lock. Return False if it is being sent or settled."""
        superseded.lock_until = 0.0
        self.drop_lost(superseded)
        return superseded not in self._settlement.held

    def _admit_redelivery(self, superseded: ReceivedMessage, _: asyncio.Future[None]) -> None:
        waited = self._redeliveries.pop(id(superseded), None)
        if waited is not None:
            self._admit(waited[1])

    def _admit(self, message: ReceivedMessage) -> None:
        if self._context.journal.was_accepted(message.key):
            self._settlement.complete_already_sent(message)
        else:
            self._send([message])

    def _send(self, messages: Sequence[ReceivedMessage]) -> None:
        # Hot path: each step is one call for all messages.
        decisions = self._route(list(map(get_facts, messages)))
        if (default_ms := self._context.default_ttl_ms) is not None:
            alike = (isinstance(each, Send) and each.ttl_ms in (default_ms, NO_TTL) for each in decisions)
            self._context.tally.default_ttl += sum(alike)
        if set(map(type, decisions)) != {Send}:
            messages, decisions = self._deliverable(messages, decisions)
        fields = zip(messages, decisions, map(get_ordinal, messages), strict=True)
        routed = list(map(_new, repeat(RoutedMessage), fields))
        by_destination: defaultdict[str, list[RoutedMessage]] = defaultdict(list)
        deque(map(list.append, map(by_destination.__getitem__, map(_destination_of, decisions)), routed), maxlen=0)
        for destination, its in by_destination.items():
            self._senders.send(destination, its)

    def _deliverable(
        self, messages: Sequence[ReceivedMessage], decisions: list[Route]
    ) -> tuple[list[ReceivedMessage], list[Route]]:
        """Dead-letter the messages that can have no destination. Return the others, and their decisions."""
        for message, decision in zip(messages, decisions, strict=True):
            if not isinstance(decision, Send):
                self._settlement.turn_away(message, decision)
        has_destination = [isinstance(decision, Send) for decision in decisions]
        return list(compress(messages, has_destination)), list(compress(decisions, has_destination))
