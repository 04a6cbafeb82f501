"""`sbpair deadletters list` and `show`: print dead letters of backlog queues, of an entity, or of a namespace."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.commands.peek import peeked
from sbpair.cli.completion import backlog_queues
from sbpair.cli.next_command import created_first, next_command, way_back
from sbpair.cli.options import moves
from sbpair.cli.options.common import MAX_PEEK, NamespaceSelection, argument, max_messages, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.messages import cells, print_peeked, say_number, shown_line
from sbpair.cli.render.screen import Screen, plural
from sbpair.cli.render.table import limited
from sbpair.model.message_state import MessageState, dead_letter_path, dead_letters_of, path_of
from sbpair.model.pair import Ends
from sbpair.move.message.dead_letters import cause_in

if TYPE_CHECKING:
    from sbpair.errors import SbpairError
    from sbpair.message_io.peek import DeadLetterCount, Keep, PeekSource
    from sbpair.model.pair import Endpoint

ROWS_SHOWN = 100
NONE = "no dead letters in the backlog queues; those of other queues: sbpair entities --with-dead-letters --all"
ENTITY = argument("[ENTITY]", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME", default=None, complete=backlog_queues)
QUEUES = option(
    "--queue NAME|INDEX",
    "Only this backlog queue; repeatable [default: all]",
    excludes=("ENTITY", "--namespace"),
    complete=backlog_queues,
)
COUNT = option(
    "--count -n N", "Number of backlog queues [default: the file's, or 10]", excludes=("ENTITY", "--namespace")
)


def group() -> None:
    """Show dead letters and their reasons.

    Those of the backlog queues, of an entity, or of a namespace. They stay where they are; sbpair redrive brings them
    back.

    Examples:
      sbpair deadletters list
      sbpair deadletters list --namespace archive
      sbpair deadletters show --queue 4 --reason DestinationNotFound
    """


def list_groups(
    *,
    entity: str | None = ENTITY,
    queue: list[str] | None = QUEUES,
    limit: int = option("--max N", "Peek N in each, or all; -n is --count", default=str(MAX_PEEK), parse=max_messages),
    count: int | None = COUNT,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Count dead letters by queue or subscription, reason and destination.

    Without ENTITY, those of the backlog queues; with --namespace, of all its entities. A count with ~ is
    at least so many, since its queue has more than --max. Locks and removes nothing. Needs Listen; Manage to find all
    entities of a namespace, or backlog queues beyond --count.

    Examples:
      sbpair deadletters list
      sbpair deadletters list secondary:orders
      sbpair deadletters list --max 100000 -o json

    Exit codes: 0 listed, even if there are none; 5 no Listen claim

    See also: sbpair help runbook
    """
    from sbpair.cli.results.messages import dead_letter_list

    ends, sources = _sources(screen, connection, entity, queue, count)
    groups = count_reasons(screen, ends, sources, limit=limit)
    unknown = "" if entity or connection.namespace else "(unknown)"
    rows = [
        (each.queue, dead, oldest, each.destination or unknown, reason) for each, reason, dead, oldest in cells(groups)
    ]
    table = limited([("QUEUE", "DEAD", "OLDEST", "DESTINATION", "REASON"), *rows], ROWS_SHOWN) if rows else []
    screen.show(dead_letter_list(groups), table)
    reasons = [each.reason for each in groups]
    way = _way_back(connection, entity, queue, sum(each.messages for each in groups), reasons)
    elsewhere = entity is not None or connection.namespace is not None
    say_number(screen, groups, way, "no dead letters" if elsewhere else NONE)
    return 0


def show_messages(
    *,
    entity: str | None = ENTITY,
    queue: list[str] | None = QUEUES,
    reason: str | None = option("--reason REASON", "Only dead letters with this reason"),
    limit: int = option("--max N", "Number of messages, or all; -n is --count", default="10", parse=max_messages),
    count: int | None = COUNT,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Show dead letters with reason and destination, of the same entities as sbpair deadletters list.

    Locks and removes nothing. sbpair peek QUEUE --dead-letters --body also prints the bodies. Needs Listen; Manage to
    find all entities of a namespace, or backlog queues beyond --count.

    Examples:
      sbpair deadletters show
      sbpair deadletters show --reason DestinationNotFound --max 100 -o jsonl

    Exit codes: 0 shown, even if there are none; 5 no Listen claim

    See also: sbpair help runbook
    """
    from sbpair.cli.results.messages import DeadLetterMessage, PeekedTotal, ShownDeadLetters
    from sbpair.message_io.message_json import render_peeked
    from sbpair.message_io.peek import matching
    from sbpair.move.filter import MessageFilter

    ends, sources = _sources(screen, connection, entity, queue, count)
    keep = None if reason is None else matching(MessageFilter("", reasons=(reason,)))
    result, total = peeked(ends, screen, sources, limit=limit, keep=keep)
    shown = [
        DeadLetterMessage(dead_letters_of(source.path), render_peeked(source.side, message, None))
        for source, message in result.messages
    ]
    print_peeked(screen, result, ShownDeadLetters(PeekedTotal(total, result.complete), shown))
    screen.say(shown_line(result, total))
    if result.messages:
        reasons = [cause_in(message.sections).reason for _, message in result.messages]
        screen.say(_way_back(connection, entity, queue, total or len(result.messages), reasons))
    return 0


SUBCOMMANDS = {"list": list_groups, "show": show_messages}


def _sources(
    screen: Screen, connection: NamespaceSelection, entity: str | None, queues: list[str] | None, count: int | None
) -> "tuple[Ends, list[PeekSource]]":
    """Return the dead-letter queues of an entity, of a namespace, or of backlog queues."""
    from sbpair.message_io.peek import PeekSource

    reach = reach_of(connection, screen, count=count)
    if entity is not None:
        address = reach.address(entity, what="ENTITY")
        address = address if address.is_dead_letters else address.in_state(MessageState.DEAD)
        return address.alone, [PeekSource(address.side, address.path)]
    if reach.namespace is None:
        paths = moves.backlog_paths(reach.pair, queues)
        own = paths if queues else [each for each in paths if reach.pair.secondary.may_sign_for(each)]
        if len(own) < len(paths):
            screen.warn(f"left out without a key: {len(paths) - len(own)} of {plural(len(paths), 'backlog queue')}")
        return reach.pair.ends, [PeekSource("secondary", dead_letter_path(each)) for each in own]
    endpoint = reach.endpoint(reach.namespace)
    ends = Ends(name=endpoint.name, source=endpoint, destination=endpoint)
    paths, lacking = run(_with_dead_letters(endpoint), endpoint)
    if lacking:
        screen.warn(lacking.message)
    return ends, [PeekSource(reach.namespace, path) for path in paths]


async def _with_dead_letters(endpoint: "Endpoint") -> "tuple[list[str], SbpairError | None]":
    """Return the dead-letter queues to peek, and what could not be listed."""
    from sbpair.azure.atom import open_atom

    async with open_atom(endpoint) as namespace:
        found, lacking = await namespace.list_known()
    paths = [
        path_of(each.spec.path, state)
        for _, each in found
        for state in (MessageState.DEAD, MessageState.TRANSFER_DEAD)
        if each.counts is None or each.counts.of(state)
    ]
    return paths, lacking


def count_reasons(
    screen: Screen, ends: "Ends", sources: "Sequence[PeekSource]", *, limit: int, keep: "Keep | None" = None
) -> "list[DeadLetterCount]":
    """Count the messages of sources by reason, up to `limit` of each."""
    from sbpair.message_io.peek import count_dead_letters, endpoint_of

    with PeekProgress(screen) as progress:
        counting = count_dead_letters(ends, sources, limit=limit, keep=keep, on_event=progress)
        return run(counting, *{each.side: endpoint_of(ends, each) for each in sources}.values())


def _way_back(
    connection: NamespaceSelection,
    entity: str | None,
    queues: list[str] | None,
    dead_letters: int,
    reasons: "Sequence[str | None]",
) -> str:
    """Return how to bring back the dead letters of the selected queues, or of all."""
    entities = [entity] if entity else ["ENTITY"] if connection.namespace else queues or ()
    ways = [next_command("redrive", each, without=("count", "limit")) for each in entities]
    ways = ways or [way_back(dead_letters)]
    return f"{created_first(reasons)}bring dead letters back with {', then with '.join(ways)}"
