"""Backlog queues: their names, and the exact description that the original gave them.

Pure. What is written here is read by clients that nobody can change any more: facts, not choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sbpair.amqp.types import Described, Long, Symbol, Timestamp, Value, type_of
from sbpair.errors import NameInvalid
from sbpair.model.durations import TIMESPAN_MAX
from sbpair.model.queues import QueueSpec

# Names ------------------------------------------------------------------------------------------

TRANSFER_SEGMENT = "x-servicebus-transfer"
PATH_LIMIT = 260

_SEGMENT = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# No leading zeros: `…/07` is a queue that no client ever asks for.
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def prefix(primary: str) -> str:
    """What every backlog queue of `primary` begins with, the last slash included."""
    return f"{primary}/{TRANSFER_SEGMENT}/"


def queue_path(primary: str, index: int) -> str:
    """`<primary>/x-servicebus-transfer/<index>`. Raises NameInvalid where Service Bus would refuse it."""
    if index < 0:
        raise NameInvalid(f"a backlog queue cannot have the index {index}", hint="indexes start at 0")
    if not is_segment(primary):
        raise NameInvalid(
            f"{primary!r} cannot be the name of a namespace",
            hint="use the first label of its host name: contoso for contoso.servicebus.windows.net",
        )
    path = f"{prefix(primary)}{index}"
    check_path(path)
    return path


def under_prefix(primary: str, path: str) -> bool:
    """Whether `path` is one of `primary`'s backlog queues, or is named like one. Case does not count."""
    return path.lower().startswith(prefix(primary).lower())


def index_of(primary: str, path: str) -> int | None:
    """The index of a backlog queue of `primary`; None for every other path. Case does not count."""
    if not under_prefix(primary, path):
        return None
    rest = path[len(prefix(primary)) :]
    return int(rest) if _INDEX.fullmatch(rest) else None


def primary_of(path: str) -> str | None:
    """The primary that a backlog path names; None where `path` is not a backlog path at all."""
    primary, marker, _rest = path.partition("/")
    return primary if marker and under_prefix(primary, path) else None


def is_segment(text: str) -> bool:
    """Whether `text` may stand between two slashes of a path."""
    return bool(_SEGMENT.fullmatch(text)) and text not in (".", "..")


def check_path(path: str, *, shorten: str = "the namespace's name must be shorter") -> None:
    """Raise NameInvalid for a path that Service Bus would refuse. `shorten` is the advice where it is too long."""
    if len(path) > PATH_LIMIT:
        raise NameInvalid(
            f"the path {path[:40]}… has {len(path)} characters, and Service Bus allows {PATH_LIMIT}",
            hint=shorten,
        )
    for segment in path.split("/"):
        if not is_segment(segment):
            raise NameInvalid(
                f"{path!r} cannot be the path of a queue or a topic",
                hint="segments are letters, digits, '.', '-' and '_', with one '/' between them",
            )


# The description --------------------------------------------------------------------------------


def queue_spec(primary: str, index: int) -> QueueSpec:
    """The description that the original's clients gave; all the rest is the service's default."""
    return QueueSpec(
        path=queue_path(primary, index),
        lock_duration="PT1M",
        max_size_in_megabytes=5120,
        max_delivery_count=2**31 - 1,
        default_message_time_to_live=TIMESPAN_MAX,
        auto_delete_on_idle=TIMESPAN_MAX,
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )


# The ping ---------------------------------------------------------------------------------------

PING_TYPE = "application/vnd.ms-servicebus-ping"
PING_TTL_MS = 1_000


# The aliases ------------------------------------------------------------------------------------
#
# What a message had to give up on its way into the backlog, kept in its application properties.

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
ALIASES = frozenset((PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED))

TIMESPAN = Symbol("com.microsoft:timespan")
TICKS_PER_MS = 10_000


@dataclass(frozen=True, slots=True)
class Aliases:
    """What the aliases of one message say. Ticks are .NET's, of 100 ns; `scheduled_at` is milliseconds since 1970."""

    path: str
    session_id: str | None = None
    ttl_ticks: int | None = None
    scheduled_at: int | None = None


class AliasError(ValueError):
    """An alias is missing, or of the wrong type: the message can go nowhere. The text says which, and why."""


def read_aliases(properties: Iterable[tuple[Value, Value]]) -> Aliases:
    """The aliases among application properties. Raises AliasError.

    A DateTime under `x-ms-path` is the schedule: the feature's documentation says so, wrongly, and a client may have
    been written by it. A string there is always the path.
    """
    found: dict[str, Value] = {}
    for key, value in properties:
        if key in ALIASES:
            name = SCHEDULED if key == PATH and isinstance(value, Timestamp) else str(key)
            found.setdefault(name, alias_value(name, value))
    if PATH not in found:
        raise AliasError(f"the message has no {PATH}, and so no destination")
    return Aliases(found[PATH], found.get(SESSION_ID), found.get(TIME_TO_LIVE), found.get(SCHEDULED))


def write_aliases(aliases: Aliases) -> dict[str, Value]:
    """The application properties that say it, with the names and types of the original's clients."""
    written: dict[str, Value] = {PATH: aliases.path}
    if aliases.session_id is not None:
        written[SESSION_ID] = aliases.session_id
    if aliases.ttl_ticks is not None:
        written[TIME_TO_LIVE] = Described(TIMESPAN, Long(aliases.ttl_ticks))
    if aliases.scheduled_at is not None:
        written[SCHEDULED] = Timestamp(aliases.scheduled_at)
    return written


def alias_value(name: str, value: Value) -> str | int:
    """What one alias says, in the units of Aliases. Raises AliasError where its type is wrong."""
    if name == TIME_TO_LIVE:
        return _ticks(value)
    if name == SCHEDULED:
        if not isinstance(value, Timestamp):
            raise AliasError(f"{name} is {_kind(value)} and not a timestamp")
        return int(value)
    if type_of(value) is not str:
        raise AliasError(f"{name} is {_kind(value)} and not a string")
    if name == PATH and not value.strip("/ "):
        raise AliasError(f"{name} is empty")
    return str(value)


def _ticks(value: Value) -> int:
    if not (isinstance(value, Described) and value.descriptor == TIMESPAN and isinstance(value.value, Long)):
        raise AliasError(f"{TIME_TO_LIVE} is {_kind(value)} and not a {TIMESPAN}")
    if value.value <= 0:
        raise AliasError(f"{TIME_TO_LIVE} is {int(value.value)} ticks, and a time to live is more than none")
    return int(value.value)


def _kind(value: Value) -> str:
    if isinstance(value, Described):
        return f"described as {str(value.descriptor)[:40]!r}"
    name = type_of(value).__name__
    return f"of type {_AMQP_NAMES.get(name, name.lower())}"


_AMQP_NAMES = {"NoneType": "null", "bytes": "binary", "float": "double", "bool": "boolean", "str": "string"}
