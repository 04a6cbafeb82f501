"""A backlog message's bytes, opened: what is known of it, and what a move keeps. Pure.

The law: nothing is refused here. What cannot be read is in the facts as a flaw, and what is no message at all too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sbpair.amqp.message import Sections
from sbpair.errors import ProtocolError
from sbpair.move import envelope
from sbpair.move.route import Facts
from sbpair.move.usual import Reader, Usual

if TYPE_CHECKING:
    from sbpair.move.route import Send

Content: TypeAlias = Usual | Sections | None
"""What is kept of a message; None of what is none."""


class Opened(NamedTuple):
    """`locked_until` is ms since 1970; 0 where the service did not say."""

    facts: Facts
    content: Content
    partition_key: str | None
    locked_until: int


class Opener:
    """Opens the messages of one queue, most of them by the way in which the last ones were written."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._reader = Reader(queue)

    def open(self, payload: bytes, name: str) -> Opened:
        """`name` is what the facts call something that is no message, and so has no id of its own."""
        read = self._reader.read(payload)
        if read is not None:
            return tuple.__new__(Opened, read)  # as Opened(*read) would be, at a third of its cost
        try:
            sections, facts = envelope.facts_of(self._queue, payload)
        except ProtocolError as error:
            nothing = Facts(self._queue, 0, 0, name, None, size=len(payload), flaw=error.message)
            return Opened(nothing, None, None, 0)
        if not facts.flaw:
            self._reader.learn(payload, sections)
        return Opened(facts, sections, envelope.partition_key(sections), envelope.locked_until(sections))


def restored(content: Content, send: Send, now_ms: int) -> bytes:
    """The message as it was before it went into the backlog, encoded."""
    if isinstance(content, Usual):
        return content.restored(send, now_ms)
    assert content is not None  # noqa: S101  what is no message has a flaw, and no Send
    return envelope.restored(content, send, now_ms)
