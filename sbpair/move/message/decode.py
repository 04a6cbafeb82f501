"""The decoded bytes of a received message: its facts, and the content that a move keeps. Pure.

Invariant: nothing is refused here. The facts carry a flaw for anything unreadable, even for bytes that are not a
message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from sbpair.amqp.message import Sections
from sbpair.errors import ProtocolError
from sbpair.move.message import envelope
from sbpair.move.message.fast_decode import (
    NOT_TEMPLATED,
    EnvelopeTemplate,
    FieldLayout,
    MessageNumbers,
    TemplateMessage,
)
from sbpair.move.message.route import BACKLOG, Facts, MessageForm, Send


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


_new_decoded: Callable[..., Decoded] = partial(tuple.__new__, Decoded)
"""Equals Decoded(*read), at a third of its cost."""

Columns: TypeAlias = "tuple[Sequence[Facts], Sequence[Content | None], Sequence[str | None], Sequence[int]]"
"""The fields of several Decoded."""

MAX_TEMPLATES = 4
"""Limit of templates that a decoder remembers. One service has one or two."""


class Decoder:
    """Decodes messages of one queue, most of them by templates learnt from earlier ones."""

    def __init__(self, queue: str, form: MessageForm = BACKLOG) -> None:
        self._queue = queue
        self._form = form
        self._templates: list[EnvelopeTemplate] = []

    def decode(self, payloads: Sequence[bytes]) -> list[Decoded]:
        """Decode messages. Undecodable payloads get no message id; the caller may assign one."""
        return list(map(_new_decoded, zip(*self.decode_columns(payloads), strict=True)))

    def decode_columns(self, payloads: Sequence[bytes]) -> Columns:
        """Decode messages, and return their fields one by one: cheap if all have one layout, as most have."""
        alike = self.read_alike(payloads)
        if alike is not None:
            return alike
        pairs = zip(payloads, self.read(payloads), strict=True)
        rows = [self._decode_one(payload) if read is None else read for payload, read in pairs]
        facts, contents, partition_keys, locks = zip(*rows, strict=True) if rows else ((), (), (), ())
        return facts, contents, partition_keys, locks

    def read_alike(self, payloads: Sequence[bytes]) -> Columns | None:
        """Return the fields of messages that have one layout; None if they do not."""
        layout = self._layout(payloads[0]) if payloads else None
        if layout is not None:
            with suppress(*NOT_TEMPLATED):
                return layout.read(self._queue, payloads)
        return None

    def read(self, payloads: Sequence[bytes]) -> list[Decoded | None]:
        """Decode messages by templates, those of one layout together. None for a message that fits no template."""
        found: list[Decoded | None] = [None] * len(payloads)
        for layout, places in self._by_layout(payloads).items():
            if layout is not None:
                read = self._read_each(layout, [payloads[place] for place in places])
                for place, each in zip(places, read, strict=True):
                    found[place] = each
        return found

    def read_numbers(self, payloads: Sequence[bytes]) -> MessageNumbers | None:
        """Read only the numbers of messages; None if some have to be decoded for that."""
        first = self._layout(payloads[0]) if payloads else None
        if first is None:
            return None
        with suppress(*NOT_TEMPLATED):
            return first.read_numbers(payloads)  # nearly always, all have one layout
        rows: list[tuple[int, ...]] = [()] * len(payloads)
        for layout, places in self._by_layout(payloads).items():
            if layout is None:
                return None
            try:
                columns = layout.read_numbers([payloads[place] for place in places])
            except NOT_TEMPLATED:
                return None
            for place, row in zip(places, zip(*columns, strict=True), strict=True):
                rows[place] = row
        return MessageNumbers(*zip(*rows, strict=True))

    def learn(self, payload: bytes, sections: Sections) -> None:
        """Learn a template from a message that `envelope` decoded without a flaw."""
        if any(template.fits(payload) for template in self._templates):
            return  # another part of it is not as usual
        with suppress(*NOT_TEMPLATED):  # `envelope` does not read delivery annotations: they may be anything
            template = EnvelopeTemplate.learn(payload, sections, self._form)
            if template is not None:
                self._templates = [template, *self._templates[: MAX_TEMPLATES - 1]]

    def _layout(self, payload: bytes) -> FieldLayout | None:
        for template in self._templates:
            layout = template.layouts.get(payload[template.size : template.id_at]) or template.learn_layout(payload)
            while layout is not None:
                if layout.fits(payload):
                    return layout
                layout = layout.bare
        return None

    def _by_layout(self, payloads: Sequence[bytes]) -> dict[FieldLayout | None, list[int]]:
        """Return the places of messages by their layout, which is None for those that fit no template."""
        found: defaultdict[FieldLayout | None, list[int]] = defaultdict(list)
        for place, payload in enumerate(payloads):
            found[self._layout(payload)].append(place)
        return found

    def _read_each(self, layout: FieldLayout, payloads: list[bytes]) -> Sequence[Decoded | None]:
        try:
            return list(map(_new_decoded, zip(*layout.read(self._queue, payloads), strict=True)))
        except NOT_TEMPLATED:
            if len(payloads) == 1:
                return [None]
        return [read for payload in payloads for read in self._read_each(layout, [payload])]

    def _decode_one(self, payload: bytes) -> Decoded:
        # A template may have been learnt since the first attempt.
        [read] = self.read([payload])
        if read is not None:
            return read
        try:
            sections, facts = envelope.read_facts(self._queue, payload, self._form)
        except ProtocolError as error:
            return Decoded(Facts(self._queue, 0, 0, "", None, size=len(payload), flaw=error.message), None, None, 0)
        if not facts.flaw:
            self.learn(payload, sections)
        return Decoded(
            facts,
            GenericMessage(sections, self._form),
            envelope.partition_key(sections),
            envelope.locked_until(sections),
        )
