"""Runs of `sbpair syphon`, `move` and `redrive`, and their results as output."""

import asyncio
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair import __version__
from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.next_command import next_command, way_back
from sbpair.cli.options.moves import LOOPBACK, MoveTerms
from sbpair.cli.render.receipt import (
    backing_off_lines,
    breakdown,
    discard_lines,
    filter_lines,
    stayed_lines,
    warn_of_failures,
)
from sbpair.cli.render.screen import Screen, clean, plural, some, spoken
from sbpair.cli.render.table import columns, wrapped
from sbpair.errors import ExitCode, SkipLimitReached
from sbpair.move.message.dead_letters import parent_path
from sbpair.move.message.route import INVALID, is_routable
from sbpair.move.receipt import BUCKETS

if TYPE_CHECKING:
    from sbpair.cli.options.entity_addresses import StateOwner
    from sbpair.cli.render.forecast import ForecastWording
    from sbpair.config import Profile
    from sbpair.metrics.run_metrics import RunMetrics
    from sbpair.model.pair import Ends
    from sbpair.move.events import SyphonEvent
    from sbpair.move.filter import MessageFilter
    from sbpair.move.receipt import NamedMessage
    from sbpair.move.run_store import LiveRun
    from sbpair.service.supervision import Supervision
    from sbpair.syphon import runner
    from sbpair.syphon.move_spec import MoveSpec
    from sbpair.syphon.run_plan import MoveOptions


MAX_NUMBERS = 20
"""Messages that a command chooses by their sequence numbers."""


@dataclass(frozen=True, slots=True)
class MoveWording:
    """The words of one mover: its schema, its command with arguments, and what it leaves messages in.

    `routed` is whether each dead letter names its destination.
    """

    schema: str
    command: tuple[str, ...]
    source: str = "the backlog"
    routed: bool = False


SYPHON = MoveWording("sbpair/syphon/1", ("syphon",))


def run_syphon(
    screen: Screen,
    profile: "Profile",
    terms: MoveTerms,
    mode: str,
    options: "MoveOptions",
) -> int:
    """Move the backlog of a pair, or print the forecast; return the exit code."""
    if mode == "--dry-run":
        from sbpair.cli.render import forecast

        return _preview_move(screen, profile.pair, options, forecast.SYPHON, None)
    return _move_messages(screen, profile.pair, profile.state_directory, terms, mode, None, options, SYPHON)


def run_move(
    screen: Screen,
    owner: "StateOwner",
    terms: MoveTerms,
    mode: str,
    command: tuple[str, ...],
    spec: "MoveSpec",
    where: "MessageFilter | None",
    limit: int | None,
) -> int:
    """Move what a spec describes, `limit` messages at most, or print the forecast. `command` has its arguments."""
    options = terms.move_options(where=where, max_missing=0)
    if mode == "--dry-run":
        from sbpair.cli.render import forecast

        return _preview_move(screen, owner.ends, options, forecast.MOVE, spec)
    source = spec.names[0] if spec.names else "the dead-letter queues of the backlog"
    words = MoveWording("sbpair/move/1", command, source, routed=spec.form.destination is None)
    spec = replace(spec, max_messages=limit)
    return _move_messages(screen, owner.ends, owner.directory, terms, mode, spec, options, words)


def _move_messages(
    screen: Screen,
    ends: "Ends",
    state: Path,
    terms: MoveTerms,
    mode: str,
    spec: "MoveSpec | None",
    options: "MoveOptions",
    words: MoveWording,
) -> int:
    """Move messages, print the receipt, and return the exit code. `ends` are those whose runs are in `state`."""
    from sbpair.cli.progress.move_progress import SAMPLE_SECONDS, move_progress
    from sbpair.move.run_store import LiveRun
    from sbpair.syphon import runner

    once, live = mode == "--once", LiveRun()

    async def move(stop: asyncio.Event, hurry: asyncio.Event) -> "runner.SyphonResult":
        with move_progress(screen, ends, terms.progress_interval, spec) as shown:
            shown.is_stopping = stop.is_set
            takers = [each.take for each in (supervision, metrics) if each is not None]

            def on_event(event: "SyphonEvent") -> None:
                for take in takers:
                    take(event)
                shown(event)

            moving = runner.run(
                ends,
                replace(options, sample_seconds=shown.sample_seconds or (SAMPLE_SECONDS if metrics else None)),
                once=once,
                spec=spec,
                state=state,
                lease=not terms.no_lease,
                lease_queue=terms.lease,
                stop=stop,
                hurry=hurry,
                on_event=on_event,
                live=live,
            )
            serving = metrics.port.serve_during(moving) if metrics else moving
            return await (supervision.serve_during(serving, stop) if supervision else serving)

    with (
        _supervision_of(screen, live, terms.health_port) as supervision,
        _metrics_of(screen, ends, terms, live, f"{words.command[0]} {mode}") as metrics,
    ):
        result = run_gracefully(move)
        screen.result(words.schema, _document(result, mode, words), _table(result, mode, words))
    warn_of_failures(screen, options.where)
    _warn(screen, result, words)
    return _exit_code_of(result, once=once)


@contextmanager
def _metrics_of(
    screen: Screen, ends: "Ends", terms: MoveTerms, live: "LiveRun", command: str
) -> "Iterator[RunMetrics | None]":
    """Open the metrics that the options or OpenTelemetry's variables ask for, and print their address."""
    if terms.metrics_port is None and not _wants_telemetry():
        yield None
        return
    from sbpair.metrics.run_metrics import open_metrics

    address = None if terms.metrics_port is None else (terms.metrics_address or LOOPBACK, terms.metrics_port)
    with open_metrics(live, {"command": command, "pair": ends.name, "version": __version__}, address) as metrics:
        _print_served(screen, "metrics", metrics.port.url, terms.metrics_port)
        yield metrics


@contextmanager
def _supervision_of(screen: Screen, live: "LiveRun", health: tuple[str, int] | None) -> "Iterator[Supervision | None]":
    """Open the port for probes, and notify systemd, if options or environment ask for it."""
    if health is None and not os.environ.get("NOTIFY_SOCKET"):
        yield None
        return
    from sbpair.service.supervision import Supervision, systemd_notifier

    with closing(Supervision(live, health, systemd_notifier(os.environ, os.getpid()))) as supervision:
        _print_served(screen, "health", supervision.port.url, health and health[1])
        yield supervision


def _print_served(screen: Screen, title: str, url: str, port: int | None) -> None:
    """Print the address of a port: with --quiet only if it was chosen from the free ones."""
    if not url or (port and screen.quiet):
        return
    if screen.eventful:
        from sbpair.cli.progress import move_progress, reporting

        line = reporting.event_line(move_progress.SCHEMA, f"{title}-served", reporting.wall_clock_ms())
        reporting.write_lines(screen, [{**line, "url": url}])
    else:
        screen.say(f"{title} at {url}", always=True)


def _wants_telemetry() -> bool:
    if not any(name.startswith("OTEL_") for name in os.environ):
        return False
    from sbpair.metrics.run_metrics import wanted_exporters

    return bool(wanted_exporters(os.environ))


def _preview_move(
    screen: Screen,
    ends: "Ends",
    options: "MoveOptions",
    words: "ForecastWording",
    spec: "MoveSpec | None",
) -> int:
    """Print the forecast of a move, and return the exit code."""
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.move.message.route import MISSING
    from sbpair.syphon.preview import make_forecast

    with PeekProgress(screen) as progress:
        result = run(make_forecast(ends, options.limits, spec=spec, where=options.where, on_event=progress))
    notes = list(result.notes)
    most = math.inf if spec is not None or options.allow_missing else options.max_missing
    if any(each.reason == MISSING and each.messages > most for each in result.dead_letters):
        note = f"of each missing destination a run dead-letters {most} messages and leaves the others"
        notes.append(f"{note}: create it, or pass --allow-missing")
    if result.where is not None and result.where.skipped > options.max_skipped:
        note = f"a run ends once {options.max_skipped} messages are skipped"
        notes.append(f"{note}: raise --max-skipped to {result.where.skipped}")
    result = replace(result, notes=(*notes, *forecast.discard_notes(result, options.max_discard)))
    found = forecast.document(result, words) | forecast.ramp_document(result, options.ramp)
    screen.result(words.schema, found, chain(forecast.table(result, words), forecast.ramp_lines(result, options.ramp)))
    for note in result.notes:
        screen.warn(note)
    warn_of_failures(screen, options.where)
    return max(result.exit_code, result.discard_code(options.max_discard))


def _warn(screen: Screen, result: "runner.SyphonResult", words: MoveWording) -> None:
    where = result.receipt.where
    if where is not None and where.skipped:
        stay = "does not match and stays" if where.skipped == 1 else "do not match and stay"
        screen.say(f"{plural(where.skipped, 'message')} {stay} in {words.source}")
    for each in result.missing:
        if each.held:
            dead = plural(each.dead_lettered, "message")
            text = (
                f"{each.destination} does not exist in the primary: {dead} dead-lettered, {each.held} left in the"
                " backlog; create it and run again, or add --allow-missing"
            )
            if words.source != SYPHON.source:
                text = f"{each.destination} does not exist: {each.held} left in {words.source}; create it, run again"
            screen.warn(text)
    failures: dict[str, tuple[list[str], str]] = {}
    for queue, error in result.failures:
        failures.setdefault(error.message, ([], error.hint))[0].append(queue)
    for reason, (queues, hint) in failures.items():
        screen.warn(f"{queues[0]}{f' and {len(queues) - 1} more' if len(queues) > 1 else ''}: {reason}; {hint}")


def _document(result: "runner.SyphonResult", mode: str, words: MoveWording) -> dict[str, object]:
    return {
        "run": result.run,
        **result.receipt.document(),
        "failures": [{"queue": queue, "reason": error.message} for queue, error in result.failures],
        "seconds": round(result.seconds, 3),
        "stopped": result.stopped,
        "remaining": result.remaining and asdict(result.remaining),
        "missing_destinations": list(map(asdict, result.missing)),
        "next_commands": list(_next_commands(result, mode, words).values()),
        "limit": None if result.limit is None else {**result.limit._asdict()},
    }


def _table(result: "runner.SyphonResult", mode: str, words: MoveWording) -> Iterator[str]:
    receipt = result.receipt
    counted = {bucket: getattr(receipt, bucket) for bucket in BUCKETS}
    yield from columns(
        [("MESSAGES", "COUNT"), ("received", receipt.received)]
        + [(bucket.replace("_", " "), number) for bucket, number in counted.items()]
        + ([("left locked", receipt.locked)] if receipt.locked else [])
    )
    document = receipt.document()
    yield from filter_lines(document)
    yield from breakdown(document)
    if result.limit is not None:
        yield str(result.limit)
    yield from _named("dead-lettered", receipt.dead_letters)
    yield from _named("came back", receipt.ramp.came_back if receipt.ramp else ())
    yield from stayed_lines(document)
    yield from backing_off_lines(document)
    yield from discard_lines(document)
    yield from _named("possible duplicates", receipt.doubtful)
    if receipt.doubtful_total > len(receipt.doubtful):
        yield f"possible duplicates: {receipt.doubtful_total} in all"
    if not receipt.balanced:
        yield "the counts do not add up: please report this"
    left, ended = result.remaining, "was stopped" if result.stopped else "ended"
    number = left and f"{'' if left.exact else 'at least '}{plural(left.messages, 'message')}"
    text = f"; {number} in {words.source}" if number else ""
    yield from wrapped(f"run {result.run} {ended} after {spoken(result.seconds)}{text}")
    for purpose, command in _next_commands(result, mode, words).items():
        yield f"{purpose}: {command}"


_OF_A_MOVE = frozenset(field.name for field in fields(MoveTerms)) | {
    *("limit", "reason", "all_subscriptions", "all_backlog", "count")
}


def _next_commands(result: "runner.SyphonResult", mode: str, words: MoveWording) -> dict[str, str]:
    """Return the commands to go on with, by purpose."""
    commands = {}
    if result.stopped or result.failures or (result.remaining and result.remaining.messages):
        without = {"no_wait_for_locks"}
        if any(isinstance(error, SkipLimitReached) for _, error in result.failures):
            without.add("max_skipped")
        commands["to continue"] = next_command(words.command[0], *words.command[1:], mode, without=without)
    if (ramp := result.receipt.ramp) is not None and ramp.destinations:
        side = words.command[-1].rpartition(":")[0]
        entity = f"{side}:{ramp.destinations[0]}" if side else ramp.destinations[0]
        commands["to see the dead letters"] = next_command("redrive", entity, "--by-reason", without=_OF_A_MOVE)
    if dead_letters := result.receipt.dead_lettered + result.receipt.expired:
        commands["to send the dead letters"] = way_back(dead_letters)
    unroutable = [each for each in result.receipt.stayed if words.routed and not is_routable(each.destination)]
    if unroutable:
        commands |= _ways_of_unroutable(unroutable, words)
    return commands


def _ways_of_unroutable(messages: "Sequence[NamedMessage]", words: MoveWording) -> dict[str, str]:
    """Return the commands for dead letters that no alias gives a way: those of one queue."""
    queue = messages[0].queue
    numbers = [str(each.sequence_number) for each in messages if each.queue == queue]
    chosen = f"sys.SequenceNumber IN ({', '.join(numbers)})" if len(numbers) <= MAX_NUMBERS else f"reason = '{INVALID}'"
    entity = words.command[1] if len(words.command) > 1 else parent_path(queue)
    these = ("--dead-letters", "--where", chosen)
    return {
        "to see those without a destination": next_command("peek", entity, *these, "--body", without=_OF_A_MOVE),
        "to choose their destination": next_command(
            "move", entity, "QUEUE", *these, without=_OF_A_MOVE - {"state", "lease", "no_lease"}
        ),
    }


def _named(heading: str, messages: "Iterable[NamedMessage]") -> Iterator[str]:
    """Yield one line for each reason, with the first few ids. JSON has more of them."""
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
