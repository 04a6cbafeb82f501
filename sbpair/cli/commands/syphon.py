"""`sbpair syphon`: options into one call of `sbpair.syphon.runner`, and its receipt into output."""

import asyncio
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.options.common import (
    Count,
    Credits,
    Display,
    LeaseQueue,
    PairSelection,
    Rate,
    StateDirectory,
    TimeToLive,
    Ttl,
    options,
)
from sbpair.cli.options.pairs import profile
from sbpair.cli.render.receipt import breakdown
from sbpair.cli.render.screen import Screen, clean, columns
from sbpair.errors import ExitCode, UsageError
from sbpair.move.receipt import BUCKETS

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.move.receipt import NamedMessage
    from sbpair.syphon import runner
    from sbpair.syphon.forecast import Forecast
    from sbpair.syphon.limits import MoveLimits

SCHEMA = "sbpair/syphon/1"
IDS_SHOWN = 3


class BacklogOrder(StrEnum):
    BACKLOG = "backlog"
    NONE = "none"


@options
def command(
    *,
    once: Annotated[bool, typer.Option("--once", help="Move what is there now, and end")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until a signal")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Move nothing; say what would be, in how long, and at what cost"),
    ] = False,
    hold: Annotated[
        int,
        typer.Option(
            "--hold", metavar="N", help="How many messages a queue may hold for destinations that take nothing (1000)"
        ),
    ] = 1_000,
    state: StateDirectory = None,
    lease: LeaseQueue = None,
    no_lease: Annotated[
        bool, typer.Option("--no-lease", help="Move even if another process of this machine moves the same pair")
    ] = False,
    no_reconnect: Annotated[
        bool, typer.Option("--no-reconnect", help="End where a connection is lost, with exit code 6; do not try again")
    ] = False,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="Dead-letter what is for missing queues or topics even where none is found at all"
        ),
    ] = False,
    order: Annotated[
        BacklogOrder,
        typer.Option(
            "--order",
            metavar="backlog|none",
            help="Keep the order that a queue's messages for a destination have, or trade it for speed (backlog)",
        ),
    ] = BacklogOrder.BACKLOG,
    rate: Rate = None,
    credits: Credits = None,  # noqa: A002  # the option's name
    ttl: TimeToLive = Ttl.ORIGINAL,
    count: Count = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Bring what waits in the backlog queues back to the primary namespace.

    A message is completed in the backlog only after the primary has accepted it: it may arrive twice, it is never lost.
    Needs Listen on the secondary namespace and Send on the primary; with Manage on the secondary it also finds queues
    beyond the count.

    What is sent is written down first: after a crash, the next run completes what the primary had accepted without
    sending it again, and names what is in doubt. sbpair runs shows earlier runs.

    --dry-run only looks: it locks nothing, and raises no delivery count. It asks the primary for the destinations, with
    the Manage claim, or else by opening a link to each, over which nothing goes.

    On one machine, a second process that moves the same pair is refused. --lease refuses those of other machines too,
    where all of them name the same queue: whoever moves holds a session of it, which needs Listen, and nothing is ever
    put into it. It needs sessions, and a lock of 30 s or more. While the service does not confirm that lock, nothing is
    sent; where it is lost, the run ends. After a crash, the next one has the lease once the lock has run out, and 20 s
    later begins.

    Where a connection to one side is lost, and not back within 5 seconds, the one to the other side is ended too, and
    what is held is released. Then both are made anew: by --watch for as long as it takes, by --once three times.

    --watch looks every minute for backlog queues that were created or deleted, where it has the Manage claim.

    A message for a queue or topic that the primary does not have is dead-lettered. Where that goes for the first 20
    messages and for more than one queue or topic, and none has been found, the namespace may be the wrong one, and it
    stops.

    On a terminal, stderr shows every queue and destination: what is left (counted every 30 s at most, where Manage is
    granted, and reckoned in between: ~), how fast it goes, when it will be empty, how old the oldest message is.
    Elsewhere, and with --log-format json, --watch tells on stderr in lines of JSON what happens and, every 30 s, how
    far everything is; stdout has the receipt alone.

    The first SIGINT or SIGTERM finishes what is in flight and releases the rest. The second waits for no answer any
    more: what is in flight is in doubt, and named; it ends within a few seconds, with a receipt.

    JSON; the buckets after "received" add up to it:

      {"schema": "sbpair/syphon/1", "run": "", "received": 0, "sent": 0, "already_sent": 0, "expired": 0,
       "dead_lettered": 0, "released": 0, "in_doubt": 0, "distinct": 0, "balanced": true, "queues": {},
       "destinations": {}, "dead_letters": [], "doubtful": [], "failures": [], "seconds": 0.0, "stopped": false,
       "operations": {"received": 0, "sent": 0, "renewals": 0, "empty_receives": 0, "management_calls": 0,
       "by_sbpair": 0}}

    The lines of --watch begin alike, and go on with what the event has:

      {"schema": "sbpair/syphon-event/1", "time": "", "level": "info|warning", "event": "progress", "queue": "",
       "remaining": null, "counted": false, "received": 0, "sent": 0, "held": 0, "per_second": 0.0,
       "eta_seconds": null, "oldest_seconds": null}

    The other events are destination-progress, queues-found, queue-opened, queue-blocked, queue-done, queue-failed,
    destination-backing-off, destination-recovered, dead-lettered and events-dropped.

    Under --dry-run, with what would become of the messages, which adds up to "messages":

      {"schema": "sbpair/syphon-preview/1", "messages": 0, "bytes": 0, "sent": 0, "dead_lettered": 0,
       "expired": 0, "deferred": 0, "scheduled": 0, "overdue": 0, "scheduled_in_future": 0, "oldest_seconds": null,
       "newest_seconds": null, "queues": [], "destinations": [], "flows": [], "dead_letters": [],
       "ttl": "original", "tiers": {}, "limits": {}, "seconds": 0.0, "operations": {}, "cost": {}, "notes": []}

    Exit codes: 0 everything was sent, or --watch was stopped; 3 some were dead-lettered, or had to stay behind, or
    would be dead-lettered (--dry-run); 4 another process moves this pair, the lease was lost, the state is another
    pair's or broken, or the primary has none of the queues or topics; 6 one side is gone; 7 what is sent cannot be
    written down; 130 --once was interrupted, or --watch twice.
    """
    screen = Screen(display)
    _check(once=once, watch=watch, dry_run=dry_run, hold=hold)
    _check_lease(lease, no_lease=no_lease, dry_run=dry_run)
    limits = terms_of(rate, credits, ttl)
    found = profile(connection, screen, count=count, state=state)
    if dry_run:
        return _preview(found.pair, limits, screen)
    from sbpair.cli.progress.move_progress import lanes
    from sbpair.syphon import runner

    async def move(stop: asyncio.Event, hurry: asyncio.Event) -> "runner.SyphonResult":
        with lanes(screen, watch=watch) as shown:
            return await runner.run(
                found.pair,
                once=once,
                stop=stop,
                hurry=hurry,
                max_held=hold,
                ordered=order is BacklogOrder.BACKLOG,
                limits=limits,
                on_event=shown,
                sample_seconds=shown.sample_seconds,
                state=found.state_directory,
                lease=not no_lease,
                lease_queue=lease,
                reconnect=not no_reconnect,
                allow_missing=allow_missing,
            )

    result = run_gracefully(move)
    told = document(result)
    screen.result(told, [told], table(result))
    for reason, (queues, hint) in _failures(result).items():
        screen.warn(f"{queues[0]}{f' and {len(queues) - 1} more' if len(queues) > 1 else ''}: {reason}; {hint}")
    return exit_code_of(result, once=once)


def document(result: "runner.SyphonResult") -> dict[str, object]:
    """The receipt as its JSON contract has it."""
    return {
        "schema": SCHEMA,
        "run": result.run,
        **result.receipt.document(),
        "failures": [{"queue": queue, "reason": error.message} for queue, error in result.failures],
        "seconds": round(result.seconds, 3),
        "stopped": result.stopped,
    }


def table(result: "runner.SyphonResult") -> Iterator[str]:
    """The receipt for people: the identity, and the dead letters by name."""
    receipt = result.receipt
    counted = {bucket: getattr(receipt, bucket) for bucket in BUCKETS}
    yield from columns(
        [("MESSAGES", "COUNT"), ("received", receipt.received)]
        + [(bucket.replace("_", " "), number) for bucket, number in counted.items()]
    )
    yield from breakdown(receipt.document())
    yield from _named("dead-lettered", receipt.dead_letters)
    yield from _named("may be there twice", receipt.doubtful)
    if not receipt.balanced:
        yield "the counts do not add up: please report this"


def _named(heading: str, messages: "Iterable[NamedMessage]") -> Iterator[str]:
    """Messages by what became of them: a line a reason, with the first few of the ids. JSON has a thousand."""
    by_reason: dict[str, list[str]] = {}
    for each in messages:
        by_reason.setdefault(each.reason, []).append(str(each.message_id or each.sequence_number))
    for reason, ids in by_reason.items():
        some = ", ".join(ids[:IDS_SHOWN]) + (", …" if len(ids) > IDS_SHOWN else "")
        yield clean(f"{heading}: {len(ids)} message{'s' if len(ids) != 1 else ''} ({some}): {reason}")


def _failures(result: "runner.SyphonResult") -> dict[str, tuple[list[str], str]]:
    """Why lanes could not go on: {reason: (their queues, what to do)}."""
    found: dict[str, tuple[list[str], str]] = {}
    for queue, error in result.failures:
        found.setdefault(error.message, ([], error.hint))[0].append(queue)
    return found


def exit_code_of(result: "runner.SyphonResult", *, once: bool) -> int:
    """The result's own, but for what a signal means: `--watch` was asked to stop, `--once` was kept from its end."""
    if result.hurried and result.receipt.balanced:
        return ExitCode.INTERRUPTED
    if not result.stopped or result.failures or not result.receipt.balanced:
        return result.exit_code
    return ExitCode.INTERRUPTED if once else 0


def _preview(pair: "Pair", limits: "MoveLimits", screen: Screen) -> int:
    from sbpair.cli.render import forecast
    from sbpair.syphon import preview

    async def look(_stop: asyncio.Event) -> "Forecast":
        with forecast.ForecastProgress(screen) as looking:
            return await preview.make_forecast(pair, limits, on_event=looking)

    result = run(look)
    told = forecast.document(result)
    screen.result(told, [told], forecast.table(result))
    for note in result.notes:
        screen.warn(note)
    return result.exit_code


def terms_of(rate: str | None, share: str | None, ttl: Ttl) -> "MoveLimits":
    from sbpair.move import rate_limit
    from sbpair.move.message import route
    from sbpair.syphon.limits import MoveLimits

    return MoveLimits(
        rate=None if rate is None else rate_limit.read_rate(rate),
        credits=None if share is None else rate_limit.read_credits(share),
        ttl=route.TimeToLive(ttl.value),
    )


def _check(*, once: bool, watch: bool, dry_run: bool, hold: int) -> None:
    said = [name for name, asked in (("--once", once), ("--watch", watch), ("--dry-run", dry_run)) if asked]
    if len(said) != 1:
        raise UsageError(
            f"{' and '.join(said)} exclude each other" if said else "say one of --once, --watch and --dry-run",
            hint="--once moves what is there now; --watch goes on until a signal; --dry-run only looks",
        )
    if hold < 1:
        raise UsageError(f"--hold is {hold}, and must be at least 1", hint="1000 is the default")


def _check_lease(queue: str | None, *, no_lease: bool, dry_run: bool) -> None:
    if queue is not None and no_lease:
        raise UsageError("--lease and --no-lease exclude each other", hint="leave one of them out")
    if queue is not None and dry_run:
        raise UsageError("--lease goes with --once and --watch only", hint="a dry run looks, and is in nobody's way")
