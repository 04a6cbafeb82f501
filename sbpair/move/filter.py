"""Filters of `--where`: Service Bus's SQL grammar over received and peeked messages, with names of sbpair's own. Pure.

The aliases of a stranded message count as the properties that they stand for: session, time to live and schedule. Of
messages of which only numbers are read, a filter decodes what it names. Invariant: these numbers and what is decoded
equal those of messages that are decoded at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sbpair.amqp import splice
from sbpair.amqp.message import Sections, skip
from sbpair.errors import ProtocolError, UsageError, nearest
from sbpair.model.message_state import MessageState
from sbpair.model.sequence_ranges import SequenceRanges
from sbpair.move.interface import KeptMessage
from sbpair.move.message import dead_letters, envelope
from sbpair.move.message.body import MAX_DECODED, body_text
from sbpair.move.message.dead_letters import NO_REASON
from sbpair.move.message.decode import GenericMessage
from sbpair.move.receipt import FilterCounts
from sbpair.rules.compiler import Compiler, Dialect, Part, SqlMistake
from sbpair.rules.values import (
    NUMBER,
    SPAN,
    TEXT,
    TIME,
    DotNetDecimal,
    EvaluationFailed,
    Instant,
    TimeSpanValue,
    instant,
)
from sbpair.rules.view import FOREVER, SYSTEM_PROPERTIES, MessageView, SystemProperty, element, find_value
from sbpair.timespan import TICKS_PER_MS

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp.types import Value
    from sbpair.move.interface import ReceivedMessage
    from sbpair.move.message.decode import Content
    from sbpair.move.message.fast_decode import MessageNumbers
    from sbpair.move.message.route import Facts

MAX_TEXT: Final = 100_000
"""Characters of a filter: a list of a thousand message ids fits."""

HINT: Final = "for example: --where \"sys.Label = 'red' AND age < '1h'\""
_SHOWN_BEFORE, _SHOWN = 50, 72
_STATES: Final = {envelope.ACTIVE: "active", envelope.DEFERRED: "deferred", envelope.SCHEDULED: "scheduled"}


_MAX_NAMES: Final = 100
_SHOWN_NAMES: Final = 5
_BODY_HEAD = 8
"""Bytes before the content of a long body."""

_SHORT_TEXT = 0xA1
_MAP_HEAD = 6
"""Bytes of a short map section before its first key."""

_MAX_LEARNED = 16
"""How often a receive learns where a value is: if it is anywhere, that is not worth it."""


class FilterInvalid(UsageError):
    """A mistake in a filter. `column` counts from 1; `excerpt` are the text and a mark below the column."""

    def __init__(self, mistake: str, text: str, at: int, *, hint: str = "") -> None:
        super().__init__(f"--where: {mistake} (column {at + 1})", hint=hint or HINT)
        self.column = at + 1
        self.excerpt = marked(text, at)


def marked(text: str, at: int) -> tuple[str, str]:
    """Return a text, cut if it is long, and a mark below the character at an index."""
    line = "".join(each if each.isprintable() else " " for each in text)
    start = max(0, at - _SHOWN_BEFORE)
    shown = ("…" if start else "") + line[start : start + _SHOWN] + ("…" if len(line) > start + _SHOWN else "")
    return f"  {shown}", " " * (2 + bool(start) + at - start) + "^"


class FilteredMessage(MessageView):
    """A message for a filter. `content` is None for bytes that are not a message. `now_ms` is the service's time.

    `uncertain` is the name of a property that was NULL, as it has two values: of .NET and of IEEE 754. With
    `reads_as_dotnet`, it is that of .NET.
    """

    __slots__ = ("_sections", "content", "facts", "now_ms", "reads_as_dotnet", "uncertain")

    reads_as_dotnet: bool
    uncertain: str

    def __init__(self, facts: Facts, content: Content | None, now_ms: int) -> None:
        self.reads_as_dotnet, self.uncertain = False, ""
        self.facts = facts
        self.content = content
        self.now_ms = now_ms
        self._sections: Sections | None = None

    @property
    def sections(self) -> Sections:
        if self._sections is None:
            if self.content is None:
                raise EvaluationFailed(f"it is not a message: {self.facts.flaw}")
            self._sections = self.content.split()
        return self._sections

    @property
    def sequence_number(self) -> int:
        return self.facts.sequence_number

    @property
    def enqueued_at(self) -> int:
        return self.facts.enqueued_at

    @property
    def size(self) -> int:
        return self.facts.size

    @property
    def delivery_count(self) -> int:
        return element(self.sections.header, 4) or 0

    @property
    def time_to_live(self) -> TimeSpanValue | None:
        if self.facts.ttl_ticks is not None:
            return TimeSpanValue(self.facts.ttl_ticks)
        try:
            properties = self.sections.read_properties()
        except ProtocolError as error:
            raise EvaluationFailed(f"The properties of the message cannot be read: {error.message}") from None
        ttl = envelope.lifetime_ms(element(self.sections.header, 2), properties, self.enqueued_at)
        return None if ttl is None else TimeSpanValue(min(ttl * TICKS_PER_MS, FOREVER))

    @property
    def scheduled_at(self) -> Instant | None:
        at = self.facts.scheduled_at
        found: Instant | None = self.annotation("x-opt-scheduled-enqueue-time") if at is None else instant(at)
        return found

    @property
    def message_id(self) -> str | None:
        return self.facts.message_id

    @property
    def session_id(self) -> Value:
        return self.facts.session_id or self.field(10)

    def find_user(self, name: str) -> tuple[bool, Value]:
        if self.content is None:
            return False, None
        found, value, _ = find_value(self.content.application_properties, name)
        return found, self.certain(name, value)

    def certain(self, name: str, value: Value) -> Value:
        """Return the value of a property; None for an uncertain one."""
        if type(value) is DotNetDecimal and not self.reads_as_dotnet:
            self.uncertain, value = name, None
        return value

    def user_names(self) -> list[str]:
        """Return the names of its application properties."""
        raw = self.sections.application_properties
        return [key for key, _, _ in splice.map_pairs(raw) if isinstance(key, str)]


def _age(message: FilteredMessage) -> TimeSpanValue | None:
    enqueued_at = message.enqueued_at
    return TimeSpanValue(max(0, message.now_ms - enqueued_at) * TICKS_PER_MS) if enqueued_at > 0 else None


def _state(message: FilteredMessage) -> str:
    return _STATES.get(envelope.message_state(message.sections), "active")


def _body(message: FilteredMessage) -> str | None:
    sections = message.sections
    if len(sections.body) > MAX_DECODED + _BODY_HEAD:
        raise EvaluationFailed("its body is longer than 1 MB")
    return body_text(sections)


_OWN: Final[dict[str, tuple[str, Callable[[Any], Value]]]] = {
    "age": (SPAN, _age),
    "body": (TEXT, _body),
    "enqueued": (TIME, lambda message: instant(message.enqueued_at)),
    "path": (TEXT, lambda message: message.facts.path or None),
    "reason": (TEXT, lambda message: message.user(dead_letters.REASON.lower())),
    "size": (NUMBER, lambda message: message.size),
}
"""Names of sbpair's own, without a scope. Of a user property with such a name, the scope is `user`."""

_DIALECT: Final = Dialect(
    system=SYSTEM_PROPERTIES | {"state": SystemProperty("State", TEXT, _state)},
    own={name: SystemProperty(name, *own) for name, own in _OWN.items()},
    checks=True,
)


def _compiled(text: str) -> tuple[Part, dict[str, str], bool]:
    """Compile a filter; also return the application properties that it names, and whether it names the body.

    Raises FilterInvalid.
    """
    if len(text) > MAX_TEXT:
        raise FilterInvalid(f"the filter has {len(text)} characters; the limit is {MAX_TEXT}", text, 0)
    if not text.strip():
        raise FilterInvalid("expected a condition, got an empty text", text, 0)
    try:
        part: Part = (compiler := Compiler(_DIALECT)).compile("filter", text)
    except SqlMistake as found:
        raise FilterInvalid(found.mistake, text, found.at, hint=found.hint) from None
    return part, compiler.named, "body" in compiler.own_named


@dataclass
class MessageFilter:
    """A compiled filter. `remarks` are doubts about its text, for the user.

    `chosen` counts messages that match.

    `failures` counts messages for which it could not be calculated, and which were not chosen; `first_failure` is why.
    With `reasons`, a message also needs one of these as its dead-letter reason, in any case; "" is that of dead letters
    without one. So it does of `sequences`, of an age of more than `older_than` seconds, and of a `state`, which only
    peeked messages have. Without a text, nothing else. With `is_shown`, messages that match stay where they are: a
    decimal that .NET and IEEE 754 read differently has .NET's value then. It is NULL where they are moved or removed.
    """

    text: str
    chosen: int = 0
    failures: int = 0
    first_failure: str = ""
    remarks: tuple[str, ...] = ()
    reasons: Collection[str] = ()
    is_shown: bool = False
    sequences: SequenceRanges | None = None
    older_than: float | None = None
    state: MessageState | None = None
    _found: set[str] = field(default_factory=set, init=False, compare=False)
    _found_reasons: set[str] = field(default_factory=set, init=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the text. Raises FilterInvalid."""
        self._text_doubts: tuple[str, ...] = ()
        self._absent: dict[str, str] = {}
        asks_for_body = False
        if self.text or not self._conditions():
            part, self._absent, asks_for_body = _compiled(self.text)
            self._run, self.remarks, self._text_doubts = part.run, part.remarks, part.doubts
        else:
            self._run = lambda _message: True
        self._reasons = frozenset(map(str.lower, self.reasons))
        self._looked = False
        # Whether a message with a property of that name was found; None for a filter that does not name the body.
        self._has_property_body = False if asks_for_body else None
        self._not_found = set(range(min(len(self.sequences.firsts), _MAX_NAMES))) if self.sequences else set()

    def choose(self, messages: Sequence[Any], now_ms: int) -> list[bool]:
        """Return which received messages the filter is true for, at a time of the service in ms since 1970."""
        if isinstance(messages, UndecodedMessages):
            return list(map(self.matches, messages.views(now_ms)))
        return [self.matches(FilteredMessage(each.facts, each.content, now_ms)) for each in messages]

    def matches_peeked(self, facts: Facts, sections: Sections, now_ms: int) -> bool:
        """Return whether the filter is true for a peeked message; one without sections is not a message."""
        content = GenericMessage(sections) if len(sections) else None
        return self.matches(FilteredMessage(facts, content, now_ms))

    def counts(self, skipped: int) -> FilterCounts:
        remarks = (*self.remarks, *self.doubts())
        return FilterCounts(self.full_text, self.chosen, skipped, self.failures, self.first_failure, remarks)

    def doubts(self) -> list[str]:
        """Return likely mistakes: those of the text if nothing matches, and reasons that no message has."""
        found, looked = [], "none of the messages that were looked at has the"
        if self._has_property_body:
            found.append("body is the body of a message; messages have an application property body, too: user.body")
        if not self.chosen:
            found += [f"no message matched, and {doubt}" for doubt in self._text_doubts]
            doubted = {doubt.partition(" ")[0] for doubt in self._text_doubts}
            absent = [each for each in self._absent.values() if self._looked and each not in doubted]
            found += [f"{looked} property {each}; they have {_nearest_first(each, self._found)}" for each in absent]
        if self.sequences and self._not_found:
            texts = self.sequences.texts()
            numbers = ", ".join(texts[at] for at in sorted(self._not_found)[:_SHOWN_NAMES])
            more = ", …" if len(self._not_found) > _SHOWN_NAMES else ""
            found.append(f"{looked} sequence number {numbers}{more}")
        there = tuple(self._found_reasons)
        known = set(map(str.lower, there))
        for each in sorted(self.reasons) if 0 < len(there) < _MAX_NAMES else ():
            if each.lower() not in known:
                shown = _nearest_first(each, [reason or NO_REASON for reason in there])
                found.append(f"{looked} reason {each or NO_REASON}; they have {shown}")
        return found

    @property
    def full_text(self) -> str:
        """All that a message needs: the filter alone, or the options."""
        conditions = self._conditions()
        return " ".join([*conditions, *([f'--where "{self.text}"'] if self.text else [])]) if conditions else self.text

    def _conditions(self) -> list[str]:
        """Return what a message needs beside the condition of the text, as options."""
        names = [each or NO_REASON for each in sorted(self.reasons)]
        return [
            *([f"--messages {self.state}"] if self.state else []),
            *([f"--sequence {self.sequences}"] if self.sequences else []),
            *([f"--older-than {_in_one_unit(self.older_than)}"] if self.older_than else []),
            *("--reason {}".format(each if each.isalnum() else f'"{each}"') for each in names),
        ]

    def _passes(self, message: FilteredMessage) -> bool:
        """Return whether a message has the state, number, age and reason that it needs."""
        if self.state and _state_of(message) != self.state:
            return False
        if self.sequences:
            at = self.sequences.find(message.sequence_number)
            if at is None:
                return False
            self._not_found.discard(at)
        if self.older_than:
            enqueued_at = message.enqueued_at
            if not 0 < enqueued_at < message.now_ms - self.older_than * 1000:
                return False
        if self._reasons:
            reason = _reason(message)
            if len(self._found_reasons) < _MAX_NAMES:
                self._found_reasons.add(reason)
            return reason.lower() in self._reasons
        return True

    def matches(self, message: FilteredMessage) -> bool:
        """Return whether the filter is true for a message."""
        message.reads_as_dotnet, message.uncertain = self.is_shown, ""
        if not self._passes(message):
            return False
        is_chosen, failure = self._decide(message)
        if self._has_property_body is False:
            with suppress(EvaluationFailed, ProtocolError):
                self._has_property_body = message.find_user("body")[0]
        if failure and not is_chosen:
            self.failures += 1
            self.first_failure = self.first_failure or f"message {message.sequence_number}: {failure}"
        self.chosen += is_chosen
        return is_chosen

    def _decide(self, message: FilteredMessage) -> tuple[bool, str]:
        """Return whether the filter is true, and why it could not be calculated."""
        try:
            is_chosen = self._run(message) is True
            if message.uncertain:
                # NULL chooses it with IS NULL, too, which .NET's value then prevents.
                message.reads_as_dotnet = True
                doubt = f"the decimal {message.uncertain} is one number to .NET and another by IEEE 754"
                return is_chosen and self._run(message) is True, doubt
            if self._absent and not (is_chosen or self.chosen):
                self._look_for_absent(message)
        except EvaluationFailed as error:
            return False, error.message
        return is_chosen, ""

    def _look_for_absent(self, message: FilteredMessage) -> None:
        """Note which properties of the filter the message has, and the names of those that it has instead."""
        with suppress(EvaluationFailed, ProtocolError):
            self._absent = {key: name for key, name in self._absent.items() if not message.find_user(key)[0]}
            if self._absent and len(self._found) < _MAX_NAMES:
                self._found.update(message.user_names())
            self._looked = True


def _in_one_unit(seconds: float) -> str:
    """Return a duration as a user writes it: `7d`, `90m`."""
    units = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
    size, unit = next((each for each in units if not seconds % each[0]), units[-1])
    return f"{seconds / size:.12g}{unit}"


def _nearest_first(wrong: str, found: Collection[str]) -> str:
    """Return the names that are there, the nearest one first."""
    names = nearest(wrong, found, 0)
    return ", ".join([each[:_SHOWN] for each in names[:_SHOWN_NAMES]] + ["…"] * (len(names) > _SHOWN_NAMES)) or "none"


def _state_of(message: FilteredMessage) -> str:
    """Return the state; that of a message that cannot be read is active."""
    try:
        return _state(message)
    except EvaluationFailed:
        return MessageState.ACTIVE


def _reason(message: FilteredMessage) -> str:
    """Return the dead-letter reason; "" without one, as of a message that cannot be read."""
    try:
        found = _OWN["reason"][1](message)
    except EvaluationFailed:
        return ""
    return found if isinstance(found, str) else ""


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

    def __getitem__(self, at: Any) -> Any:
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
        found: Facts = self._messages[self.at].facts
        return found

    @property
    def content(self) -> Content | None:  # type: ignore[override]  # decoded when it is read
        found: Content | None = self._messages[self.at].content
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
        return found, self.certain(name, value)


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
