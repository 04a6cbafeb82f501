"""Backlog queues: their names, and the exact description that the original library gave them.

Pure. Existing clients read these values: they are facts, not choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sbpair.amqp.message import Header, Properties, Sections, data_body
from sbpair.amqp.types import Described, Long, Symbol, Timestamp, Value, amqp_type_name
from sbpair.errors import NameInvalid, UsageError
from sbpair.model.queues import QueueSpec
from sbpair.timespan import TIMESPAN_MAX

# Names ------------------------------------------------------------------------------------------

TRANSFER_SEGMENT = "x-servicebus-transfer"
PATH_LIMIT = 260

_SEGMENT = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# No leading zeros: no client uses `…/07`.
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def prefix(primary: str) -> str:
    """Return the common prefix of the backlog queues of `primary`, with the last slash."""
    return f"{primary}/{TRANSFER_SEGMENT}/"


def queue_path(primary: str, index: int) -> str:
    """Return `<primary>/x-servicebus-transfer/<index>`. Raises NameInvalid for a path that Service Bus rejects."""
    if index < 0:
        raise NameInvalid(f"expected an index of 0 or more, got {index}", hint="backlog queues are numbered from 0")
    if not is_segment(primary):
        raise NameInvalid(
            f"{primary!r} is not a valid namespace name",
            hint="use the first label of its host name: contoso for contoso.servicebus.windows.net",
        )
    path = f"{prefix(primary)}{index}"
    check_path(path)
    return path


def under_prefix(primary: str, path: str) -> bool:
    """Return whether `path` is under the prefix of `primary`. Case is ignored."""
    return path.lower().startswith(prefix(primary).lower())


def index_of(primary: str, path: str) -> int | None:
    """Return the index of a backlog queue of `primary`; None for every other path. Case is ignored."""
    if not under_prefix(primary, path):
        return None
    rest = path[len(prefix(primary)) :]
    return int(rest) if _INDEX.fullmatch(rest) else None


def primary_of(path: str) -> str | None:
    """Return the primary in a backlog path; None for any other path."""
    primary, marker, _rest = path.partition("/")
    return primary if marker and under_prefix(primary, path) else None


def is_segment(text: str) -> bool:
    """Return whether `text` is a valid segment of a path."""
    return bool(_SEGMENT.fullmatch(text)) and text not in (".", "..")


def is_path(path: str) -> bool:
    """Return whether Service Bus takes a path."""
    return len(path) <= PATH_LIMIT and all(map(is_segment, path.split("/")))


def check_path(path: str, *, shorten: str = "shorten the name of the namespace") -> None:
    """Raise NameInvalid for a path that Service Bus rejects. `shorten` is the hint if it is too long."""
    if len(path) > PATH_LIMIT:
        raise NameInvalid(
            f"the path {path[:40]}… has {len(path)} characters; Service Bus allows {PATH_LIMIT}", hint=shorten
        )
    for segment in path.split("/"):
        if not is_segment(segment):
            raise NameInvalid(
                f"{path!r} is not a valid path of a queue or topic",
                hint="use segments of letters, digits, '.', '-' and '_', separated by one '/'",
            )


# The description --------------------------------------------------------------------------------


def queue_spec(primary: str, index: int) -> QueueSpec:
    """Return the description by the original's clients; all other properties are the service's defaults."""
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


def ping(name: str) -> Sections:
    """Return a ping with this id and session. It shows whether an entity accepts messages, and no receiver gets it."""
    properties = Properties(message_id=name, content_type=PING_TYPE, group_id=name)
    return Sections(header=Header(ttl=PING_TTL_MS).encode(), properties=properties.encode(), body=data_body(b""))


# The aliases ------------------------------------------------------------------------------------
#
# Properties that a message gave up on its way into the backlog, kept as application properties.

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
ALIASES = frozenset((PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED))

TIMESPAN = Symbol("com.microsoft:timespan")

MAX_ALIASES_BYTES = 1024
"""More than the aliases of a message have: its path has up to 260 bytes, and its session 128 characters."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """The values of a message's aliases. Ticks are .NET's, of 100 ns; `scheduled_at` is milliseconds since 1970."""

    path: str
    session_id: str | None = None
    ttl_ticks: int | None = None
    scheduled_at: int | None = None


class AliasError(ValueError):
    """An alias is missing or has the wrong type, so the message has no destination. The text is the reason."""


def read_aliases(properties: Iterable[tuple[Value, Value]]) -> Aliases:
    """Read the aliases among application properties. Raises AliasError.

    A DateTime under `x-ms-path` is the schedule: the feature's documentation wrongly describes it so, and clients may
    follow it. A string there is always the path.
    """
    found: dict[str, Value] = {}
    for key, value in properties:
        if key in ALIASES:
            name = SCHEDULED if key == PATH and isinstance(value, Timestamp) else str(key)
            found.setdefault(name, alias_value(name, value))
    if PATH not in found:
        raise AliasError(f"the message has no {PATH}, so no destination")
    return Aliases(found[PATH], found.get(SESSION_ID), found.get(TIME_TO_LIVE), found.get(SCHEDULED))


def check_unreserved(name: object) -> None:
    """Raise UsageError for the name of an alias: a client's message cannot have such a property."""
    if isinstance(name, str) and name in ALIASES:
        raise UsageError(
            f"the message already has a property {name}",
            hint="paired namespaces reserve that name: rename the property",
        )


def write_aliases(aliases: Aliases) -> dict[str, Value]:
    """Return the application properties of the aliases, with the names and types of the original's clients."""
    written: dict[str, Value] = {PATH: aliases.path}
    if aliases.session_id is not None:
        written[SESSION_ID] = aliases.session_id
    if aliases.ttl_ticks is not None:
        written[TIME_TO_LIVE] = Described(TIMESPAN, Long(aliases.ttl_ticks))
    if aliases.scheduled_at is not None:
        written[SCHEDULED] = Timestamp(aliases.scheduled_at)
    return written


def alias_value(name: str, value: Value) -> str | int:
    """Return the value of one alias, in the units of Aliases. Raises AliasError for a wrong type."""
    if name == TIME_TO_LIVE:
        return _ticks(value)
    if name == SCHEDULED:
        if not isinstance(value, Timestamp):
            raise AliasError(f"{name} is {_kind(value)} and not a timestamp")
        return int(value)
    if type(value) is not str:
        raise AliasError(f"{name} is {_kind(value)} and not a string")
    if name == PATH and not value.strip("/ "):
        raise AliasError(f"{name} is empty")
    return str(value)


def _ticks(value: Value) -> int:
    if not (isinstance(value, Described) and value.descriptor == TIMESPAN and isinstance(value.value, Long)):
        raise AliasError(f"{TIME_TO_LIVE} is {_kind(value)} and not a {TIMESPAN}")
    if value.value <= 0:
        raise AliasError(f"{TIME_TO_LIVE} is {int(value.value)} ticks, and must be more than 0")
    return int(value.value)


def _kind(value: Value) -> str:
    if isinstance(value, Described):
        return f"described as {str(value.descriptor)[:40]!r}"
    return f"of type {amqp_type_name(value)}"
