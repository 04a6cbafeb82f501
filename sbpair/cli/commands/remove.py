"""`sbpair remove`: a run that takes messages as a move does, and writes them to a file; also for `sbpair receive`."""

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sbpair import backlog
from sbpair.cli.command_loop import run
from sbpair.cli.commands.moving import REFUSED_STAY, checked_ends
from sbpair.cli.commands.supervised_moves import PairMove, run_move
from sbpair.cli.completion import backlog_queues
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options.common import NamespaceSelection, argument, flag, max_messages, option, run_limit
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import RemoveTerms
from sbpair.cli.options.selection import Selection
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.receipt import MoveWording, warn_of_failures
from sbpair.cli.render.screen import Screen, plural, size
from sbpair.model.document import encoded
from sbpair.move.context import DEFAULT_MAX_SKIPPED

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.cli.options.entity_addresses import Reach
    from sbpair.message_io.peek import ChosenCount
    from sbpair.move.interface import Sendable
    from sbpair.move.kept_file import Document, KeptFile, Show
    from sbpair.syphon.move_ends import EntityAddress
    from sbpair.syphon.run_request import RunRequest

MAX_NAME = 100
"""Characters of an entity in the name of its file: a file system allows 255 bytes in all."""


def command(
    *,
    entity: str = argument("ENTITY", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME", complete=backlog_queues),
    chosen: Selection,
    limit: int | None = option("--max -n N", "Remove N messages at most [default: all]", parse=max_messages),
    dry_run: bool = flag("--dry-run", "Remove nothing; count the messages", excludes="--yes"),
    yes: bool = flag("--yes -y", "Remove without asking"),
    terms: RemoveTerms,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Remove messages of any queue or subscription; a file keeps them.

    Counts them, asks, and writes each to the file before it is removed there: whole lines, on the disk, which sbpair
    send takes. Messages that arrive after the count stay, as do those that do not match, with their delivery counts.
    SIDE: primary, secondary, [namespaces.NAME]. Needs Listen.

    Examples:
      sbpair remove orders --dead-letters --dry-run
      sbpair remove orders --where "sys.Label = 'trial'" --keep trial.jsonl
      sbpair remove events/subscriptions/audit --no-keep --yes

    Exit codes: 3 some stayed; 4 not confirmed, or another process moves them; 7 the file cannot be written

    See also: sbpair help message_io
    """
    from sbpair.message_io.peek import count_chosen
    from sbpair.syphon.run_store import LiveRun

    where, live = chosen.filter(screen), LiveRun()
    reach = reach_of(connection, screen, state=terms.state)
    source = reach.address(entity, state=chosen.state, what="ENTITY")
    keep = kept_file(reach, source, live.id, terms.keep, no_keep=terms.no_keep)
    request = removal_of(
        reach,
        source,
        keep,
        command=f"remove {source}",
        where=where,
        max_skipped=terms.max_skipped or DEFAULT_MAX_SKIPPED,
        max_messages=run_limit(limit),
        rate=terms.rate,
        credits=terms.share,
        wait_for_locks=not terms.no_wait_for_locks,
        count_remaining=True,
        lease=not terms.no_lease,
        lease_queue=terms.lease,
    )
    with nullcontext() if dry_run else keep:
        looking = where and replace(where)
        with PeekProgress(screen) as progress:
            counting = count_chosen(source, looking, limit, progress)
            found = run(counting, source.endpoint)
        if dry_run:
            warn_of_failures(screen, looking)
            return _preview(screen, keep, source, found)
        if found.messages and not yes and not screen.asks(_question(keep, source, found)):
            raise not_confirmed("removed", next_command("remove", entity, "--yes"))
        request, owner = replace(request, until_ms=found.until_ms), reach.owner(source)
        moved = PairMove(owner.ends.name, lambda: (request, owner.directory), live)
        code = run_move(screen, moved, terms, "", MoveWording(("remove", entity), str(source)))
    warn_of_cut(screen, keep)
    return code


def kept_file(
    reach: "Reach",
    source: "EntityAddress",
    run_id: str,
    path: "Path | None",
    *,
    no_keep: bool,
    show: "Show | None" = None,
) -> "KeptFile":
    """Return the file of removed messages: by default a new one for each run."""
    from sbpair.message_io.message_json import render_received
    from sbpair.move.kept_file import KeptFile
    from sbpair.move.peek.peeker import PeekedMessage

    def render(message: "Sendable") -> "Document":
        found: Document = encoded(render_received(source.side, PeekedMessage(message.facts, message.content.split())))
        return found

    if no_keep or path is not None:
        return KeptFile(path and path.absolute(), render, show)
    name = f"{source.path.replace('/', '~')[-MAX_NAME:]}.{run_id}.jsonl"
    return KeptFile(reach.owner(source).directory / "kept" / name, render, show, makes_directory=True)


def removal_of(reach: "Reach", source: "EntityAddress", keep: "KeptFile", **settings: Any) -> "RunRequest":
    """Return the request of a run that removes messages. Checks the entity before anything is received."""
    from sbpair.syphon.run_request import RunRequest

    owner, backlog_of = reach.owner(source), backlog.primary_of(source.parent) or ""
    return RunRequest(
        ends=replace(source.alone, name=owner.ends.name, backlog_of=backlog_of),
        once=True,
        owner=owner.ends,
        source=source.path,
        messages=source.state,
        sessions=checked_ends(source).sessions,
        names=(str(source), "removed"),
        keep=keep,
        **REFUSED_STAY,
        **settings,
    )


def warn_of_cut(screen: Screen, keep: "KeptFile") -> None:
    if keep.cut:
        screen.warn(f"{keep.id} ended with half a line of a killed run: cut off, its message was not removed")


def _preview(screen: Screen, keep: "KeptFile", source: "EntityAddress", found: "ChosenCount") -> int:
    from sbpair.cli.results.messages import RemovePreview
    from sbpair.message_io.message_json import moment

    figures = (found.messages, found.bytes, moment(found.oldest_ms), moment(found.newest_ms), keep.id or None)
    preview = RemovePreview(source.endpoint.name, source.path, *figures)
    screen.show(preview, [f"would remove {_found(source, found)}"])
    return 0


def _question(keep: "KeptFile", source: "EntityAddress", found: "ChosenCount") -> str:
    place = (
        f"They are kept in {keep.id}, {size(keep.size) if keep.size else 'a new file'}." if keep.id else "None is kept."
    )
    return f"Remove {_found(source, found)}? {place}"


def _found(source: "EntityAddress", found: "ChosenCount") -> str:
    from sbpair.message_io.message_json import moment

    times = [f"{str(moment(at))[:19]}Z" for at in (found.oldest_ms, found.newest_ms)]
    since = f", {size(found.bytes)}, enqueued {' to '.join(dict.fromkeys(times))}" if found.messages else ""
    return f"{plural(found.messages, 'message')} of {source.path} in {source.endpoint.name}{since}"
