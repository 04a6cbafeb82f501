"""Backlog queues: their names, and the exact description that the original gave them.

Pure. What is written here is read by clients that nobody can change any more: facts, not choices.
"""

from __future__ import annotations

import re

from sbpair.errors import NameInvalid
from sbpair.model import TIMESPAN_MAX, QueueSpec

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


def check_path(path: str) -> None:
    """Raise NameInvalid for a path that Service Bus would refuse."""
    if len(path) > PATH_LIMIT:
        raise NameInvalid(
            f"the path {path[:40]}… has {len(path)} characters, and Service Bus allows {PATH_LIMIT}",
            hint="the namespace's name must be shorter",
        )
    for segment in path.split("/"):
        if not is_segment(segment):
            raise NameInvalid(
                f"{path!r} cannot be the path of a queue",
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
