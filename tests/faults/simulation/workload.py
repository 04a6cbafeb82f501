"""What is stranded in a schedule: messages of every kind, where each should go, and what else may become of it."""

import uuid
from copy import copy
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from sbpair.amqp import codec
from sbpair.amqp.message import APPLICATION_PROPERTIES, DATA, MESSAGE_ANNOTATIONS, PROPERTIES, Sections, section
from sbpair.amqp.types import Described, Int, Long, Map, Symbol, Timestamp, ULong, Value, text_of
from sbpair.drill.drill_messages import OriginalMessage, originals
from sbpair.timespan import TICKS_PER_MS

PLAIN, SESSION, PARTITIONED, PARTITIONED_SESSION, DUPLICATES, PARTITIONED_DUPLICATES, NARROW, TOPIC = (
    "plain",
    "session",
    "partitioned",
    "partitioned-session",
    "duplicates",
    "partitioned-duplicates",
    "narrow",
    "topic",
)
KINDS: Final = (
    *(PLAIN, PLAIN, SESSION, PARTITIONED, PARTITIONED_SESSION, DUPLICATES),
    *(PARTITIONED_DUPLICATES, NARROW, TOPIC),
)
NAMES: Final = ("orders", "billing/invoices", "telemetry", "Mixed.Case_1", "a/b/c")

INVALID, REFUSED, MISSING = "InvalidBacklogMessage", "RefusedByPrimary", "DestinationNotFound"
EXPIRED = "TTLExpiredException"
NARROW_KILOBYTES: Final = 64
"""How large a message may be that a narrow destination takes."""

_MANY_FRAMES = 70_000
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Goal:
    """A queue or a topic of the primary."""

    name: str
    kind: str

    @property
    def wants_session(self) -> bool:
        return self.kind in (SESSION, PARTITIONED_SESSION)

    @property
    def is_partitioned(self) -> bool:
        return self.kind in (PARTITIONED, PARTITIONED_SESSION, PARTITIONED_DUPLICATES)

    @property
    def detects_duplicates(self) -> bool:
        return self.kind in (DUPLICATES, PARTITIONED_DUPLICATES)


@dataclass(frozen=True, slots=True)
class Stranded:
    """A message and the backlog queue that it is in. `doom` is the reason for which it has to be dead-lettered."""

    id: str
    queue: int
    original: OriginalMessage
    payload: bytes
    doom: str | None = None

    def __str__(self) -> str:
        doom = f", which has to end as {self.doom}" if self.doom else ""
        return f"{self.id} of {len(self.payload)} bytes in queue {self.queue} to {self.original.destination}{doom}"


def goals(random: Random) -> tuple[Goal, ...]:
    names = random.sample(NAMES, random.randint(1, len(NAMES)))
    return tuple(Goal(name, random.choice(KINDS)) for name in names)


def messages(
    random: Random, count: int, queues: int, to: tuple[Goal, ...], *, now_ms: int, flawed: float = 0.05
) -> list[Stranded]:
    """`count` messages; about so many of them, `flawed`, can never arrive."""
    made = originals(count, now_ms=now_ms, seed=random.getrandbits(32))
    return [_stranded(random, each, queues, to, flawed) for each in made]


def _stranded(random: Random, original: OriginalMessage, queues: int, to: tuple[Goal, ...], flawed: float) -> Stranded:
    goal = random.choice(to)
    if not (goal.wants_session and random.random() < 0.5) and random.random() < 0.5:
        # Most messages of most applications are small and alike: let some be.
        original = replace(original, session_id=None, scheduled_at=None, sections=_simple(random, original))
    doom = None
    if goal.wants_session and original.session_id is None:
        if random.random() < flawed:
            doom = REFUSED
        else:
            original = replace(original, session_id=f"session-{original.number % 3}")
    identity = _identity(random, original)
    properties = _properties(original.sections, identity, original.session_id)
    annotations = _annotations(original)
    sections = _changed(original.sections, properties=properties, message_annotations=annotations)
    original = replace(original, destination=goal.name, sections=sections)
    aliases = _aliases(original)
    if doom is None and random.random() < flawed:
        doom, aliases = INVALID, random.choice(_BREAKS)(aliases)
    payload = _in_backlog(original, identity, aliases)
    if doom is None and random.random() < flawed / 3:
        doom, payload = INVALID, _corrupt(random, payload)
    if doom is None and goal.kind == NARROW and len(original.sections.join()) > NARROW_KILOBYTES * 1024:
        doom = REFUSED
    return Stranded(text_of(identity) or "", random.randrange(queues), original, payload, doom)


def moved(stranded: Stranded, goal: Goal) -> Stranded:
    """Return a message as it waits in an ordinary queue, long enough that the service does not end it there.

    What no backlog could deliver is delivered, unless it is too large: a move needs no aliases.
    """
    original = replace(stranded.original, scheduled_at=None)
    ttl_ms = (original.ttl_ticks or 0) // TICKS_PER_MS
    if not DAY_MS <= ttl_ms < 2**32:
        original, ttl_ms = replace(original, ttl_ticks=None), 0
    header = original.sections.read_header()
    header = replace(header, ttl=ttl_ms or None)
    payload = _changed(original.sections, header=header.encode()).join()
    large = goal.kind == NARROW and len(original.sections.join()) > NARROW_KILOBYTES * 1024
    doom = REFUSED if large or stranded.doom == REFUSED else None
    return replace(stranded, original=original, payload=payload, doom=doom)


def _simple(random: Random, original: OriginalMessage) -> Sections:
    size = _MANY_FRAMES if random.random() < 0.02 else random.randrange(1, 1_000)
    return Sections(properties=original.sections.properties, body=section(DATA, codec.encode(random.randbytes(size))))


def _identity(random: Random, original: OriginalMessage) -> Value:
    """Mostly text; of the other types that an id can have, some."""
    if random.random() < 0.9:
        return original.message_id
    odd = random.choice((ULong, uuid.UUID, bytes))
    number = original.number + (random.getrandbits(40) << 16)
    if odd is ULong:
        return ULong(number)
    return uuid.UUID(int=number) if odd is uuid.UUID else number.to_bytes(12)


def _properties(sections: Sections, identity: Value, session_id: str | None) -> bytes:
    fields = list(codec.decode_all(sections.properties).value)
    fields += [None] * (13 - len(fields))
    fields[0], fields[10] = identity, session_id
    return section(PROPERTIES, codec.encode(fields))


def _annotations(original: OriginalMessage) -> bytes:
    """A partition key has to be the session id where there is one; of those without, some have one."""
    had = original.sections.message_annotations
    if not had:
        return had
    pairs = [
        (key, original.session_id or value if key == "x-opt-partition-key" else value)
        for key, value in original.sections.read_message_annotations().pairs
    ]
    return section(MESSAGE_ANNOTATIONS, codec.encode(Map(pairs)))


Pairs = list[tuple[Value, Value]]


def _aliases(original: OriginalMessage) -> Pairs:
    pairs: Pairs = [("x-ms-path", original.destination)]
    if original.session_id is not None:
        pairs.append(("x-ms-sessionid", original.session_id))
    if original.ttl_ticks is not None:
        pairs.append(("x-ms-timetolive", Described(Symbol("com.microsoft:timespan"), Long(original.ttl_ticks))))
    if original.scheduled_at is not None:
        pairs.append(("x-ms-scheduledenqueuetimeutc", Timestamp(original.scheduled_at)))
    return pairs


def _with(name: str, value: Value) -> object:
    return lambda pairs: [*[pair for pair in pairs if pair[0] != name], (name, value)]


_BREAKS: Final = (
    lambda _: [],
    lambda pairs: pairs[1:],
    _with("x-ms-path", Int(7)),
    _with("x-ms-path", ""),
    _with("x-ms-path", "../up"),
    _with("x-ms-path", "x" * 300),
    _with("x-ms-path", None),
    _with("x-ms-sessionid", Int(1)),
    _with("x-ms-timetolive", "PT1M"),
    _with("x-ms-scheduledenqueuetimeutc", "tomorrow"),
)


def _in_backlog(original: OriginalMessage, identity: Value, aliases: Pairs) -> bytes:
    pairs = [*original.sections.read_application_properties().pairs, *aliases]
    return _changed(
        original.sections,
        properties=_properties(original.sections, identity, None),
        application_properties=section(APPLICATION_PROPERTIES, codec.encode(Map(pairs))) if pairs else b"",
    ).join()


def _corrupt(random: Random, payload: bytes) -> bytes:
    """Application properties that end too soon, or have a key too many."""
    broken = random.choice((b"\xc1\x03\x02\xa1\x05", b"\xc1\x04\x01\xa1\x01a", b"\xc1\x02\x02\x40"))
    return _changed(Sections.split(payload), application_properties=section(APPLICATION_PROPERTIES, broken)).join()


def _changed(sections: Sections, **others: bytes) -> Sections:
    changed = copy(sections)
    for name, raw in others.items():
        setattr(changed, name, raw)
    return changed
