"""The sources of a run: one entity, or the backlog queues of a pair or their dead letters, as they are listed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.errors import EntityMissing, NotAuthorized
from sbpair.model.message_state import dead_letter_path, parent_path
from sbpair.move.events import QueuesFound

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.pair import Ends
    from sbpair.syphon.run_request import RunRequest

log = logging.getLogger(__name__)


async def find_sources(request: RunRequest, control: AtomNamespace) -> QueuesFound:
    """Return the source, and whether its messages can be counted; if it is None, the queues of the pair's backlog.

    Raises EntityMissing.
    """
    if request.source is None:
        found = await find_backlog_queues(request.ends, request.backlog_queues, control)
        if not request.takes_dead_letters:
            return found
        return replace(found, queues=tuple(map(dead_letter_path, found.queues)), stranded=())
    try:
        await control.counts(parent_path(request.source))
    except NotAuthorized:
        log.info("no Manage claim on the namespace of %s", request.source)
        return QueuesFound((request.source,), (), managed=False)
    return QueuesFound((request.source,), (), managed=True)


async def find_backlog_queues(ends: Ends, count: int, control: AtomNamespace) -> QueuesFound:
    """Return every queue under the prefix, stranded ones included; without the Manage claim, 0 to `count` - 1."""
    primary = ends.backlog_of
    wanted = [backlog.queue_path(primary, index) for index in range(count)]
    try:
        states = await control.list_under(backlog.prefix(primary), counts=True)
    except NotAuthorized:
        log.info("no Manage claim on %s: using queues 0 to %d", ends.source.name, count - 1)
        return QueuesFound(tuple(wanted), (), managed=False)
    queues = sorted((state.spec.path for state in states), key=lambda path: _sort_key(primary, path))
    known = {path.lower() for path in wanted}
    stranded = tuple(path for path in queues if path.lower() not in known)
    dead_letters = sum(state.counts.dead_letter for state in states if state.counts)
    closed = [each.spec for each in states if each.spec.status in ("Disabled", "ReceiveDisabled")]
    disabled = tuple(f"{each.path} is {each.status}" for each in closed)
    return QueuesFound(tuple(queues), stranded, managed=True, dead_letters=dead_letters, disabled=disabled)


def none_found(ends: Ends) -> EntityMissing:
    """Return the error of a pair without a backlog queue."""
    return EntityMissing(
        f"{ends.source.name} has no backlog queue of {ends.backlog_of}",
        entity=backlog.prefix(ends.backlog_of),
        hint="check the names of both namespaces, or create the queues with sbpair provision",
    )


def _sort_key(primary: str, path: str) -> tuple[bool, int, str]:
    index = backlog.index_of(primary, path)
    return (index is None, index or 0, path)
