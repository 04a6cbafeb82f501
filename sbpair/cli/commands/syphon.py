"""`sbpair syphon`: options into one call of `sbpair.syphon.runner`, and its receipt into output."""

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.next_command import next_command
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, STATE, PairSelection, flag, option
from sbpair.cli.options.values import check_at_least, check_goes_with, seconds_of, selected_profile
from sbpair.cli.render.receipt import breakdown
from sbpair.cli.render.screen import Screen, clean, plural, some, spoken
from sbpair.cli.render.table import columns, wrapped
from sbpair.errors import ExitCode, UsageError
from sbpair.move.missing_destinations import MAX_MISSING
from sbpair.move.receipt import BUCKETS

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.move.receipt import NamedMessage
    from sbpair.syphon import runner
    from sbpair.syphon.limits import MoveLimits


USAGE = "(--once | --watch | --dry-run) [OPTIONS]"


def command(
    *,
    once: bool = flag("--once", "Move the messages that are there now, then exit"),
    watch: bool = flag("--watch", "Keep moving until interrupted"),
    dry_run: bool = flag("--dry-run", "Move nothing; preview outcomes, duration and cost"),
    count: int | None = COUNT,
    order: Literal["backlog", "none"] = option(
        "--order ORDER",
        "backlog keeps each queue's order per destination; none is faster",
        default="backlog",
    ),
    rate: str | None = moves.RATE,
    share: str | None = moves.CREDITS,
    ttl: moves.Ttl = moves.TTL,
    max_held: int = option(
        "--max-held N", "Messages to hold in memory per queue for destinations that are down", default=1000
    ),
    state: Path | None = STATE,
    lease: str | None = moves.LEASE,
    no_lease: bool = moves.NO_LEASE,
    no_wait_for_locks: bool = moves.NO_WAIT_FOR_LOCKS,
    no_reconnect: bool = flag("--no-reconnect", "Exit 6 on a lost connection instead of reconnecting"),
    max_missing: int = option(
        "--max-missing N", "Dead-letter at most N messages of each missing destination", default=MAX_MISSING
    ),
    allow_missing: bool = flag("--allow-missing", "Dead-letter every message of missing destinations"),
    progress_interval: str = option(
        "--progress-interval DURATION", "Time between lines of progress off a terminal", panel="Output", default="30s"
    ),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Move stranded messages from the backlog queues back to the primary.

    A message is completed in the backlog only after the primary accepts it: it may arrive twice, but is never lost.
    Of a missing queue or topic the first --max-missing messages are dead-lettered; the others stay in the backlog.
    --once waits for messages that others have locked.
    Interrupt once to finish sends in flight, twice to stop at once.

    Examples:
      sbpair syphon --dry-run
      sbpair syphon --once --rate 200

    Exit codes: 3 some were dead-lettered or left behind; 4 another process moves this pair; 130 interrupted

    See also: sbpair help syphon
    """
    given = [name for name, value in (("--once", once), ("--watch", watch), ("--dry-run", dry_run)) if value]
    if len(given) != 1:
        raise UsageError(
            f"{' and '.join(given)} exclude each other" if given else "expected one of --once, --watch and --dry-run",
            hint="--once moves the messages that are there now; --watch keeps moving; --dry-run only previews",
        )
    for name, value, minimum, default in (("held", max_held, 1, 1_000), ("missing", max_missing, 0, MAX_MISSING)):
        check_at_least(f"--max-{name}", value, minimum, f"the default is {default}")
    moves.check_lease(lease, no_lease=no_lease)
    check_goes_with("--once and --watch", not dry_run, {"--lease": lease}, "a dry run needs no lock")
    locks = {"--no-wait-for-locks": no_wait_for_locks}
    check_goes_with("--once", once, locks, "--watch receives messages as they are unlocked; --dry-run counts them")
    interval = seconds_of("--progress-interval", progress_interval, minimum=1, limit=86_400)
    move_limits = moves.limits_of(rate, share, ttl)
    found = selected_profile(connection, screen, count=count, state=state)
    if dry_run:
        return _preview(found.pair, move_limits, screen, math.inf if allow_missing else max_missing)
    from sbpair.cli.progress.move_progress import move_progress
    from sbpair.syphon import runner

    async def move(stop: asyncio.Event, hurry: asyncio.Event) -> "runner.SyphonResult":
        with move_progress(screen, found.pair, interval) as shown:
            return await runner.run(
                found.pair,
                once=once,
                stop=stop,
                hurry=hurry,
                max_held=max_held,
                ordered=order == "backlog",
                limits=move_limits,
                on_event=shown,
                sample_seconds=shown.sample_seconds,
                count_remaining=True,
                state=found.state_directory,
                lease=not no_lease,
                lease_queue=lease,
                reconnect=not no_reconnect,
                max_missing=max_missing,
                allow_missing=allow_missing,
                wait_for_locks=not no_wait_for_locks,
            )

    result = run_gracefully(move)
    [mode] = given
    screen.result("sbpair/syphon/1", _document(result, mode), _table(result, mode))
    for each in result.missing:
        if each.held:
            dead = plural(each.dead_lettered, "message")
            screen.warn(
                f"{each.destination} does not exist in the primary: {dead} dead-lettered, {each.held} left in the"
                " backlog; create it and run again, or add --allow-missing"
            )
    failures: dict[str, tuple[list[str], str]] = {}
    for queue, error in result.failures:
        failures.setdefault(error.message, ([], error.hint))[0].append(queue)
    for reason, (queues, hint) in failures.items():
        screen.warn(f"{queues[0]}{f' and {len(queues) - 1} more' if len(queues) > 1 else ''}: {reason}; {hint}")
    return _exit_code_of(result, once=once)


def _document(result: "runner.SyphonResult", mode: str) -> dict[str, object]:
    return {
        "run": result.run,
        **result.receipt.document(),
        "failures": [{"queue": queue, "reason": error.message} for queue, error in result.failures],
        "seconds": round(result.seconds, 3),
        "stopped": result.stopped,
        "remaining": result.remaining and asdict(result.remaining),
        "missing_destinations": list(map(asdict, result.missing)),
        "next_commands": list(_next_commands(result, mode).values()),
        "limit": None if result.limit is None else {**result.limit._asdict()},
    }


def _table(result: "runner.SyphonResult", mode: str) -> Iterator[str]:
    receipt = result.receipt
    counted = {bucket: getattr(receipt, bucket) for bucket in BUCKETS}
    yield from columns(
        [("MESSAGES", "COUNT"), ("received", receipt.received)]
        + [(bucket.replace("_", " "), number) for bucket, number in counted.items()]
        + ([("left locked", receipt.locked)] if receipt.locked else [])
    )
    yield from breakdown(receipt.document())
    if result.limit is not None:
        yield str(result.limit)
    yield from _named("dead-lettered", receipt.dead_letters)
    yield from _named("possible duplicates", receipt.doubtful)
    if not receipt.balanced:
        yield "the counts do not add up: please report this"
    left, ended = result.remaining, "was stopped" if result.stopped else "ended"
    text = f"; {'' if left.exact else 'at least '}{plural(left.messages, 'message')} in the backlog" if left else ""
    yield f"run {result.run} {ended} after {spoken(result.seconds)}{text}"
    for purpose, command in _next_commands(result, mode).items():
        yield f"{purpose}: {command}"


def _next_commands(result: "runner.SyphonResult", mode: str) -> dict[str, str]:
    """Return the commands to go on with, by purpose."""
    commands = {}
    if result.stopped or result.failures or (result.remaining and result.remaining.messages):
        commands["to continue"] = next_command("syphon", mode, without={"no_wait_for_locks"})
    if result.receipt.dead_lettered or result.receipt.expired:
        # With these, it would give the same messages up again.
        without = ("allow_missing", "ttl", "order")
        replay = next_command("replay run", "--dead-letters", "--archive", "DIR", without=without)
        commands["to send the dead letters"] = replay
    return commands


def _named(heading: str, messages: "Iterable[NamedMessage]") -> Iterator[str]:
    """Yield one line for each reason, with the first few ids. JSON has up to a thousand."""
    by_reason: dict[str, list[str]] = {}
    for each in messages:
        by_reason.setdefault(each.reason, []).append(str(each.message_id or each.sequence_number))
    for reason, ids in by_reason.items():
        yield from wrapped(clean(f"{heading}: {plural(len(ids), 'message')} ({some(ids)}): {reason}"))


def _exit_code_of(result: "runner.SyphonResult", *, once: bool) -> int:
    """Return the exit code: a signal ends `--watch` normally, but interrupts `--once`.

    A watch with dead letters, or with messages left for a missing destination, ends with 3.
    """
    if result.hurried and result.receipt.balanced:
        return ExitCode.INTERRUPTED
    if not result.stopped or result.failures or not result.receipt.balanced:
        return result.exit_code
    if once:
        return ExitCode.INTERRUPTED
    receipt, held = result.receipt, any(each.held for each in result.missing)
    return ExitCode.PARTIAL_OR_FINDINGS if receipt.dead_lettered or receipt.expired or held else ExitCode.DONE


def _preview(pair: "Pair", limits: "MoveLimits", screen: Screen, max_missing: float) -> int:
    from sbpair.cli.progress.line_progress import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.move.message.route import MISSING
    from sbpair.syphon import preview

    with PeekProgress(screen) as progress:
        result = run(preview.make_forecast(pair, limits, on_event=progress))
    if any(each.reason == MISSING and each.messages > max_missing for each in result.dead_letters):
        note = f"of each missing destination a run dead-letters {max_missing} messages and leaves the others"
        result = replace(result, notes=(*result.notes, f"{note}: create it, or pass --allow-missing"))
    screen.result(forecast.SYPHON.schema, forecast.document(result), forecast.table(result))
    for note in result.notes:
        screen.warn(note)
    return result.exit_code
