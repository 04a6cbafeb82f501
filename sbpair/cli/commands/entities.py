"""`sbpair entities`: lists the queues, topics and subscriptions of namespaces with their counts."""

import asyncio
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple

from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import NamespaceSelection, argument, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.progress.reporting import LineProgress
from sbpair.cli.render import table
from sbpair.cli.render.screen import Screen, grouped, plural, share, size
from sbpair.errors import ExitCode, SbpairError, nearest_hint
from sbpair.management.audit_findings import Unseen, utilisation
from sbpair.model.document import OMITTED, SPREAD, document, encoded
from sbpair.model.pair import SIDES, Endpoint, Side
from sbpair.model.queues import Counts, QueueState

PAGE_PAUSE = 0.05
"""A page of 100 entities costs 10 of the 1 000 credits that a Standard namespace has a second."""


class ListedEntity(NamedTuple):
    """A queue, topic or subscription."""

    namespace: Annotated[str, "Name of the namespace"]
    side: Annotated[str, "The namespace's side: primary, secondary, or its own name"]
    kind: Annotated[str, "Kind; empty if unknown without Manage", {"enum": ["queue", "topic", "subscription", ""]}]
    path: Annotated[str, "Its path"]
    counts: Annotated[Counts | None, SPREAD]
    dead: Annotated[int | None, "Dead letters, those that could not be forwarded included; null if unknown"]
    size_bytes: Annotated[int | None, "Bytes in use; null of a subscription, whose topic has them"]
    fill_ratio: Annotated[float | None, "Used share of the size, from 0 to 1"]
    status: Annotated[str, "Status", {"examples": ["Active", "SendDisabled"]}]
    availability: Annotated[str | None, "Availability, such as Limited; absent if Available", OMITTED]
    forward_to: Annotated[str, "Where its messages are forwarded to; may be empty"]
    forward_dead_lettered_messages_to: Annotated[str, "The same of its dead letters"]


@document("sbpair/entities/1", "entities", "unread")
class EntityList:
    """Entities with their counts. JSON Lines have one entity or unread namespace each."""

    entities: Annotated[tuple[ListedEntity, ...], "Entities, in the order of --sort"]
    unread: Annotated[tuple[Unseen, ...], "Namespaces that could not be read"]


LESS = ("KIND", "TRANSFER", "SIZE")
LEAST = (*LESS, "FORWARDS TO", "SCHEDULED", "FULL", "STATUS")
"""Columns that a terminal leaves out if they do not fit, in this order; those of one that is narrow."""

NARROW = 60

SORTED_BY = {
    "name": "",
    "active": "active",
    "dead": "dead",
    "scheduled": "scheduled",
    "transfer": "transfer",
    "size": "size_bytes",
    "full": "fill_ratio",
}


def command(
    *,
    pattern: str = argument(
        "[PATTERN]", "[SIDE:]PATTERN of their paths, in any case: 'orders*'", default="*", complete=backlog_queues
    ),
    side: Side | None = option("--side SIDE", "primary or secondary [default: both]", excludes="--namespace"),
    every: bool = flag("--all", "Subscriptions, too: another page for each topic"),
    with_dead_letters: bool = flag("--with-dead-letters", "Only those with dead letters"),
    sort: Literal["name", "active", "dead", "scheduled", "transfer", "size", "full"] = option(
        "--sort KEY", "name, or the largest first: active, dead, scheduled, transfer, size or full", default="name"
    ),
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """List the queues and topics of both namespaces with their counts.

    These are the entities that are there, of any application; provision and export read --entities FILE, a TOML file
    with those that shall be there. ACTIVE counts locked messages, too, TRANSFER those to be forwarded; DEAD has the
    dead letters of both; FULL is the used share of the size. Reads the feed in pages of 100 entities, each of 10
    credits, at most 20 pages a second: a fifth of a Standard namespace. Needs Manage; with the key of an entity
    (EntityPath) it lists that entity, without counts if they need Manage.

    Examples:
      sbpair entities --with-dead-letters --all
      sbpair entities 'orders*' --sort active
      sbpair entities --side secondary -o jsonl

    Exit codes: 0 listed, even if there are none; 3 not all was read; 5 no Manage claim

    See also: sbpair help management
    """
    reach = reach_of(connection, screen)
    given, wanted = reach.split(pattern, side or connection.namespace)
    endpoints = {each: reach.endpoint(each) for each in ([given] if given else SIDES)}
    errors: dict[str, SbpairError] = {}
    with LineProgress(screen, "reading entities", animated=screen.animated):
        listed = run(_read_all(endpoints, errors, subscriptions=every))
    if len(errors) == len(endpoints) and not listed:
        raise next(iter(errors.values()))
    chosen = [each for each in listed if fnmatchcase(each.path.lower(), wanted.lower())]
    shown = [each for each in chosen if each.dead != 0 or not with_dead_letters]
    shown.sort(key=lambda each: (-(encoded(each).get(SORTED_BY[sort]) or 0), each.path.lower()))
    unread = tuple(Unseen(name, error.message) for name, error in errors.items())
    optional = LEAST if (table.stdout_layout().width or NARROW) < NARROW else LESS
    lines = table.filled_columns(list(map(_cells, shown)), varying="NAMESPACE", optional=optional)
    screen.show(EntityList(tuple(shown), unread), lines)
    for each in unread:
        screen.warn(f"{each.name}: {each.reason}")
    screen.hints(errors.values())
    if not chosen:
        near = nearest_hint(wanted.lower(), [each.path.lower() for each in listed], "--all adds subscriptions")
        screen.say(f"nothing matches {wanted!r}; {near}" if listed else "no queues and no topics")
    else:
        screen.say(_total(shown))
    if with_dead_letters and not every and any(each.kind == "topic" for each in listed):
        screen.say("subscriptions were not read: add --all")
    return ExitCode.PARTIAL_OR_FINDINGS if errors else ExitCode.DONE


async def _read_all(
    endpoints: Mapping[str, Endpoint], errors: dict[str, SbpairError], *, subscriptions: bool
) -> list[ListedEntity]:
    """Return the entities of all namespaces, and add those that could not be read, or not all, to `errors`."""
    from sbpair.azure.atom import open_atom

    async def read(side: str, endpoint: Endpoint) -> list[ListedEntity]:
        try:
            async with open_atom(endpoint, page_pause=PAGE_PAUSE) as namespace:
                found, lacking = await namespace.list_known(subscriptions=subscriptions)
        except SbpairError as error:
            errors[endpoint.name] = error
            return []
        if lacking is not None:
            errors[endpoint.name] = lacking
        return [_listed(endpoint.name, side, *each) for each in found]

    return [each for found in await asyncio.gather(*(read(*each) for each in endpoints.items())) for each in found]


def _listed(namespace: str, side: str, kind: str, state: QueueState) -> ListedEntity:
    counts, spec, fill = state.counts, state.spec, utilisation(state, 0, None)
    sizes = (None, None) if kind == "subscription" else (fill.size_bytes, fill.fill_ratio)
    dead = counts.dead_letter + counts.transfer_dead_letter if counts else None
    forwards = (spec.forward_to, spec.forward_dead_lettered_messages_to)
    own = (counts, dead, *sizes, spec.status if counts else "", state.availability, *forwards)
    return ListedEntity(namespace, side, kind, spec.path, *own)


def _cells(each: ListedEntity) -> dict[str, Any]:
    counts = each.counts
    dead_to = each.forward_dead_lettered_messages_to and f"dead letters: {each.forward_dead_lettered_messages_to}"
    return {
        "NAMESPACE": each.namespace,
        "KIND": each.kind,
        "NAME": each.path,
        "ACTIVE": counts.active if counts else "?",
        "DEAD": each.dead if counts else "?",
        "SCHEDULED": counts.scheduled if counts else "?",
        "TRANSFER": counts.transfer if counts else 0,
        "SIZE": "" if each.size_bytes is None else size(each.size_bytes),
        "FULL": share(each.fill_ratio),
        "STATUS": ", ".join(filter(None, (each.status.replace("Active", ""), each.availability))),
        "FORWARDS TO": "; ".join(filter(None, (each.forward_to, dead_to))),
    }


def _total(entities: Sequence[ListedEntity]) -> str:
    active, dead = sum(each.counts.active for each in entities if each.counts), sum(each.dead or 0 for each in entities)
    if entities and not any(each.counts for each in entities):
        return "counts are unknown; with Listen, to count messages: sbpair peek ENTITY --max all"
    if not dead:
        return f"{grouped(active)} active, no dead letters" if entities else "no dead letters"
    most = max(entities, key=lambda each: each.dead or 0)
    why = next_command("redrive", f"{most.side}:{most.path}" if most.side in SIDES else most.path, "--by-reason")
    return f"{grouped(active)} active, {plural(dead, 'dead letter')}; to see why: {why}"
