"""A pair's tiers, and the queues of its backlog, as far as they can be read. An assumption replaces all else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.azure import open_namespace
from sbpair.errors import NetworkRefused, NotAuthorized, Unavailable
from sbpair.model.tiers import BASIC, MEGABYTES, STANDARD, Capacity
from sbpair.planning.outage_cost import BacklogRoom, PairCapacity, basic_refused, room_of

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.model.queues import QueueState


@dataclass(slots=True)
class LiveBacklog:
    """The tiers and the room of a pair as read, and a note for each assumption."""

    capacity: PairCapacity
    room: BacklogRoom
    notes: list[str] = field(default_factory=list)


async def read_backlog(pair: Pair) -> LiveBacklog:
    """Read a pair's tiers and backlog queues. Needs Manage; what cannot be read is assumed, with a note.

    Raises UsageError if the secondary is a Basic namespace, and AccessError for a wrong key.
    """
    notes: list[str] = []
    primary, _ = await _read(pair.primary, "", notes)
    secondary, queues = await _read(pair.secondary, backlog.prefix(pair.primary.name), notes)
    if secondary.tier is BASIC:
        raise basic_refused(pair.secondary.name)
    room = room_of(pair.backlog_queues)
    if queues:
        megabytes = sum(each.spec.max_size_in_megabytes for each in queues)
        used = sum(each.usage.size_bytes or 0 for each in queues if each.usage)
        partitioned = any(each.partitioned for each in queues)
        room = BacklogRoom(len(queues), megabytes * MEGABYTES * 1024, used, partitioned)
    elif queues is not None:
        notes.append(f"{pair.secondary.name} has no backlog queues yet; {room.queues} are assumed")
    return LiveBacklog(PairCapacity(secondary, primary), room, notes)


async def _read(endpoint: Endpoint, prefix: str, notes: list[str]) -> tuple[Capacity, list[QueueState] | None]:
    """Return a namespace's tier, and its queues under `prefix`; None if they are unknown."""
    try:
        async with open_namespace(endpoint) as control:
            capacity = await control.capacity()
            return capacity, await control.list_under(prefix, counts=True) if prefix else None
    except (NetworkRefused, NotAuthorized, Unavailable) as error:
        notes.append(f"{endpoint.name} could not be read, and {STANDARD.name} is assumed: {error.message}")
        return Capacity(STANDARD), None
