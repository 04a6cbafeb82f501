"""Runs of `sbpair syphon`, `move` and `redrive`: their ports, output, warnings and exit codes."""

import asyncio
import math
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair import __version__
from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.options.moves import LOOPBACK, MoveTerms
from sbpair.cli.render.receipt import SYPHON, MoveWording, receipt_document, receipt_table, warn_of_failures
from sbpair.cli.render.screen import Screen, plural
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair.metrics.run_metrics import RunMetrics
    from sbpair.model.pair import Ends
    from sbpair.move.events import SyphonEvent
    from sbpair.move.run_store import LiveRun
    from sbpair.runs.database import StateOwner
    from sbpair.service.supervision import Supervision
    from sbpair.syphon import runner
    from sbpair.syphon.move_spec import MoveSpec
    from sbpair.syphon.run_plan import MoveOptions


def run_move(
    screen: Screen,
    spec: "MoveSpec | None",
    owner: "StateOwner",
    terms: MoveTerms,
    mode: str,
    options: "MoveOptions",
    command: tuple[str, ...] = SYPHON.command,
    limit: int | None = None,
) -> int:
    """Move what a spec describes, or the backlog without one; print the receipt or the forecast.

    `command` has its arguments; `limit` is that of --max. Returns the exit code.
    """
    if mode == "--dry-run":
        return _preview_move(screen, owner.ends, options, spec)
    words = SYPHON
    if spec is not None:
        source = spec.names[0] if spec.names else "the dead-letter queues of the backlog"
        words = MoveWording("sbpair/move/1", command, source, routed=spec.form.destination is None)
        spec = replace(spec, max_messages=limit)
    from sbpair.cli.progress.move_progress import SAMPLE_SECONDS, move_progress
    from sbpair.move.run_store import LiveRun
    from sbpair.syphon import runner

    once, live = mode == "--once", LiveRun()

    async def move(stop: asyncio.Event, hurry: asyncio.Event) -> "runner.SyphonResult":
        with move_progress(screen, owner.ends, terms.progress_interval, spec) as shown:
            shown.is_stopping = stop.is_set
            takers = [each.take for each in (supervision, metrics) if each is not None]

            def on_event(event: "SyphonEvent") -> None:
                for take in takers:
                    take(event)
                shown(event)

            moving = runner.run(
                owner.ends,
                replace(options, sample_seconds=shown.sample_seconds or (SAMPLE_SECONDS if metrics else None)),
                once=once,
                spec=spec,
                state=owner.directory,
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
        _metrics_of(screen, owner.ends, terms, live, f"{words.command[0]} {mode}") as metrics,
    ):
        result = run_gracefully(move)
        screen.result(words.schema, receipt_document(result, mode, words), receipt_table(result, mode, words))
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


def _preview_move(screen: Screen, ends: "Ends", options: "MoveOptions", spec: "MoveSpec | None") -> int:
    """Print the forecast of a move, and return the exit code."""
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.move.message.route import NotSentReason
    from sbpair.syphon.preview import make_forecast

    words = forecast.SYPHON if spec is None else forecast.MOVE
    with PeekProgress(screen) as progress:
        result = run(make_forecast(ends, options.limits, spec=spec, where=options.where, on_event=progress))
    notes = []
    most = math.inf if spec is not None or options.allow_missing else options.max_missing
    if any(each.reason == NotSentReason.MISSING and each.messages > most for each in result.dead_letters):
        note = f"of each missing destination a run dead-letters {most} messages and leaves the others"
        notes.append(f"{note}: create it, or pass --allow-missing")
    if result.where is not None and result.where.skipped > options.max_skipped:
        note = f"a run ends once {options.max_skipped} messages are skipped"
        notes.append(f"{note}: raise --max-skipped to {result.where.skipped}")
    code = forecast.print_forecast(screen, result, words, notes, options.max_discard, options.ramp)
    warn_of_failures(screen, options.where)
    return code


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
