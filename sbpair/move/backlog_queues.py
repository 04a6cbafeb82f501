"""Lists the backlog queues to empty. Reads only."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sbpair import backlog
from sbpair.errors import EntityMissing, NotAuthorized
from sbpair.move.events import QueuesFound
from sbpair.move.message.dead_letters import dead_letter_path, parent_path

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.pair import Ends, Pair

log = logging.getLogger(__name__)


async def find(pair: Pair, control: AtomNamespace) -> QueuesFound:
    """Return every queue under the prefix, stranded ones included; without the Manage claim, 0 to the count - 1."""
    primary = pair.primary.name
    wanted = [backlog.queue_path(primary, index) for index in range(pair.backlog_queues)]
    try:
        states = await control.list_under(backlog.prefix(primary))
    except NotAuthorized:
        log.info("no Manage claim on %s: using queues 0 to %d", pair.secondary.name, pair.backlog_queues - 1)
        return QueuesFound(tuple(wanted), (), managed=False)
    queues = sorted((state.spec.path for state in states), key=lambda path: _sort_key(primary, path))
    known = {path.lower() for path in wanted}
    return QueuesFound(tuple(queues), tuple(path for path in queues if path.lower() not in known), managed=True)


async def find_sources(
    pair: Ends, source: str | None, control: AtomNamespace, *, dead_letters: bool = False
) -> QueuesFound:
    """Return one source, and whether its messages can be counted; if it is None, the backlog queues of the pair.

    With `dead_letters`, returns the dead-letter queues of these instead. Raises EntityMissing.
    """
    if source is None:
        found = await find(cast("Pair", pair), control)
        if not dead_letters:
            return found
        return replace(found, queues=tuple(map(dead_letter_path, found.queues)), stranded=())
    try:
        await control.counts(parent_path(source))
    except NotAuthorized:
        log.info("no Manage claim on the namespace of %s", source)
        return QueuesFound((source,), (), managed=False)
    return QueuesFound((source,), (), managed=True)


def none_found(pair: Ends) -> EntityMissing:
    return EntityMissing(
        f"{pair.secondary.name} has no backlog queue of {pair.primary.name}",
        entity=backlog.prefix(pair.primary.name),
        hint="check the names of both namespaces, or create the queues with sbpair provision",
    )


def _sort_key(primary: str, path: str) -> tuple[bool, int, str]:
    index = backlog.index_of(primary, path)
    return (index is None, index or 0, path)
