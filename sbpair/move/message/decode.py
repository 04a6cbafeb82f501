"""The decoded bytes of a received message: its facts, and the content that a move keeps. Pure.

Invariant: nothing is refused here. The facts carry a flaw for anything unreadable, even for bytes that are not a
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sbpair.errors import ProtocolError
from sbpair.move.message import envelope
from sbpair.move.message.fast_decode import NumberColumns, TemplateMessage, TemplateReader
from sbpair.move.message.form import BACKLOG, MessageForm
from sbpair.move.message.route import Facts

if TYPE_CHECKING:
    from sbpair.amqp.message import Sections
    from sbpair.move.message.route import Send


class GenericMessage(NamedTuple):
    """A message that no template fits."""

    sections: Sections
    form: MessageForm = BACKLOG

    @property
    def application_properties(self) -> bytes:
        return self.sections.application_properties

    def split(self) -> Sections:
        return self.sections

    def restore(self, send: Send, now_ms: int) -> tuple[int, tuple[bytes, ...]]:
        """Return the message as it was before it entered the backlog, encoded: its size, and consecutive parts."""
        restored = envelope.restore(self.sections, send, now_ms, self.form)
        return len(restored), (restored,)


Content: TypeAlias = TemplateMessage | GenericMessage
"""The part of a message that a move keeps."""


class Decoded(NamedTuple):
    """`content` is None for bytes that are not a message; `locked_until` is ms since 1970, 0 if unknown."""

    facts: Facts
    content: Content | None
    partition_key: str | None
    locked_until: int


_new_decoded = partial(tuple.__new__, Decoded)
"""Equals Decoded(*read), at a third of its cost."""

Columns: TypeAlias = "tuple[Sequence[Facts], Sequence[Content | None], Sequence[str | None], Sequence[int]]"
"""The fields of several Decoded."""


class Decoder:
    """Decodes messages of one queue, most of them by templates learnt from earlier ones."""

    def __init__(self, queue: str, form: MessageForm = BACKLOG) -> None:
        self._queue = queue
        self._form = form
        self._reader = TemplateReader(queue, form)

    def decode(self, payloads: Sequence[bytes]) -> list[Decoded]:
        """Decode messages. Undecodable payloads get no message id; the caller may assign one."""
        return list(map(_new_decoded, zip(*self.decode_columns(payloads), strict=True)))

    def decode_columns(self, payloads: Sequence[bytes]) -> Columns:
        """Decode messages, and return their fields one by one: cheap if all have one layout, as most have."""
        alike = self._reader.read_alike(payloads)
        if alike is not None:
            return alike
        rows = [
            self._decode_one(payload) if read is None else read
            for payload, read in zip(payloads, self._reader.read(payloads), strict=True)
        ]
        facts, contents, partition_keys, locks = zip(*rows, strict=True) if rows else ((), (), (), ())
        return facts, contents, partition_keys, locks

    def read_numbers(self, payloads: Sequence[bytes]) -> NumberColumns | None:
        """Read only the numbers of messages; None if some have to be decoded for that."""
        return self._reader.read_numbers(payloads)

    def _decode_one(self, payload: bytes) -> Decoded:
        # A template may have been learnt since the first attempt.
        [read] = self._reader.read([payload])
        if read is not None:
            return _new_decoded(read)
        try:
            sections, facts = envelope.read_facts(self._queue, payload, self._form)
        except ProtocolError as error:
            return Decoded(Facts(self._queue, 0, 0, "", None, size=len(payload), flaw=error.message), None, None, 0)
        if not facts.flaw:
            self._reader.learn(payload, sections)
        return Decoded(
            facts,
            GenericMessage(sections, self._form),
            envelope.partition_key(sections),
            envelope.locked_until(sections),
        )
