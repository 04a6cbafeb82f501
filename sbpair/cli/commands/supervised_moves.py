"""Moves of one pair, or of all pairs in one event loop: progress, ports, retries, receipts and the exit code."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair import __version__
from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.commands.pair_answers import PairAnswer, pair_lines, print_answers
from sbpair.cli.logs import utc
from sbpair.cli.next_command import about_pair, next_command, with_options
from sbpair.cli.options import moves
from sbpair.cli.options.moves import MoveTerms, RemoveTerms
from sbpair.cli.render.receipt import SYPHON, MoveWording, receipt_of, warn_of_failures, warnings_of
from sbpair.cli.render.screen import Screen, plural
from sbpair.cli.served_ports import open_metrics_port, open_supervision
from sbpair.errors import LeaseHeld, LeaseLost, NotAuthenticated, SbpairError, Unavailable
from sbpair.model.document import encoded
from sbpair.model.retries import Backoff
from sbpair.move.failure_latch import set_within
from sbpair.operating_system.shortages import no_room, shortage_of
from sbpair.operating_system.signals import ended_code
from sbpair.syphon.run_store import LiveRun

if TYPE_CHECKING:
    from sbpair.cli.progress.boards import BoardView
    from sbpair.cli.progress.move_progress import MoveProgress
    from sbpair.metrics.http_port import HttpPort
    from sbpair.move.events import SyphonEvent
    from sbpair.service.run_health import RunsHealth
    from sbpair.syphon.run_request import RunRequest
    from sbpair.syphon.run_result import SyphonResult

AGAIN = Backoff(2.0, 60.0)
"""Waits before the next run of a pair whose run could not begin, or was lost."""


@dataclass
class PairMove:
    """The move of a pair: its runs, each of which follows one that ended. `name` is that of the pair.

    `begin` returns the request of a run, and the directory of its state; it raises if the pair has none. `request` is
    the last one, `results` are those of runs that began, and `error` is why the last one did not.
    """

    name: str
    begin: "Callable[[], tuple[RunRequest, Path]]"
    live: LiveRun = field(default_factory=LiveRun)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    request: "RunRequest | None" = None
    shown: "MoveProgress | None" = None
    results: "list[SyphonResult]" = field(default_factory=list)
    error: SbpairError | None = None

    @property
    def reads_keys(self) -> bool:
        """Whether a key is in a file, so that the next run may have another one."""
        ends = (self.request.ends.source, self.request.ends.destination) if self.request is not None else ()
        return any(each.key_file for each in ends)

    @property
    def once(self) -> bool:
        return self.request is not None and self.request.once

    @property
    def exit_code(self) -> int:
        return ended_code(self.results[-1].exit_code if self.error is None else self.error.exit_code)


Move = Callable[[PairMove], Awaitable[None]]


def run_move(screen: Screen, only: PairMove, terms: MoveTerms | RemoveTerms, mode: str, words: MoveWording) -> int:
    """Move the messages of one pair, and print the receipt. Returns the exit code."""
    with _moved(screen, [only], terms, mode, words):
        [result] = only.results
        screen.show(*receipt_of(result, mode, words))
    _warn(screen, only, words)
    return only.exit_code


def run_all(screen: Screen, moved: Sequence[PairMove], terms: MoveTerms, mode: str) -> int:
    """Move the backlogs of all pairs, and print the receipts of each. Returns the gravest exit code."""
    with _moved(screen, moved, terms, mode, SYPHON, by_pair=True):
        from sbpair.cli.results.moving import SyphonPairs

        answers, lines = [], list[str]()
        for each in moved:
            with about_pair(each.name):
                receipts = [receipt_of(one, mode, SYPHON) for one in each.results]
                found = [receipt for receipt, _ in receipts]
                counts = [sum(getattr(one.receipt, name) for one in each.results) for name in ("received", "sent")]
                failures = [] if each.error or not each.results else [why for _, why in each.results[-1].failures]
                error = each.error or next(iter(failures), None)
                cells = (each.exit_code, *counts, error.message if error else "")
                answers.append(PairAnswer(each.name, each.exit_code, cells, found, error))
                for _, table in receipts if any(counts) else ():
                    lines += (f"pair {each.name}", *table, "")
        lines += pair_lines(("EXIT", "RECEIVED", "SENT", "NOTE"), answers)
        code = print_answers(screen, SyphonPairs, lines, answers)
    for each in moved:
        with about_pair(each.name):
            _warn(screen, each, SYPHON)
    return code


@contextmanager
def _moved(
    screen: Screen,
    moved: Sequence[PairMove],
    terms: MoveTerms | RemoveTerms,
    mode: str,
    words: MoveWording,
    *,
    by_pair: bool = False,
) -> Iterator[None]:
    """Move all to the end. The ports are open until the end of the block."""
    command = f"{words.command[0]} {mode}{' --all-pairs' if by_pair else ''}".strip()
    from sbpair.cli.progress.move_progress import SAMPLE_SECONDS, SCHEMA, move_progress
    from sbpair.syphon import runner

    async def move(each: PairMove, hurry: asyncio.Event) -> None:
        request, state = each.begin()
        with move_progress(screen, request, each.live.state, terms.progress_interval, drawn=not by_pair) as shown:
            each.shown, shown.is_stopping = shown, each.stop.is_set

            def on_event(event: "SyphonEvent") -> None:
                if supervision is not None:
                    supervision.take(event)
                shown(event)

            # A filter counts for one run.
            where, seconds = request.where, shown.sample_seconds or (SAMPLE_SECONDS if metrics else None)
            again, where = next_command(*words.command, *([mode] if mode else ())), where and replace(where)
            each.request = request = replace(request, sample_seconds=seconds, where=where, command_line=again)
            run = partial(runner.run, request, state=state, stop=each.stop, hurry=hurry)
            each.results.append(await run(on_event=on_event, live=each.live))

    async def move_all(stop: asyncio.Event, hurry: asyncio.Event) -> None:
        if by_pair:
            moving = _keep_all_moving(screen, moved, partial(move, hurry=hurry), stop)
        else:
            moved[0].stop = stop
            moving = move(moved[0], hurry)
        serving = metrics.serve_during(moving) if metrics else moving
        await (supervision.serve_during(serving, stop) if supervision else serving)

    lives = {each.name: each.live for each in moved}
    with (
        open_supervision(screen, SCHEMA, partial(_supervised, lives), terms.health_port) as supervision,
        _metrics_of(screen, lives, terms, command, by_pair=by_pair) as metrics,
    ):
        run_gracefully(move_all)
        yield


async def _keep_all_moving(screen: Screen, moved: Sequence[PairMove], move: Move, stop: asyncio.Event) -> None:
    """Move every pair until it has ended, with one table for all of them on a terminal."""
    drawn: AbstractContextManager[object] = nullcontext()
    if screen.animated:
        from sbpair.cli.progress.live_table import LiveTable, draw_board

        drawn = LiveTable(partial(_board, moved, time.monotonic(), stop), draw_board)

    async def pass_on() -> None:
        await stop.wait()
        for each in moved:
            each.stop.set()

    with drawn:
        passing = asyncio.create_task(pass_on(), name="stop all pairs")
        async with asyncio.TaskGroup() as pairs:
            for each in moved:
                pairs.create_task(_keep_moving(screen, each, move, stop), name=f"pair {each.name}")
        passing.cancel()


async def _keep_moving(screen: Screen, each: PairMove, move: Move, stop: asyncio.Event) -> None:
    """Move a pair until it is stopped or done, or has an error that waiting cannot mend."""
    failures, printed = 0, ""
    with about_pair(each.name):
        while (failure := await _attempt(each, move)) and not (each.once or stop.is_set()):
            if not (_may_pass(failure) or (isinstance(failure, NotAuthenticated) and each.reads_keys)):
                break
            if each.live.state.connected:
                failures, printed = 0, ""
            failures += 1
            seconds = AGAIN.seconds(failures, random.random())  # noqa: S311  spreads pairs that failed together
            each.live.halted = f"next try at {utc(time.time() + seconds)[11:]}: {failure.message}"
            (screen.detail if failure.message == printed else screen.warn)(f"{failure.message}; trying again")
            printed = failure.message
            if await set_within(stop, seconds):
                return
            each.live.begin_again()
            each.stop = asyncio.Event()
        each.live.halted = f"failed: {failure.message}" if failure else "ended"
        if each.error is not None:
            screen.error(each.error.message, with_options(each.error.hint))


async def _attempt(each: PairMove, move: Move) -> SbpairError | None:
    """Run a pair once. Return why it could not go on, if it could not: nothing that it raises ends other pairs."""
    each.error = None
    try:
        await move(each)
    except SbpairError as error:
        each.error = error
    except Exception as error:  # noqa: BLE001  # as for the whole command
        hint = f"this is a bug: run it with --pair {each.name} --debug, and report what it shows"
        bug = SbpairError(f"unexpected {type(error).__name__}", hint=hint)
        each.error = shortage_of(error) or no_room(error) or bug
    else:
        return min((error for _, error in each.results[-1].failures), key=_may_pass, default=None)
    return each.error


def _may_pass(error: SbpairError) -> bool:
    """Return whether waiting may mend it, as it mends what another mover or an outage causes."""
    return isinstance(error, (Unavailable, LeaseHeld, LeaseLost))


def _board(moved: Sequence[PairMove], since: float, stop: asyncio.Event) -> "BoardView":
    """Return a row for each pair."""
    from sbpair.cli.progress.boards import BoardView, pair_row

    views = [each.shown.view() if each.shown else BoardView((), (), 0.0) for each in moved]
    rows = tuple(pair_row(each.name, view, each.live.halted) for each, view in zip(moved, views, strict=True))
    return BoardView(rows, (), time.monotonic() - since, is_stopping=stop.is_set(), heading="PAIR")


@contextmanager
def _metrics_of(
    screen: Screen, lives: Mapping[str, LiveRun], terms: MoveTerms | RemoveTerms, command: str, *, by_pair: bool
) -> "Iterator[HttpPort | None]":
    from sbpair.cli.progress.move_progress import SCHEMA

    def open_at(address: tuple[str, int] | None) -> "AbstractContextManager[HttpPort]":
        from sbpair.metrics.run_metrics import open_metrics

        return open_metrics(lives, {"command": command, "version": __version__}, address, by_pair=by_pair)

    with open_metrics_port(screen, SCHEMA, open_at, terms.metrics_port, terms.metrics_address) as metrics:
        yield metrics


def _supervised(lives: Mapping[str, LiveRun]) -> "RunsHealth":
    from sbpair.service.run_health import RunsHealth

    return RunsHealth(lives)


def _warn(screen: Screen, move: PairMove, words: MoveWording) -> None:
    """Warn of the doubts and failures of the last run."""
    if move.request is None or not move.results:
        return
    result, where = move.results[-1], move.results[-1].receipt.where
    warn_of_failures(screen, move.request.where)
    moves.warn_of_unused(screen, move.request.renames)
    if where is not None and where.skipped:
        stay = "does not match and stays" if where.skipped == 1 else "do not match and stay"
        screen.say(f"{plural(where.skipped, 'message')} {stay} in {words.source}")
    for text in warnings_of(encoded(result), words):
        screen.warn(text)
