"""Removal of unexpected backlog queues: never one that holds a message of any kind.

Before a queue is deleted, sends to it are disabled, it refuses a ping, and it is counted and peeked. A queue that is
not deleted gets its former status back. A second run changes nothing, and concurrent runs are safe.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial

from sbpair import backlog
from sbpair.amqp_client.client import GetToken, connect
from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.azure.credentials import open_tokens
from sbpair.errors import DisabledEntity, EntityMissing, ExitCode, SbpairError, ServiceRefused, TimedOut, Unreachable
from sbpair.management.calls import Listed, OnEvent, QueueProvisioned, Sleep, shielded
from sbpair.management.comparison import (
    Change,
    check_removable,
    desired_queues,
    plan_backlog,
    why_unexpected,
)
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import Counts, QueueFinding, QueueState
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.model.retries import attempt
from sbpair.move.peek.peeker import PeekedMessage, Peeker, PeekPosition

log = logging.getLogger(__name__)

CONCURRENCY = 4
"""Queues removed at once: each takes some eight management calls, of ten credits each."""

CALL_SECONDS = 20.0
"""The limit of one call: an interrupt waits for it, too."""

SEND_DISABLED = "SendDisabled"
GONE = "already removed by another client"

QueueReport = Report[QueueFinding]
RemovableQueue = ReportItem[QueueFinding]


def planned_removals(pair: Pair, actual: Collection[QueueState]) -> list[RemovableQueue]:
    """Return every unexpected queue of `pair`, by index: to remove, or to keep and why. Pure."""
    unexpected = plan_backlog(pair, actual).of(Outcome.EXTRA)
    return [_planned(each, pair.backlog_queues) for each in unexpected]


def _planned(change: Change, count: int) -> RemovableQueue:
    why, counts = why_unexpected(change.index, count), None
    if change.state:
        counts = None if change.state.availability else change.state.counts
        if change.state.spec.status == SEND_DISABLED:
            why = f"{why}; it was {SEND_DISABLED} already: a prune may have been cut short"
    detail = QueueFinding(change.index, counts=counts)
    if keep := _why_kept(counts):
        return ReportItem(change.path, Outcome.KEPT, f"{keep}; {why}", detail)
    return ReportItem(change.path, Outcome.WOULD_REMOVE, why, detail)


def _why_kept(counts: Counts | None) -> str:
    """Describe the messages that keep a queue; empty for a queue without messages."""
    if counts is None:
        return "the number of its messages is unknown"
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
    """Report the unexpected backlog queues of `pair`, and without `dry_run` remove them.

    `only` limits the removal to these paths, such as those of a plan that a user has confirmed. Needs Manage on the
    secondary namespace, Send to ping and Listen to peek. Raises AccessError, and the error of a secondary that cannot
    be listed. The outcome of each queue is an item of the report.
    """
    desired_queues(pair)
    async with open_atom(pair.secondary, call_seconds=CALL_SECONDS) as queues, open_tokens() as get_token:
        look = partial(why_in_use, pair.secondary, get_token, sleep)
        return await Pruner(queues, look, pair, on_event, sleep).run(dry_run=dry_run, only=only)


def prune_exit_code(report: QueueReport) -> int:
    """Return 0 where all are or would be removed, 3 where some were kept or failed, 4 where none may be removed."""
    if report.items and len(report.of(Outcome.KEPT)) == len(report.items):
        return ExitCode.UNSAFE
    return report.exit_code_for({Outcome.KEPT})


async def why_in_use(endpoint: Endpoint, get_token: GetToken | None, sleep: Sleep, path: str) -> str:
    """Return why a queue with disabled sends is kept: it still takes a ping, or it holds a message; else "".

    Raises AccessError, EntityMissing, Unavailable.
    """
    async with connect(endpoint, get_token=get_token) as client:
        try:
            sender = await client.sender(path)
            await sender.send(backlog.ping(uuid.uuid4().hex).join())
        except DisabledEntity:
            holds = await holds_message(endpoint, get_token, sleep, path)
            return "a message arrived while it was being removed" if holds else ""
    return f"it takes messages, though it is {SEND_DISABLED}: try again later"


async def holds_message(endpoint: Endpoint, get_token: GetToken | None, sleep: Sleep, path: str) -> bool:
    """Return whether a queue or its dead-letter queue holds a message. Peeks, since counts may lag behind.

    Raises AccessError, EntityMissing, Unavailable.
    """
    peeker = Peeker(endpoint, get_token, sleep, lambda _event: None, limit=1)
    for part in (path, dead_letter_path(path)):
        position = PeekPosition(part)
        await peeker.peek(position, _skip)
        if position.messages:
            return True
    return False


async def _skip(_message: PeekedMessage) -> None:
    return


class Pruner:
    """One run over `queues`. `look` returns why a queue of that path, with disabled sends, is kept; "" if it is not."""

    def __init__(
        self, queues: AtomNamespace, look: Callable[[str], Awaitable[str]], pair: Pair, on_event: OnEvent, sleep: Sleep
    ) -> None:
        self._queues = queues
        self._look = look
        self._pair = pair
        self._on_event = on_event
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._done = 0

    async def run(self, *, dry_run: bool, only: Collection[str] | None) -> QueueReport:
        prefix = backlog.prefix(self._pair.primary.name)
        actual = await self._attempt("list the queues", lambda: self._queues.list_under(prefix, counts=True))
        self._on_event(Listed(self._pair.secondary.name, len(actual)))
        planned = [each for each in planned_removals(self._pair, actual) if only is None or each.name in only]
        if dry_run:
            return Report(tuple(planned))
        async with asyncio.TaskGroup() as group:
            removals = (self._process(each, len(planned)) for each in planned)
            tasks = [group.create_task(each) for each in removals]
        return Report(tuple(task.result() for task in tasks))

    async def _process(self, planned: RemovableQueue, total: int) -> RemovableQueue:
        async with self._slots:
            try:
                item = planned if planned.outcome is Outcome.KEPT else await self._remove(planned)
            except EntityMissing:
                item = replace(planned, outcome=Outcome.GONE, reason=GONE)
            except SbpairError as error:
                item = _failed(planned, error.message, error.exit_code)
        self._done += 1
        self._on_event(QueueProvisioned(item.name, item.outcome, self._done, total))
        return item

    async def _remove(self, planned: RemovableQueue) -> RemovableQueue:
        path = planned.name
        check_removable(self._pair.primary.name, self._pair.backlog_queues, path)
        former = await self._status(path)
        try:
            await self._attempt(f"disable {path}", lambda: self._set_status(path, SEND_DISABLED))
            kept = await self._why_still_kept(path)
        except BaseException:
            # Also where the change is in doubt: a call without an answer may have succeeded.
            await shielded(self._restore_status(path, former))
            raise
        if kept:
            await shielded(self._restore_status(path, former))
            return replace(planned, outcome=Outcome.KEPT, reason=kept)
        return await shielded(self._delete(planned, former))

    async def _status(self, path: str) -> str:
        return (await self._attempt(f"read {path}", lambda: self._queues.get(path))).spec.status

    async def _set_status(self, path: str, status: str) -> None:
        if (await self._queues.get(path)).spec.status != status:
            await self._queues.set_status(path, status)

    async def _why_still_kept(self, path: str) -> str:
        """Check a queue after sends were disabled. The status comes last: a client that changed it may have sent."""
        if reason := await self._attempt(f"look into {path}", lambda: self._look(path)):
            return reason
        counts = await self._attempt(f"count the messages of {path}", lambda: self._queues.exact_counts(path))
        if reason := _why_kept(counts):
            return reason
        if (status := await self._status(path)) == SEND_DISABLED:
            return ""
        return f"another client changed its status to {status} while it was being removed"

    async def _delete(self, planned: RemovableQueue, former: str) -> RemovableQueue:
        path = planned.name
        try:
            await self._attempt(f"delete {path}", lambda: self._queues.delete(path))
        except (TimedOut, Unreachable) as error:
            # The deletion may still happen: messages sent now could be deleted with the queue.
            reason = f"{error.message}; it may be deleted, or left {SEND_DISABLED}: run again: sbpair prune"
            return _failed(planned, reason, error.exit_code)
        except EntityMissing:
            raise
        except SbpairError:
            await self._restore_status(path, former)
            raise
        return replace(planned, outcome=Outcome.REMOVED)

    async def _restore_status(self, path: str, former: str) -> None:
        """Restore the former status, unless the queue is gone or another client has changed it."""
        try:
            await self._attempt(f"restore the status of {path}", lambda: self._enable(path, former))
        except EntityMissing:
            log.info("%s is gone: no status to restore", path)
        except SbpairError as error:
            raise ServiceRefused(f"{path} is left {SEND_DISABLED}: {error.message}; run again: sbpair prune") from error

    async def _enable(self, path: str, former: str) -> None:
        if (await self._queues.get(path)).spec.status == SEND_DISABLED:
            await self._set_status(path, former)


def _failed(planned: RemovableQueue, reason: str, code: int) -> RemovableQueue:
    return replace(planned, outcome=Outcome.FAILED, reason=reason, exit_code=code)
