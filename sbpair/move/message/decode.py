"""A backlog message's bytes, opened: what is known of it, and what a move keeps. Pure.

The law: nothing is refused here. What cannot be read is in the facts as a flaw, and what is no message at all too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sbpair.errors import ProtocolError
from sbpair.move.message import envelope
from sbpair.move.message.fast_decode import TemplateMessage, TemplateReader
from sbpair.move.message.route import Facts

if TYPE_CHECKING:
    from sbpair.amqp.message import Sections
    from sbpair.move.message.route import Send


class GenericMessage(NamedTuple):
    """A message that is not as they usually are."""

    sections: Sections

    def restore(self, send: Send, now_ms: int) -> tuple[bytes, ...]:
        """The message as it was before it went into the backlog, encoded, in parts that follow one another."""
        return (envelope.restore(self.sections, send, now_ms),)


Content: TypeAlias = TemplateMessage | GenericMessage
"""What is kept of a message."""


class Decoded(NamedTuple):
    """`content` is None of what is no message at all; `locked_until` is ms since 1970, 0 where nobody said so."""

    facts: Facts
    content: Content | None
    partition_key: str | None
    locked_until: int


_new_decoded = partial(tuple.__new__, Decoded)


class Decoder:
    """Opens the messages of one queue, most of them by the way in which the last ones were written."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._reader = TemplateReader(queue)

    def decode(self, payloads: Sequence[bytes]) -> list[Decoded]:
        """What is no message has no id; whoever wants one for it gives it one."""
        found = self._reader.read(payloads)
        if all(found):
            return list(map(_new_decoded, found))  # as Opened(*read) of each would be, at a third of its cost
        return [
            self._open(payload) if read is None else _new_decoded(read)
            for payload, read in zip(payloads, found, strict=True)
        ]

    def _open(self, payload: bytes) -> Decoded:
        # Since it was looked at, another one may have been learnt from.
        [read] = self._reader.read([payload])
        if read is not None:
            return _new_decoded(read)
        try:
            sections, facts = envelope.read_facts(self._queue, payload)
        except ProtocolError as error:
            return Decoded(Facts(self._queue, 0, 0, "", None, size=len(payload), flaw=error.message), None, None, 0)
        if not facts.flaw:
            self._reader.learn(payload, sections)
        return Decoded(
            facts, GenericMessage(sections), envelope.partition_key(sections), envelope.locked_until(sections)
        )
