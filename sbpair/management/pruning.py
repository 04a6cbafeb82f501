"""Removing the backlog queues that nobody asked for: never one that holds a message, of whatever kind.

Before a queue is deleted it is made to take nothing more, counted and looked into; where it is not deleted it gets its
former status back, whatever happened. Running it again does nothing, and two at once do not hinder each other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sbpair import backlog
from sbpair.azure.retry import attempt
from sbpair.errors import EntityMissing, ExitCode, SbpairError, ServiceRefused, TimedOut, Unreachable
from sbpair.management import backlog_plan
from sbpair.model.queues import ControlEvent, Listed, QueueFinding, QueueProvisioned, QueueState, Unexpected
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.move.peek.peeker import Peeker, PeekPosition
from sbpair.move.rate_limit import RateLimiter

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.azure.interfaces import QueueRemoval
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.model.queues import Counts
    from sbpair.move.peek.peeker import PeekedMessage

    Sleep = Callable[[float], Awaitable[object]]
    OnEvent = Callable[[ControlEvent], object]

log = logging.getLogger(__name__)

CONCURRENCY = 4
"""Queues in hand at once: each takes some eight management calls, of ten credits each."""

CALL_SECONDS = 20.0
"""How long one answer is waited for: whoever interrupts waits for it too."""

SEND_DISABLED = "SendDisabled"
DEAD_LETTERS = "$deadletterqueue"
GONE = "somebody else has removed it"
Done = TypeVar("Done")

QueueItem = ReportItem[QueueFinding]
QueueReport = Report[QueueFinding]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An extra queue. `keep` says why it stays; empty where it may go."""

    extra: Unexpected
    why: str
    keep: str = ""

    @property
    def path(self) -> str:
        return self.extra.path


def prune_candidates(pair: Pair, there: Collection[QueueState]) -> tuple[Candidate, ...]:
    """Every extra queue of `pair` among what is there, by index. Pure."""
    extra = backlog_plan.diff(backlog_plan.desired(pair), there).extra
    return tuple(_candidate(each, pair.backlog_queues) for each in extra)


def _candidate(extra: Unexpected, count: int) -> Candidate:
    why = backlog_plan.why_extra(extra, count)
    if extra.state.spec.status == SEND_DISABLED:
        why = f"{why}; it was found {SEND_DISABLED}, as a prune leaves one that was cut short"
    return Candidate(extra, why, keep=_held(extra.state.counts))


def _held(counts: Counts | None) -> str:
    """What keeps a queue, in words; empty for a queue that is empty."""
    if counts is None:
        return "nobody said how many messages it holds"
    if counts.empty:
        return ""
    figures = (
        (counts.active, "active"),
        (counts.dead_letter, "dead-lettered"),
        (counts.scheduled, "scheduled"),
        (counts.transfer, "to be forwarded"),
        (counts.transfer_dead_letter, "that could not be forwarded"),
    )
    kinds = ", ".join(f"{figure} {what}" for figure, what in figures if figure)
    total = max(counts.total, sum(figure for figure, _ in figures))
    return f"it holds {total} message{'s' if total != 1 else ''}{f' ({kinds})' if kinds else ''}"


async def prune(
    pair: Pair,
    *,
    dry_run: bool = True,
    only: Collection[str] | None = None,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> QueueReport:
    """Say which backlog queues of `pair` would be removed, and without `dry_run` remove those.

    `only` are the paths that may be removed, where somebody has seen a plan and agreed to it. Needs Manage on the
    secondary namespace, and Listen to look into what it removes. Raises what stops everything: AccessError, a secondary
    that cannot be listed. What became of each queue is an Item of the report.
    """
    backlog_plan.desired(pair)
    from sbpair.azure.atom_removal import open_removal
    from sbpair.azure.credentials import token_getter

    async with AsyncExitStack() as stack:
        queues = await stack.enter_async_context(open_removal(pair.secondary, call_seconds=CALL_SECONDS))
        get_token = await stack.enter_async_context(token_getter(pair))
        look = partial(holds_message, pair.secondary, get_token, sleep)
        return await Pruner(queues, look, pair, on_event, sleep).run(dry_run=dry_run, only=only)


def prune_exit_code(report: QueueReport) -> int:
    """0 where all of them are gone, or would be; 3 where some were kept or failed; 4 where none may be removed."""
    if report.items and len(report.of(Outcome.KEPT)) == len(report.items):
        return ExitCode.UNSAFE
    return report.exit_code_for({Outcome.KEPT})


async def holds_message(endpoint: Endpoint, get_token: GetToken | None, sleep: Sleep, path: str) -> bool:
    """Whether there is a message in a queue or in its dead letters. It is looked for there: figures may lag behind.

    Raises AccessError, EntityMissing, Unavailable.
    """
    clock = time.monotonic
    looker = Peeker(endpoint, get_token, RateLimiter(clock()), clock, sleep, _nobody, limit=1)
    for part in (path, f"{path}/{DEAD_LETTERS}"):
        position = PeekPosition(part)
        await looker.peek(position, _pass)
        if position.messages:
            return True
    return False


async def _pass(_seen: PeekedMessage) -> None:
    """That it is there is enough."""


def _nobody(_event: object) -> None:
    """What is looked into is told by its outcome."""


class Pruner:
    """One run. `queues` is anything that answers as a namespace does, `look` whether a queue has a message."""

    def __init__(
        self,
        queues: QueueRemoval,
        look: Callable[[str], Awaitable[bool]],
        pair: Pair,
        on_event: OnEvent,
        sleep: Sleep,
    ) -> None:
        self._queues = queues
        self._look = look
        self._pair = pair
        self._on_event = on_event
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)
        self._places = asyncio.Semaphore(CONCURRENCY)
        self._done = 0

    async def run(self, *, dry_run: bool, only: Collection[str] | None) -> QueueReport:
        prefix = backlog.prefix(self._pair.primary.name)
        there = await self._attempt("list the queues", lambda: self._queues.list_under(prefix, counts=True))
        self._on_event(Listed(self._pair.secondary.name, len(there)))
        candidates = [each for each in prune_candidates(self._pair, there) if only is None or each.path in only]
        if dry_run:
            return Report(tuple(_planned(each) for each in candidates))
        return Report(tuple(await self._remove_all(candidates)))

    async def _remove_all(self, candidates: list[Candidate]) -> list[QueueItem]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._deal_with(each, len(candidates)), name=f"remove {each.path}")
                for each in candidates
            ]
        return [task.result() for task in tasks]

    async def _deal_with(self, candidate: Candidate, total: int) -> QueueItem:
        async with self._places:
            try:
                item = _planned(candidate) if candidate.keep else await self._remove(candidate)
            except EntityMissing:
                item = _item(candidate, Outcome.GONE, GONE)
            except SbpairError as error:
                item = _item(candidate, Outcome.FAILED, error.message, error.exit_code)
        self._done += 1
        self._on_event(QueueProvisioned(item.name, item.outcome, self._done, total))
        return item

    async def _remove(self, candidate: Candidate) -> QueueItem:
        path = candidate.path
        backlog_plan.check_removable(self._pair.primary.name, self._pair.backlog_queues, path)
        former = await self._status(path)
        try:
            await self._attempt(f"disable {path}", lambda: self._set_status(path, SEND_DISABLED))
            held = await self._still_held(path)
        except BaseException:
            # Also where it is not known to have been changed: whoever did not answer may have done it.
            await _shielded(self._put_back(path, former))
            raise
        if held:
            await _shielded(self._put_back(path, former))
            return _item(candidate, Outcome.KEPT, held)
        return await _shielded(self._delete(candidate, former))

    async def _status(self, path: str) -> str:
        return (await self._attempt(f"read {path}", lambda: self._queues.get(path))).spec.status

    async def _set_status(self, path: str, status: str) -> None:
        if (await self._queues.get(path)).spec.status != status:
            await self._queues.set_status(path, status)

    async def _still_held(self, path: str) -> str:
        """What keeps a queue that takes nothing more; the status last, since whoever changed it may have sent."""
        if await self._look(path):
            return "a message came while it was being removed"
        counts = await self._attempt(f"count the messages of {path}", lambda: self._queues.exact_counts(path))
        if held := _held(counts):
            return held
        status = await self._status(path)
        return "" if status == SEND_DISABLED else f"somebody has made it {status} while it was being removed"

    async def _delete(self, candidate: Candidate, former: str) -> QueueItem:
        path = candidate.path
        backlog_plan.check_removable(self._pair.primary.name, self._pair.backlog_queues, path)
        try:
            await self._attempt(f"delete {path}", lambda: self._queues.delete(path))
        except EntityMissing:
            return _item(candidate, Outcome.GONE, GONE)
        except (TimedOut, Unreachable) as error:
            # It may still happen: what is let in again now could be deleted with the queue.
            reason = (
                f"{error.message}; it may be deleted, and if not it is left {SEND_DISABLED}: run sbpair prune again"
            )
            return _item(candidate, Outcome.FAILED, reason, error.exit_code)
        except SbpairError:
            await self._put_back(path, former)
            raise
        return _item(candidate, Outcome.REMOVED, candidate.why)

    async def _put_back(self, path: str, former: str) -> None:
        """The status as it was found, unless the queue is gone, or somebody else has changed it meanwhile."""
        try:
            await self._attempt(f"give {path} its status back", lambda: self._enable(path, former))
        except EntityMissing:
            log.info("%s is gone: there is nothing to put back", path)
        except SbpairError as error:
            raise ServiceRefused(f"{path} is left {SEND_DISABLED}: {error.message}; run sbpair prune again") from error

    async def _enable(self, path: str, former: str) -> None:
        if (await self._queues.get(path)).spec.status == SEND_DISABLED:
            await self._set_status(path, former)


async def _shielded(action: Coroutine[None, None, Done]) -> Done:
    """`action` to its end, also where a first cancellation comes meanwhile; a second one ends it."""
    task = asyncio.create_task(action, name="finish with a queue")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(SbpairError):
            await task
        raise


def _planned(candidate: Candidate) -> QueueItem:
    if candidate.keep:
        return _item(candidate, Outcome.KEPT, f"{candidate.keep}; {candidate.why}")
    return _item(candidate, Outcome.WOULD_REMOVE, candidate.why)


def _item(candidate: Candidate, outcome: Outcome, reason: str, code: int = 0) -> QueueItem:
    detail = QueueFinding(candidate.extra.index, counts=candidate.extra.state.counts)
    return ReportItem(candidate.path, outcome, reason, detail, code)
