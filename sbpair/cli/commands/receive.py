"""`sbpair receive`: peeks, or runs `sbpair.message_io.receive` and prints messages as they arrive."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.backlog import TRANSFER_SEGMENT
from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.commands.peek import peeked
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options.common import (
    PEEK_ALL,
    NamespaceSelection,
    Output,
    argument,
    duration,
    flag,
    kept_path,
    max_messages,
    option,
    option_group,
    run_limit,
)
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.selection import Selection
from sbpair.cli.render.messages import body_text, enqueued, print_peeked, shown_line
from sbpair.cli.render.receipt import warn_of_failures
from sbpair.cli.render.screen import Document, Screen, clean, plural, size
from sbpair.errors import ExitCode, ServiceRefused, UsageError
from sbpair.model.document import encoded
from sbpair.model.entities import subscription_of
from sbpair.model.pair import SIDES
from sbpair.move.kept_file import SCHEMA

if TYPE_CHECKING:
    from sbpair.cli.options.entity_addresses import Reach
    from sbpair.message_io.peek import Keep
    from sbpair.message_io.receive import DedupSettings
    from sbpair.model.pair import Ends, Pair
    from sbpair.model.sequence_ranges import SequenceRanges
    from sbpair.move.receipt import KeptRecord
    from sbpair.replication.events import ReplicationEvent
    from sbpair.runs.run_record import RemainingMessages
    from sbpair.syphon.move_ends import EntityAddress
    from sbpair.syphon.run_result import SyphonResult

MEMORY = "memory"
NOT_ALLOWED = "amqp:not-allowed"


def _key_name(text: str) -> str:
    from sbpair.replication.keys import KeyRule

    try:
        return KeyRule(text).name
    except UsageError as error:
        raise UsageError(f"--key: {error.message}", hint="expected id, subject or property:NAME") from None


@option_group
class Keeping:
    """Where messages are written before they are printed and removed. A receiver of copies keeps none."""

    keep: Path | None = option(
        "--keep FILE",
        "Append each to it first [default: a new file]",
        needs="--remove",
        excludes="--dedup",
        parse=kept_path,
    )
    no_keep: bool = flag("--no-keep", "Keep none in a file", needs="--remove", excludes=("--keep", "--dedup"))


@option_group
class Deduplication:
    """How copies from both namespaces are recognised."""

    dedup: bool = flag("--dedup", "Receive from both namespaces; each message once")
    key: str = option(
        "--key KEY", "Key of copies: id, subject or property:NAME", default="id", needs="--dedup", parse=_key_name
    )
    store: str = option(
        "--store memory|PATH", "Where received keys are remembered", default=MEMORY, needs=("--dedup", "--remove")
    )
    window: float = duration(
        "--window DURATION", "How long keys are remembered", default="24h", needs=("--dedup", "--remove")
    )


def command(
    *,
    entity: str = argument("QUEUE|TOPIC", "[SIDE:]QUEUE, or [SIDE:]TOPIC with --subscription"),
    subscription: str | None = option("--subscription NAME", "Subscription of a topic"),
    chosen: Selection,
    limit: int = option("--max -n N", "Number of messages at most, or all", default="10", parse=max_messages),
    remove: bool = flag("--remove", "Remove each message after it is printed"),
    yes: bool = flag("--yes -y", "Remove without asking", needs="--remove"),
    wait: float = duration("--wait DURATION", "Exit after this time without a message", default="5s", needs="--remove"),
    keeping: Keeping,
    deduplication: Deduplication,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Show messages, or with --remove print and remove them.

    Without --remove, peeks: locks and removes nothing. With it, each message is written to a file, printed and then
    removed: a pipe is no store. If its reader ends, the file and the line to go on from are named, and locked messages
    are released (with --dedup, which keeps no file, their delivery counts rise). Reads the primary unless SIDE or
    --namespace is given, with --dedup both namespaces. Needs Listen.

    Examples:
      sbpair receive orders
      sbpair receive orders --remove --yes -o jsonl | sbpair send x --format jsonl

    Exit codes: 3 some were printed but not removed; 4 not confirmed, or a file is in use; 7 the file cannot be written;
    141 its reader ended

    See also: sbpair help replication
    """
    dedup, where = _settings(deduplication), chosen.filter(screen, peeks=not remove)
    named = connection.namespace is not None or ":" in entity
    if dedup is not None and named:
        raise UsageError("--dedup receives from both sides of the pair", hint="leave out SIDE: and --namespace")
    reach = reach_of(connection, screen)
    address = reach.address(_path(entity, subscription), side=None if named else "primary", state=chosen.state)
    path = address.path
    if dedup is not None:
        _check_copies(address, remove=remove, filtered=where is not None)
    if not remove:
        ends = reach.pair.ends if dedup is not None else address.alone
        from sbpair.message_io.peek import matching

        keep = None if where is None else matching(where)
        with _refusals_explained(path):
            _show(ends, screen, address, dedup, keep, chosen.sequence, limit)
        warn_of_failures(screen, where)
        return 0
    if screen.query is not None and screen.output is Output.JSON:
        hint = "add -o jsonl: the query is then of each message"
        raise UsageError("--remove prints each message before it removes it, and --query is of all", hint=hint)
    if not yes:
        endpoints = (address.endpoint,) if dedup is None else (reach.pair.primary, reach.pair.secondary)
        sides = " and ".join(each.name for each in endpoints)
        what = "all messages" if limit == PEEK_ALL else f"up to {plural(limit, 'message')}"
        question = f"Remove {what} from {path} in {sides}?"
        if not screen.asks(question):
            raise not_confirmed("received", next_command("receive", entity, "--yes"))
    with _refusals_explained(path):
        if dedup is not None:
            return _remove_copies(screen, reach.pair, (entity, subscription), dedup, limit, wait)
        terms = {"where": where, "max_messages": run_limit(limit), "idle_seconds": wait, "count_remaining": True}
        return _remove(screen, reach, address, keeping, command_line=next_command("receive", entity), **terms)


def _check_copies(address: "EntityAddress", *, remove: bool, filtered: bool) -> None:
    """Raise UsageError for options that a receiver of copies does not support."""
    if address.is_dead_letters:
        raise UsageError("--dedup receives no dead letters", hint="leave it out: they are those of one namespace")
    if remove and filtered:
        raise UsageError("--dedup --remove takes all messages", hint="leave out what chooses them, or --dedup")


def _remove_copies(
    screen: Screen, pair: "Pair", source: tuple[str, str | None], dedup: "DedupSettings", limit: int, wait: float
) -> int:
    """Remove the first copies of messages of both sides, each printed before. Returns the exit code."""
    from sbpair.message_io.receive import receive_copies

    printer = MessagePrinter(screen, _path(*source), limit, forgets=dedup.store == MEMORY)

    # It logs the events that are printed here in other words.
    logging.getLogger("sbpair.replication.events").setLevel(logging.ERROR)

    def on_event(event: "ReplicationEvent") -> None:
        if text := _warning(event):
            screen.warn(text)

    with printer:
        receiving = receive_copies(
            pair,
            source[0],
            counts=printer.counted,
            show=lambda message: printer.show(encoded(message)),
            subscription=source[1],
            dedup=dedup,
            limit=limit,
            wait_seconds=wait,
            on_event=on_event,
        )
        run(receiving, pair.primary, pair.secondary)
    return ExitCode.PARTIAL_OR_FINDINGS if printer.counted.not_removed else 0


def _remove(screen: Screen, reach: "Reach", source: "EntityAddress", keeping: Keeping, **terms: Any) -> int:
    """Remove messages of one entity, each kept and printed before. Returns the exit code."""
    from sbpair.cli.commands.remove import kept_file, removal_of, warn_of_cut
    from sbpair.syphon import runner
    from sbpair.syphon.run_store import LiveRun

    live, printer = LiveRun(), MessagePrinter(screen, source.path, terms["max_messages"])
    counted = printer.counted
    path, no_keep = keeping.keep, keeping.no_keep
    keep = kept_file(reach, source, live.id, path, no_keep=no_keep, show=printer.show)
    request = removal_of(reach, source, keep, command=f"receive {source}", lease=False, **terms)

    async def receive(stop: asyncio.Event, hurry: asyncio.Event) -> "SyphonResult":
        keep.on_failure = stop.set
        return await runner.run(request, state=reach.owner(source).directory, stop=stop, hurry=hurry, live=live)

    with keep, printer:
        result = run_gracefully(receive, source.endpoint)
        receipt = result.receipt
        counted.not_removed = sum(each.destination is None for each in receipt.doubtful)
        counted.received, counted.locked = receipt.sent - counted.not_removed, receipt.locked
        for each in receipt.stayed:
            screen.warn(f"{each.message_id or each.sequence_number}: {each.reason}")
        if twice := receipt.doubtful_total - counted.not_removed:
            screen.warn(f"{plural(twice, 'message')} of an earlier run came again: sbpair runs show {result.run}")
        printer.kept, printer.left = result.kept, None if request.where else result.remaining
        if keep.failure is not None:
            at = f"go on from line {keep.line_number(keep.unshown)} of {keep.id}; what came before may not be read"
            screen.warn(f"the output was closed: {at if keep.id else 'what was not printed is still there'}")
            raise keep.failure
        for _queue, error in result.failures:
            raise error
    warn_of_cut(screen, keep)
    warn_of_failures(screen, request.where)
    return replace(result, receipt=replace(receipt, locked=0)).exit_code or (3 if counted.not_removed else 0)


@contextmanager
def _refusals_explained(path: str) -> Iterator[None]:
    """Add a hint to the refusal of a topic, which has no messages, and of a backlog queue, which is elsewhere."""
    try:
        yield
    except ServiceRefused as error:
        if subscription_of(path) is None and error.condition == NOT_ALLOWED:
            error.hint = "of a topic, name a subscription: --subscription NAME"
        raise
    except UsageError as error:
        if f"/{TRANSFER_SEGMENT}/" in path.lower():
            error.hint = (
                "they are in the secondary: read them with sbpair peek QUEUE, or sbpair receive secondary:QUEUE"
            )
        raise


def _show(
    ends: "Ends",
    screen: Screen,
    address: "EntityAddress",
    dedup: "DedupSettings | None",
    keep: "Keep | None",
    numbers: "SequenceRanges | None",
    limit: int,
) -> None:
    from sbpair.cli.results.messages import PeekedTotal, ReceivedMessages
    from sbpair.message_io.message_fields import body_of
    from sbpair.message_io.message_json import ReceiveCounts, render_peeked
    from sbpair.message_io.peek import PeekSource, first_copies

    duplicates: list[None] = []
    is_filtered, sides = keep is not None, [address.side] if dedup is None else SIDES
    if dedup is not None:
        from sbpair.replication.keys import KeyRule

        keep = first_copies(KeyRule(dedup.key), lambda: duplicates.append(None), keep)
    sources = [PeekSource(each, address.path) for each in sides]
    result, total = peeked(ends, screen, sources, limit=limit, numbers=numbers, keep=keep)
    shown = [render_peeked(source.side, each, body_of(each.sections)) for source, each in result.messages]
    counts, total_of = ReceiveCounts(len(shown), 0, len(duplicates)), PeekedTotal(total, result.complete)
    print_peeked(screen, result, ReceivedMessages(address.path, [*shown], counts, removed=False, total=total_of))
    if duplicates:
        screen.say(f"{_copies(len(duplicates))} skipped")
    screen.say(shown_line(result, total, where=is_filtered))


def _path(entity: str, subscription: str | None) -> str:
    return entity if subscription is None else f"{entity}/subscriptions/{subscription}"


class MessagePrinter:
    """Prints each message as it arrives, so that it can be completed at once."""

    def __init__(self, screen: Screen, entity: str, limit: int | None, *, forgets: bool = False) -> None:
        from sbpair.message_io.message_json import ReceiveCounts

        self._screen = screen
        self._entity = entity
        self.counted = ReceiveCounts()
        self._forgets = forgets
        self.kept: KeptRecord | None = None
        self.left: RemainingMessages | None = None
        self._limit = limit
        self._shown = 0

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_details: object) -> None:
        """Print the counts, also after an error."""
        if kind is not None and not self._shown:
            return
        if self._screen.output is Output.JSON and kind is not BrokenPipeError:
            if not self._shown:
                self._screen.write(self._head())
            from sbpair.cli.results.messages import ReceivedMessages

            locked = self.counted.locked
            whole = encoded(ReceivedMessages("", [], self.counted, removed=True, locked=locked, kept=self.kept))
            rest = json.dumps({name: whole[name] for name in whole if name not in ("schema", "entity", "messages")})
            self._screen.write(f"], {rest[1:]}")
        counted = self.counted
        self._screen.say(f"{plural(counted.received, 'message')} removed{self._place()}")
        if counted.duplicates:
            self._screen.say(f"{_copies(counted.duplicates)} removed")
        if counted.not_removed:
            kept = plural(counted.not_removed, "message")
            self._screen.say(f"{kept} printed but not removed: they will be delivered again")
        if counted.locked:
            stay = f"{plural(counted.locked, 'message')} {'is' if counted.locked == 1 else 'are'} still there"
            self._screen.say(f"{stay}: locked by another receiver, for a minute as a rule, or just sent")
        self._say_more()
        missing = counted.received - counted.duplicates
        if self._forgets and missing > 0:
            self._screen.say(
                f"the next run prints copies of {plural(missing, 'message')} that arrive later, unless both runs use"
                " the same --store file"
            )

    def _place(self) -> str:
        """Return where the removed messages are."""
        kept = self.kept
        if kept is None or kept.file is None:
            return ""
        place = f"; kept in {kept.file}, {size(kept.bytes)}" if kept.messages else ""
        return place + (f"; {plural(kept.earlier, 'message')} that an earlier run kept, too" if kept.earlier else "")

    def _say_more(self) -> None:
        """Print that --max has left messages, or may have."""
        number = self.left.messages if self.left is not None and self.left.exact else None
        if self._limit is not None and self.counted.received + self.counted.not_removed >= self._limit and number != 0:
            more = "there may be more" if number is None else f"{plural(number, 'message')} left"
            self._screen.say(f"{more} beyond --max {self._limit}; --max all removes all")

    def show(self, entry: Document) -> None:
        if self._screen.output in (Output.JSONL, Output.TSV):
            self._screen.write_value({"schema": SCHEMA, **entry})
        elif self._screen.output is Output.JSON:
            self._write(self._head(), f"{', ' if self._shown else '  '}{json.dumps(entry)}")
        else:
            self._write(_row("ENQUEUED", "FROM", "ID", "BODY"), _line(entry))
        self._shown += 1

    def _write(self, heading: str, line: str) -> None:
        for text in [line] if self._shown else [heading, line]:
            self._screen.write(text)

    def _head(self) -> str:
        return f'{{"schema": "{SCHEMA}", "entity": {json.dumps(self._entity)}, "messages": ['


def _row(enqueued: str, side: str, message_id: str, body: str) -> str:
    return f"{enqueued:<20}  {side:<9}  {message_id:<36}  {body}".rstrip()


def _line(entry: Document) -> str:
    return _row(enqueued(entry), str(entry["from"]), clean(entry["message_id"] or "-"), body_text(entry))


def _copies(number: int) -> str:
    return f"{number} further {'copy' if number == 1 else 'copies'}"


def _warning(event: "ReplicationEvent") -> str:
    from sbpair.replication.events import NoKey, Redelivered, SideBack, SideLost

    match event:
        case SideLost(_entity, side, reason):
            return f"cannot receive from the {side}: {reason}"
        case SideBack(_entity, side):
            return f"receiving from the {side} again"
        case Redelivered(_entity, side, key, _number, reason):
            return f"{key} from the {side} may be a duplicate: {reason}"
        case NoKey(_entity, side, number, reason):
            return f"message {number} of the {side} has no key: {reason}"
    return ""


def _settings(deduplication: Deduplication) -> "DedupSettings | None":
    if not deduplication.dedup:
        return None
    from sbpair.message_io.receive import DedupSettings

    return DedupSettings(deduplication.key, deduplication.store, deduplication.window)
