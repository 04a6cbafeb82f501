"""Received messages of which only numbers are read: a filter decodes what it names, and the chosen ones are decoded.

Invariant: the numbers, and all that is decoded, equal those of messages that are decoded at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from sbpair.amqp.message import Sections, skip
from sbpair.move.filter import FilteredMessage
from sbpair.move.interface import KeptMessage
from sbpair.rules.view import find_value

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp.types import Value
    from sbpair.move.interface import ReceivedMessage
    from sbpair.move.message.decode import Content
    from sbpair.move.message.route import Facts

_SHORT_TEXT = 0xA1
_MAP_HEAD = 6
"""Bytes of a short map section before its first key."""

_MAX_LEARNED = 16
"""How often a receive learns where a value is: if it is anywhere, that is not worth it."""


class MessageNumbers(NamedTuple):
    """Columns of several messages, as `fast_decode` reads them. The application properties are between two positions.

    Times are in ms since 1970.
    """

    sequence_numbers: Sequence[int]
    enqueued_at: Sequence[int]
    locked_until: Sequence[int]
    map_starts: Sequence[int]
    map_ends: Sequence[int]


class UndecodedMessages(Sequence["ReceivedMessage"]):
    """Messages of one receive. Each is decoded when it is accessed, or all of them when they are iterated over.

    `lock_ends` are in seconds of the event loop's clock. `decode` returns some of the messages, by their deliveries,
    payloads and lock ends. `on_needed` is called when the filter asks for what only decoding tells.
    """

    def __init__(
        self,
        numbers: MessageNumbers,
        lock_ends: list[float],
        deliveries: list[Delivery],
        payloads: list[bytes],
        decode: Callable[[list[Delivery], list[bytes], list[float]], Sequence[ReceivedMessage]],
        on_needed: Callable[[], None] = lambda: None,
    ) -> None:
        self.numbers = numbers
        self.sizes = list(map(len, payloads))
        self._lock_ends = lock_ends
        self._deliveries = deliveries
        self._payloads = payloads
        self._decode = decode
        self._decoded: Sequence[ReceivedMessage] | None = None
        self.on_needed = on_needed

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.decoded())

    @overload
    def __getitem__(self, at: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ReceivedMessage]: ...
    def __getitem__(self, at: int | slice) -> ReceivedMessage | Sequence[ReceivedMessage]:
        return self.decoded()[at]

    @property
    def is_decoded(self) -> bool:
        return self._decoded is not None

    def decoded(self) -> Sequence[ReceivedMessage]:
        """Decode all messages. Each call returns the same ones."""
        if self._decoded is None:
            self._decoded = self._decode(self._deliveries, self._payloads, self._lock_ends)
        return self._decoded

    def select(self, chosen: Sequence[bool]) -> Sequence[ReceivedMessage]:
        """Decode some messages."""
        deliveries, payloads = list(compress(self._deliveries, chosen)), list(compress(self._payloads, chosen))
        return self._decode(deliveries, payloads, list(compress(self._lock_ends, chosen)))

    def keep(self, left: Sequence[bool]) -> list[KeptMessage]:
        """Return all that has to be kept of some messages until they are released."""
        numbers = self.numbers
        columns = (numbers.sequence_numbers, numbers.enqueued_at, self._lock_ends, self._deliveries)
        return list(map(KeptMessage, *(compress(each, left) for each in columns)))

    def views(self, now_ms: int) -> Iterator[FilteredMessage]:
        """Yield each message for a filter: always the same object, at the next message."""
        view = UndecodedView(self, now_ms)
        numbers = self.numbers
        columns = (range(len(self)), self._payloads, numbers.map_starts, numbers.map_ends)
        for view.at, view.payload, view.map_at, view.map_end in zip(*columns, strict=True):
            yield view


class UndecodedView(FilteredMessage):
    """One of several messages for a filter, which decodes only the sections that the filter names."""

    __slots__ = ("_learned", "_messages", "_sections_at", "_values", "at", "map_at", "map_end", "payload")

    at: int
    payload: bytes
    map_at: int
    map_end: int

    def __init__(self, messages: UndecodedMessages, now_ms: int) -> None:
        self._messages = messages
        self._values: dict[str, KnownValue] = {}
        self._learned = 0
        self._sections_at = -1
        self.now_ms = now_ms

    @property
    def facts(self) -> Facts:  # type: ignore[override]  # decoded when it is read
        self._messages.on_needed()
        return self._messages[self.at].facts

    @property
    def content(self) -> Content | None:  # type: ignore[override]  # decoded when it is read
        found: Content | None = self._messages[self.at].content  # type: ignore[attr-defined]  # the engine's own
        return found

    @property
    def sequence_number(self) -> int:
        return self._messages.numbers.sequence_numbers[self.at]

    @property
    def enqueued_at(self) -> int:
        return self._messages.numbers.enqueued_at[self.at]

    @property
    def size(self) -> int:
        return len(self.payload)

    @property
    def sections(self) -> Sections:
        if self._sections_at != self.at:
            self._sections, self._sections_at = Sections.split(self.payload), self.at
        assert self._sections is not None  # noqa: S101  # it was set at this message
        return self._sections

    def user(self, name: str) -> Value:
        known = self._values.get(name)
        if known is not None:
            start = self.map_at + _MAP_HEAD
            at = start + known.size
            if at < self.map_end and known.unpack(self.payload, start) == known.constants:
                # Names, types and lengths up to its value are those of an earlier message: so it begins here, too.
                end = at + 2 + self.payload[at + 1] if self.payload[at] == _SHORT_TEXT else len(self.payload)
                if end <= self.map_end:
                    with suppress(UnicodeDecodeError):  # whose reason is made below
                        return self.payload[at + 2 : end].decode()
        return self.find_user(name)[1]

    def find_user(self, name: str) -> tuple[bool, Value]:
        raw = self.payload[self.map_at : self.map_end]
        found, value, value_at = find_value(raw, name)
        if value_at and self._learned < _MAX_LEARNED:
            self._learned += 1
            self._values[name] = _value_after(raw, value_at)
        return found, value


class KnownValue(NamedTuple):
    """The position of a value in a map after its first key is `size`, if the parts before it equal `constants`."""

    size: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    constants: tuple[bytes, ...]


def _value_after(raw: bytes, value_at: int) -> KnownValue:
    """Return the parts that decide where a value is: the keys before it, and types and lengths of their values."""
    pieces, constants, at = ">", [], _MAP_HEAD
    while (key_end := at + 2 + raw[at + 1]) < value_at:
        end = skip(raw, key_end)
        head_end = min(end, key_end + _head_size(raw[key_end], end - key_end))
        pieces += f"{head_end - at}s{end - head_end}x"
        constants.append(raw[at:head_end])
        at = end
    pattern = struct.Struct(f"{pieces}{value_at - at}s")
    return KnownValue(pattern.size, pattern.unpack_from, (*constants, raw[at:value_at]))


def _head_size(code: int, size: int) -> int:
    """Return how many bytes of a value state its length; all of a described one."""
    if code >> 4 >= 10:
        return 5 if code >> 4 & 1 else 2
    return 1 if code else size


def enqueued_times(messages: Sequence[ReceivedMessage]) -> Iterable[int]:
    """Return when messages were enqueued, in ms since 1970, and decode none of them."""
    if isinstance(messages, UndecodedMessages):
        return messages.numbers.enqueued_at
    return (message.facts.enqueued_at for message in messages)
