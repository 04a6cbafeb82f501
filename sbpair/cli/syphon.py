"""`sbpair syphon`: options into one call of `sbpair.syphon`, and its receipt into output."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.options import Connection, Count, Display, StateDirectory, options
from sbpair.cli.output import Screen, clean, columns
from sbpair.cli.pairs import profile
from sbpair.cli.running import run
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair import syphon
    from sbpair.move.receipt import Named

SCHEMA = "sbpair/syphon/1"
INTERRUPTED = 130
IDS_SHOWN = 3
BUCKETS = ("sent", "already_sent", "expired", "dead_lettered", "released", "in_doubt")


@options
def command(
    *,
    once: Annotated[bool, typer.Option("--once", help="Move what is there now, and end")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until a signal")] = False,
    hold: Annotated[
        int,
        typer.Option(
            "--hold", metavar="N", help="How many messages a queue may hold for destinations that take nothing (1000)"
        ),
    ] = 1_000,
    state: StateDirectory = None,
    no_lease: Annotated[
        bool, typer.Option("--no-lease", help="Move even if another process of this machine moves the same pair")
    ] = False,
    count: Count = None,
    connection: Connection,
    display: Display,
) -> int:
    """Bring what waits in the backlog queues back to the primary namespace.

    A message is completed in the backlog only after the primary has accepted it: it may arrive twice, it is never lost.
    Needs Listen on the secondary namespace and Send on the primary; with Manage on the secondary it also finds queues
    beyond the count.

    What is sent is written down first: after a crash, the next run completes what the primary had accepted without
    sending it again, and names what is in doubt. sbpair runs shows earlier runs.

    The first SIGINT or SIGTERM finishes what is in flight and releases the rest, the second ends it at once.

    JSON; the buckets after "received" add up to it:

      {"schema": "sbpair/syphon/1", "run": "", "received": 0, "sent": 0, "already_sent": 0, "expired": 0,
       "dead_lettered": 0, "released": 0, "in_doubt": 0, "distinct": 0, "balanced": true, "queues": {},
       "destinations": {}, "dead_letters": [], "doubtful": [], "failures": [], "seconds": 0.0, "stopped": false}

    Exit codes: 0 everything was sent, or --watch was stopped; 3 some were dead-lettered, or had to stay behind; 4
    another process moves this pair, or the state is another pair's or broken; 7 what is sent cannot be written down;
    130 --once was interrupted.
    """
    screen = Screen(display)
    _check(once=once, watch=watch, hold=hold)
    found = profile(connection, screen, count=count, state=state)
    from sbpair import syphon
    from sbpair.cli.progress import Lanes

    async def move(stop: asyncio.Event) -> "syphon.Result":
        with Lanes(screen) as lanes:
            return await syphon.run(
                found.pair,
                once=once,
                stop=stop,
                hold=hold,
                on_event=lanes,
                state=found.state_directory,
                lease=not no_lease,
            )

    result = run(move, graceful=True)
    told = document(result)
    screen.result(told, [told], table(result))
    for reason, (queues, hint) in _failures(result).items():
        screen.warn(f"{queues[0]}{f' and {len(queues) - 1} more' if len(queues) > 1 else ''}: {reason}; {hint}")
    return exit_code_of(result, once=once)


def document(result: "syphon.Result") -> dict[str, object]:
    """The receipt as its JSON contract has it."""
    return {
        "schema": SCHEMA,
        "run": result.run,
        **result.receipt.document(),
        "failures": [{"queue": queue, "reason": error.message} for queue, error in result.failures],
        "seconds": round(result.seconds, 3),
        "stopped": result.stopped,
    }


def table(result: "syphon.Result") -> Iterator[str]:
    """The receipt for people: the identity, and the dead letters by name."""
    receipt = result.receipt
    counted = {bucket: getattr(receipt, bucket) for bucket in BUCKETS}
    yield from columns(
        [("MESSAGES", "COUNT"), ("received", receipt.received)]
        + [(bucket.replace("_", " "), number) for bucket, number in counted.items()]
    )
    yield from _named("dead-lettered", receipt.dead_letters)
    yield from _named("may be there twice", receipt.doubtful)
    if not receipt.balanced:
        yield "the counts do not add up: please report this"


def _named(heading: str, messages: "Iterable[Named]") -> Iterator[str]:
    """Messages by what became of them: a line a reason, with the first few of the ids. JSON has a thousand."""
    by_reason: dict[str, list[str]] = {}
    for each in messages:
        by_reason.setdefault(each.reason, []).append(str(each.message_id or each.sequence_number))
    for reason, ids in by_reason.items():
        some = ", ".join(ids[:IDS_SHOWN]) + (", …" if len(ids) > IDS_SHOWN else "")
        yield clean(f"{heading}: {len(ids)} message{'s' if len(ids) != 1 else ''} ({some}): {reason}")


def _failures(result: "syphon.Result") -> dict[str, tuple[list[str], str]]:
    """Why lanes could not go on: {reason: (their queues, what to do)}."""
    found: dict[str, tuple[list[str], str]] = {}
    for queue, error in result.failures:
        found.setdefault(error.message, ([], error.hint))[0].append(queue)
    return found


def exit_code_of(result: "syphon.Result", *, once: bool) -> int:
    """The result's own, but for what a signal means: `--watch` was asked to stop, `--once` was kept from its end."""
    if not result.stopped or result.failures or not result.receipt.balanced:
        return result.exit_code
    return INTERRUPTED if once else 0


def _check(*, once: bool, watch: bool, hold: int) -> None:
    if once == watch:
        raise UsageError(
            "say one of --once and --watch" if not once else "--once and --watch exclude each other",
            hint="--once moves what is there now; --watch goes on until a signal",
        )
    if hold < 1:
        raise UsageError(f"--hold is {hold}, and must be at least 1", hint="1000 is the default")
