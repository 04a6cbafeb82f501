"""The status of a pair: its two sides, the messages in the backlog, and links to queues and topics.

status = await sbpair.status.read_status(pair, ["orders"])

Invariant: nothing is sent, locked or changed, and an error of one side does not hide the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import signed_in
from sbpair.azure.http_client import check_health
from sbpair.errors import (
    AccessError,
    EntityMissing,
    ExitCode,
    NotAuthenticated,
    NotAuthorized,
    SbpairError,
    ServiceRefused,
    UsageError,
)
from sbpair.failover.ping_on_request import PingResult, health_exit_code, health_of, ping_all
from sbpair.management import auditing
from sbpair.management.audit_findings import (
    BacklogTotal,
    DestinationSummary,
    QueueStatus,
    queue_status,
    total_of,
)
from sbpair.management.auditing import open_backlog_scan
from sbpair.management.comparison import desired_queues
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import Utilisation
from sbpair.model.report import AuditFinding, Outcome
from sbpair.move.message.route import OTHERS

FINDINGS = (AuditFinding.MESSAGES, AuditFinding.DEAD_LETTERS)
MAX_DESTINATIONS = 100
MAX_PEEK = 250
"""One page of each queue: the first message is the oldest, except for scheduled ones."""


_NOTHING = "sbpair-checks-its-credential"


@dataclass(frozen=True, slots=True)
class SideStatus:
    """One namespace: the seconds until its management side answered without a token, or `error`.

    An AccessError is that of its credential, which the namespace or the issuer of tokens refused.
    """

    endpoint: Endpoint
    seconds: float
    error: SbpairError | None = None

    @property
    def answers(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class DestinationStatus:
    """A queue or topic of the primary, and the messages for it in the backlog: at least `waiting` unless `exact`.

    `note` is why it would not keep all of them; "" if it would.
    """

    link: PingResult
    waiting: int
    exact: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """A file of messages that neither side accepted: (entity, count, age of the oldest in seconds) each."""

    path: Path
    waiting: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, slots=True)
class Status:
    """`unseen` are (name, reason) of queues and namespaces that could not be read; `denied` is all of the backlog."""

    primary: SideStatus
    secondary: SideStatus
    queues: tuple[QueueStatus, ...] = ()
    entities: tuple[DestinationStatus, ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()
    denied: bool = False
    outbox: OutboxStatus | None = None

    @property
    def total(self) -> BacklogTotal:
        """All backlog queues together."""
        return total_of(self.queues)

    @property
    def found(self) -> Mapping[AuditFinding, Collection[object]]:
        """The queues of each kind of finding that status knows."""
        return {
            AuditFinding.MESSAGES: [each for each in self.queues if each.messages or each.scheduled],
            AuditFinding.DEAD_LETTERS: [each for each in self.queues if each.dead_letters],
        }

    @property
    def exit_code(self) -> int:
        """0 if all are up, 6 if a side or an entity is down; 2, 5 or 7 if all failures have that code, else 3."""
        return health_exit_code(self.errors) or (ExitCode.ACCESS if self.denied else ExitCode.DONE)

    @property
    def errors(self) -> Sequence[SbpairError]:
        """Why sides and entities are not up."""
        found = (self.primary.error, self.secondary.error, *(each.link.error for each in self.entities))
        return [error for error in found if error is not None]


@dataclass(frozen=True, slots=True)
class _Backlog:
    queues: tuple[QueueStatus, ...] = ()
    waiting: tuple[DestinationSummary, ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()
    denied: bool = False
    complete: bool = False


async def read_status(
    pair: Pair,
    entities: Sequence[str] = (),
    *,
    outbox: Path | None = None,
    seconds: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Read the status of both sides, with at most `seconds` for each answer.

    Links are opened to `entities` of the primary and to the destinations of the backlog; nothing is sent over them.
    Counts need the Manage claim on the secondary; without it, messages are peeked with Listen. An `outbox` is a file,
    which may be in use. Raises NameInvalid, and errors of that file. A side without an answer is part of the result.
    """
    outbox_status = None if outbox is None else _read_outbox(outbox, time.time())
    primary, secondary = await asyncio.gather(
        *(_read_side(side, seconds, clock) for side in (pair.primary, pair.secondary))
    )
    backlog = await _backlog(pair) if secondary.answers else _Backlog()
    waiting = {each.name.lower(): each for each in backlog.waiting}
    names = {name.lower(): name for name in (*entities, *(each.name for each in waiting.values()))}
    paths = list(names.values())[: len(set(entities)) + MAX_DESTINATIONS]
    links = await _links(primary, paths, seconds)
    nothing = DestinationSummary("", 0)
    summaries = (waiting.get(link.entity.lower(), nothing) for link in links)
    found = tuple(
        DestinationStatus(link, each.messages, backlog.complete, each.reason if each.discarded else "")
        for link, each in zip(links, summaries, strict=True)
    )
    return Status(primary, secondary, backlog.queues, found, backlog.unseen, backlog.denied, outbox_status)


def _read_outbox(path: Path, now: float) -> OutboxStatus:
    from sbpair.failover.outbox import outbox_depths

    if not path.exists():
        raise UsageError(f"outbox {path} does not exist", hint="check the path; the first message creates it")
    found = outbox_depths(path).items()
    return OutboxStatus(
        path, tuple((name, each.messages, max(0.0, now - each.oldest_ms / 1000)) for name, each in found)
    )


async def _read_side(endpoint: Endpoint, seconds: float, clock: Callable[[], float]) -> SideStatus:
    started = clock()
    try:
        await check_health(endpoint, seconds=seconds)
        answered = clock() - started
        await _authenticate(endpoint, seconds)
    except SbpairError as error:
        return SideStatus(endpoint, clock() - started, error)
    return SideStatus(endpoint, answered)


async def _authenticate(endpoint: Endpoint, seconds: float) -> None:
    """Raise the error of a credential that is accepted neither by management nor for a link."""
    try:
        with suppress(NotAuthorized, ServiceRefused):
            async with open_atom(endpoint, call_seconds=seconds) as namespace:
                await namespace.tier_name()
    except NotAuthenticated as refusal:
        # Management also answers so to a good credential without Manage. Nothing has this name: a link to it is
        # missing, or refused before that.
        try:
            async with asyncio.timeout(seconds), signed_in(connect, endpoint) as client:
                await _open_link(client, endpoint, _NOTHING, seconds)
        except (EntityMissing, NotAuthorized):
            return
        except TimeoutError:
            raise refusal from None


async def _links(primary: SideStatus, names: Sequence[str], seconds: float) -> tuple[PingResult, ...]:
    if primary.error is not None:
        return tuple(PingResult(name, health_of(primary.error), primary.seconds, primary.error) for name in names)
    if not names:
        return ()
    try:
        async with signed_in(connect, primary.endpoint) as client:
            return await ping_all(primary.endpoint, names, seconds=seconds, ping=partial(_open_link, client))
    except SbpairError as error:
        return tuple(PingResult(name, health_of(error), primary.seconds, error) for name in names)


async def _open_link(client: AmqpClient, side: Endpoint, entity: str, _seconds: float) -> None:
    """Open a link to the entity and close it: a check without a message."""
    try:
        (await client.sender(entity)).close()
    except EntityMissing as error:
        raise EntityMissing(f"{side.name} has no queue or topic {entity!r}", hint=error.hint) from error


async def _backlog(pair: Pair) -> _Backlog:
    try:
        found = await auditing.audit(pair, max_peek=MAX_PEEK, sample_seconds=0)
    except AccessError as error:
        return await _peek_backlog(pair, f"how many messages wait: {error.message}")
    except SbpairError as error:
        return _Backlog(unseen=((pair.secondary.name, error.message),))
    return _Backlog(
        tuple(queue_status(item) for item in found if item.outcome is not Outcome.FOREIGN),
        _waiting(found.destinations),
        tuple((each.name, each.reason) for each in found.unseen if each.name != pair.primary.name),
        complete=found.complete,
    )


async def _peek_backlog(pair: Pair, why: str) -> _Backlog:
    """Read the backlog with Listen alone."""
    async with open_backlog_scan(pair, MAX_PEEK, sleep=asyncio.sleep, on_event=lambda _event: None) as scan:
        scanned = await scan.scan_all(
            {each.path: Utilisation(max_bytes=0) for each in desired_queues(pair)}, time.time()
        )
        unseen = {each.name: each.reason for each in scan.unseen() if each.name != pair.primary.name}
        waiting = _waiting(scan.destinations())
    denied = pair.secondary.name in unseen
    queues = tuple(
        QueueStatus(
            path,
            None if path in unseen or denied else fill.peeked,
            exact=fill.complete,
            oldest_seconds=fill.oldest_seconds,
            note=unseen.pop(path, ""),
        )
        for path, fill in scanned.items()
    )
    return _Backlog(queues, waiting, (*unseen.items(), (pair.secondary.name, why)), denied, scan.complete)


def _waiting(destinations: Sequence[DestinationSummary]) -> tuple[DestinationSummary, ...]:
    return tuple(each for each in destinations if each.name not in ("", OTHERS))
