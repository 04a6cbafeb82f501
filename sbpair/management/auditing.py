"""Audit of a pair's backlog queues: their properties, how full they are, and a scan of their messages by peeking.

Read-only: an audit changes, creates and removes nothing, and raises no delivery count. The scan finds the age of the
messages, their destinations, and whether these exist; a queue or namespace that cannot be read is reported.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sbpair import backlog
from sbpair.azure import NamespaceControl, open_namespace
from sbpair.azure.credentials import open_tokens
from sbpair.azure.destinations import DestinationEntity, open_destinations
from sbpair.errors import (
    AccessError,
    EntityMissing,
    KeyOfOthers,
    NotAuthenticated,
    NotAuthorized,
    SbpairError,
    Unavailable,
)
from sbpair.management.audit_findings import (
    MAX_PEEK,
    MAX_PEEK_DEAD_LETTERS,
    Audit,
    DestinationSummary,
    ReasonCount,
    Unseen,
    foreign_items,
    own_items,
    unknown_runs,
    utilisation,
    with_growth,
)
from sbpair.management.calls import ControlEvent, Listed, SecondSample, Sleep
from sbpair.management.comparison import desired_queues, plan_backlog
from sbpair.management.exchanged_sides import find_exchanged
from sbpair.management.provisioning import EntityReport, provision
from sbpair.model import tiers
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import Endpoint, Ends, Pair, ResourceGroup
from sbpair.model.queues import AuditedQueue, QueueState, Utilisation
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.model.retries import attempt
from sbpair.move.message.dead_letters import NotSentReason, cause_in
from sbpair.move.message.envelope import restore
from sbpair.move.message.route import DeadLetter, Send, route
from sbpair.move.peek.destination_lookup import DestinationLookup
from sbpair.move.peek.peeker import Peeked, PeekedMessage, Peeker, PeekPosition
from sbpair.move.topic_guard import takes
from sbpair.runs.active_mover import read_mover
from sbpair.runs.database import StateOwner
from sbpair.runs.waiting import read_waiting

Result = TypeVar("Result")
OnEvent = Callable[["ControlEvent | Peeked"], object]

SAMPLE_SECONDS = 5.0
MIRRORED = {Outcome.WOULD_CREATE: Outcome.MISSING, Outcome.EXISTING: Outcome.OK}


async def audit(
    pair: Pair,
    *,
    to: Endpoint | None = None,
    renames: Callable[[str], str] = str,
    group: ResourceGroup | None = None,
    idle_seconds: float | None = None,
    max_peek: int = MAX_PEEK,
    max_peek_dead_letters: int = MAX_PEEK_DEAD_LETTERS,
    sample_seconds: float = SAMPLE_SECONDS,
    state: Path | None = None,
    mirror: bool = False,
    lease: str | None = None,
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> Audit:
    """Audit `pair`'s secondary namespace, for a backlog that goes to the primary, or `to` another namespace.

    With `to`, the primary is never contacted. `renames` returns the name that a destination has there.

    A queue unused for longer than `idle_seconds` is idle. Up to `max_peek` messages of each non-empty queue are peeked,
    0 for none; a second sample `sample_seconds` later shows how fast these queues fill, 0 for none. Empty queues are
    not peeked, since a peek counts as use. Of dead letters, up to `max_peek_dead_letters` in all are peeked for their
    reasons, 0 for none.

    With `mirror`, the other entities of the secondary are compared with those of the primary.

    `state` is the state directory whose runs with work left are part of the audit; None for none. `lease` is the queue
    of movers' leases, if there is one.

    With `group`, which contains the secondary, its queues are listed and counted through Azure Resource Manager.
    Needs the Manage claim on the secondary, or a role there.

    Raises every error that prevents listing: AccessError, Unavailable, and NameInvalid for a primary whose name makes
    no legal path. Everything else that could not be read is in `Audit.unseen`.
    """
    desired_queues(pair)
    compared: EntityReport = Report()
    if mirror:
        compared = await provision(pair, mirror=True, dry_run=True, on_event=on_event, sleep=sleep)
    ends = pair.ends_to(to or pair.primary)
    scanning = open_backlog_scan(ends, max_peek, renames, sleep=sleep, on_event=on_event)
    async with open_namespace(pair.secondary, group) as queues, scanning as scan:
        auditor = _Auditor(pair, queues, scan, on_event, now, clock, sleep)
        found = await auditor.run(idle_seconds, sample_seconds, max_peek_dead_letters if max_peek else 0)
    others = [(each, each.detail) for each in compared if each.detail and each.detail.index is None]
    others.sort(key=lambda each: not (each[1].alters or each[0].outcome in (Outcome.WOULD_CREATE, Outcome.FAILED)))
    mirrored = tuple(replace(each, outcome=MIRRORED.get(each.outcome, each.outcome)) for each, _ in others)
    found = replace(found, mirror=mirrored, mover=await read_mover(ends, lease))
    are_missing = all(each.outcome in (Outcome.MISSING, Outcome.FOREIGN) for each in found)
    is_asked = ends.destination == pair.primary
    if are_missing and is_asked and (exchanged := await find_exchanged(pair.primary, pair.secondary)):
        found = replace(found, exchanged=exchanged)
    if state is None:
        return found
    waiting, problem = read_waiting(StateOwner(pair.ends, state))
    return replace(found, waiting=waiting, unseen=(*found.unseen, *unknown_runs(waiting, problem)))


@dataclass
class _Auditor:
    pair: Pair
    queues: NamespaceControl
    scan: BacklogScan
    on_event: OnEvent
    now: Callable[[], float]
    clock: Callable[[], float]
    sleep: Sleep

    async def run(self, idle_seconds: float | None, sample_seconds: float, max_dead_letters: int) -> Audit:
        primary, tier = self.pair.primary.name, tiers.STANDARD
        # All queues, to find those of other primaries: the service lists no fewer either way.
        try:
            queues = await self._list("")
        except AccessError as error:
            return await self._peeked(error)
        started = self.clock()
        own = [state for state in queues if backlog.under_prefix(primary, state.spec.path)]
        self.on_event(Listed(self.pair.secondary.name, len(own)))
        if any(state.partitioned for state in own):
            # The tier only matters to the sizes of partitioned queues.
            tier = (await self._attempt("read the namespace's tier", self.queues.capacity)).tier
        now = self.now()
        fills = {state.spec.path: utilisation(state, now, idle_seconds) for state in own}
        filled = {state.spec.path: fills[state.spec.path] for state in own if state.counts and not state.counts.empty}
        unseen: tuple[Unseen, ...] = ()
        reasons: tuple[ReasonCount, ...] | None = None
        dead = {each.spec.path: each.counts.dead_letter for each in own if each.counts and each.counts.dead_letter}
        if filled:
            scans = self._scan(filled, now, started + sample_seconds)
            counting = self.scan.count_reasons(dead, max_dead_letters)
            scanned, reasons, (sizes, at, unseen) = await asyncio.gather(scans, counting, self._sample(sample_seconds))
            fills |= {path: with_growth(fill, sizes.get(path), at - started) for path, fill in scanned.items()}
        plan = plan_backlog(self.pair, own, tier)
        self.scan.complete = self.scan.complete or not filled
        return Audit(
            (*own_items(plan, self.pair.backlog_queues, fills), *foreign_items(primary, queues)),
            destinations=self.scan.destinations(),
            unseen=(*unseen, *self.scan.unseen()),
            complete=self.scan.complete,
            denied=self.scan.lookup.denied,
            oldest_for=self.scan.oldest_for,
            reasons=reasons,
        )

    async def _peeked(self, refusal: AccessError) -> Audit:
        """Return what Listen shows of the expected queues, with their keys. Raises `refusal` if that is nothing."""
        expected = {spec.path: Utilisation(max_bytes=0) for spec in desired_queues(self.pair)}
        fills = await self.scan.scan_all(expected, self.now())
        if not (self.scan.missing or any(fill.peeked is not None for fill in fills.values())):
            raise refusal
        outcomes = [Outcome.MISSING if path in self.scan.missing else Outcome.UNKNOWN for path in fills]
        items = [
            ReportItem(
                path, outcome, "it does not exist" * (outcome is Outcome.MISSING), AuditedQueue(index, fill=fill)
            )
            for index, ((path, fill), outcome) in enumerate(zip(fills.items(), outcomes, strict=True))
        ]
        unseen = Unseen(self.pair.secondary.name, f"properties, dead letters and other queues: {refusal.message}")
        return Audit(
            tuple(items),
            destinations=self.scan.destinations(),
            unseen=(*(each for each in self.scan.unseen() if each.name not in self.scan.missing), unseen),
            complete=self.scan.complete,
            denied=self.scan.lookup.denied,
            oldest_for=self.scan.oldest_for,
        )

    async def _scan(self, fills: dict[str, Utilisation], now: float, sampled_at: float) -> dict[str, Utilisation]:
        scanned = await self.scan.scan_all(fills, now)
        if (seconds := sampled_at - self.clock()) > 0:
            self.on_event(SecondSample(seconds))
        return scanned

    async def _sample(self, seconds: float) -> tuple[dict[str, int | None], float, tuple[Unseen, ...]]:
        """Return the queues' sizes so many seconds later, by path, and the time of that. Never raises."""
        if not seconds:
            return {}, 0, ()
        await self.sleep(seconds)
        try:
            queues = await self._list(backlog.prefix(self.pair.primary.name))
        except SbpairError as error:
            return {}, 0, (Unseen(self.pair.secondary.name, f"how fast the queues fill: {error.message}"),)
        return {state.spec.path: state.usage.size_bytes for state in queues if state.usage}, self.clock(), ()

    async def _list(self, prefix: str) -> list[QueueState]:
        return await self._attempt("list the queues", partial(self.queues.list_under, prefix, counts=True))

    async def _attempt(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        return await attempt(what, action, sleep=self.sleep, on_event=self.on_event)


QUEUES_AT_ONCE, MAX_REFUSED = 8, 100
"""How many queues are peeked at once, and how many may refuse the key until no other is tried."""

CLOCK_MARGIN_SECONDS = 2.0
"""A message may seem to be enqueued so much later than now, without a remark about this machine's clock."""

CALL_SECONDS = 10.0
"""The limit of a call to the primary: an audit is often run because the primary is down."""


def destination_name(ends: Ends) -> str:
    """Return the name under which destinations are unseen: not that of the backlog, where both are in one namespace."""
    return f"{ends.destination.name} as destination" if ends.same else ends.destination.name


@asynccontextmanager
async def open_backlog_scan(
    ends: Ends, max_messages: int, renames: Callable[[str], str] = str, *, sleep: Sleep, on_event: OnEvent
) -> AsyncIterator[BacklogScan]:
    """Open a scan of up to `max_messages` of each queue. Nothing is connected before the first peek.

    `renames` returns the name that a destination has now.
    """
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(open_destinations(ends.destination, call_seconds=CALL_SECONDS))
        get_token = await stack.enter_async_context(open_tokens())
        destinations = DestinationLookup(ends.destination, control, stack, get_token)
        peeker = Peeker(ends.source, get_token, sleep, on_event, max_messages)
        yield BacklogScan(ends, peeker, destinations, control.way_to, renames)


@dataclass
class BacklogScan:
    """A scan of the backlog queues of `ends`, and its results so far. `complete`: all their messages are peeked.

    `oldest_for` is the destination of the oldest one. `missing` are queues that do not exist.
    """

    ends: Ends
    peeker: Peeker
    lookup: DestinationLookup
    way_to: Callable[[str, Callable[[str], bool]], Awaitable[list[str]]]
    renames: Callable[[str], str] = str
    complete: bool = False
    oldest_for: str = ""
    missing: set[str] = field(default_factory=set)
    _refused: dict[str, SbpairError] = field(default_factory=dict)
    _oldest_ms: float = math.inf
    _messages: Counter[str] = field(default_factory=Counter)
    _discarded: Counter[str] = field(default_factory=Counter)
    _found: dict[str, DestinationEntity | DeadLetter | None] = field(default_factory=dict)
    _ways_back: dict[str, list[str]] = field(default_factory=dict)
    _unseen: dict[str, str] = field(default_factory=dict)
    _behind_seconds: float = 0.0
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(QUEUES_AT_ONCE))

    async def scan_all(self, fills: Mapping[str, Utilisation], now: float) -> dict[str, Utilisation]:
        """Add the peeked figures to the utilisation of queues, by path. `now` is seconds since 1970. Never raises."""
        if not self.peeker.limit:
            return dict(fills)
        async with asyncio.TaskGroup() as tasks:
            scans = {
                path: tasks.create_task(self._scan(path, fill, now), name=f"peek {path}")
                for path, fill in fills.items()
            }
        scanned = {path: scan.result() for path, scan in scans.items()}
        self.complete = all(fill.complete for fill in scanned.values())
        return scanned

    async def count_reasons(self, dead_letters: Mapping[str, int], limit: int) -> tuple[ReasonCount, ...] | None:
        """Count the dead letters of queues by reason, with so many by path; None if none could be peeked. Never raises.

        Of more than `limit`, peek the first ones of each queue in proportion, rounded up: small queues count, too.
        """
        found: Counter[str | None] = Counter()
        total = max(limit, sum(dead_letters.values()))

        async def take(seen: PeekedMessage) -> None:
            found[cause_in(seen.sections).reason] += 1

        async def count(path: str, messages: int) -> None:
            peeker = replace(self.peeker, limit=-(-messages * limit // total), bodies=False)
            async with self._slots:
                if not self._may_try(path):
                    return
                try:
                    await peeker.peek(PeekPosition(dead_letter_path(path)), take)
                except SbpairError as error:
                    self._record_failure(dead_letter_path(path), error)

        if limit:
            async with asyncio.TaskGroup() as tasks:
                for path, messages in dead_letters.items():
                    tasks.create_task(count(path, messages), name=f"peek dead letters of {path}")
        return tuple(ReasonCount(*each) for each in found.most_common()) or None

    def destinations(self) -> tuple[DestinationSummary, ...]:
        """Return every destination of the peeked messages, by name."""
        found = (self._destination(name, number) for name, number in sorted(self._messages.items()))
        return tuple(replace(each, exact=self.complete) for each in found)

    def unseen(self) -> tuple[Unseen, ...]:
        """Return the queues and namespaces that could not be read."""
        unseen = dict(self._unseen)
        if self._refused:
            name, error = self.ends.source.name, next(iter(self._refused.values()))
            unseen.setdefault(name, f"the messages in {len(self._refused)} of the queues: {_why(error)}")
        if why := self.lookup.unavailable or self.lookup.refused:
            unseen.setdefault(destination_name(self.ends), f"the destinations: {why}")
        entities = (each for each in self._found.values() if isinstance(each, DestinationEntity))
        if any(each.detects_duplicates is None for each in entities):
            why = "whether destinations detect duplicates: needs the Manage claim"
            unseen.setdefault(destination_name(self.ends), why)
        if self._behind_seconds > CLOCK_MARGIN_SECONDS:
            unseen["the age of messages"] = (
                f"this machine's clock is {self._behind_seconds:.0f} s behind that of {self.ends.source.name}"
            )
        return tuple(Unseen(name, reason) for name, reason in unseen.items())

    async def _scan(self, path: str, fill: Utilisation, now: float) -> Utilisation:
        oldest_ms: int | None = None

        async def take(seen: PeekedMessage) -> None:
            nonlocal oldest_ms
            if (at := seen.facts.enqueued_at) > 0:
                oldest_ms = at if oldest_ms is None else min(oldest_ms, at)
                self._behind_seconds = max(self._behind_seconds, at / 1000 - now)
            await self._take(seen)

        async with self._slots:
            if not self._may_try(path):
                return fill
            position = PeekPosition(path)
            try:
                await self.peeker.peek(position, take)
            except SbpairError as error:
                self._record_failure(path, error)
                if not position.messages:
                    return fill
            if position.truncated:
                self._unseen[path] = "the messages behind an unreadable one"
        return replace(
            fill,
            peeked=position.messages,
            complete=position.ended,
            oldest_seconds=None if oldest_ms is None else _age(now - oldest_ms / 1000),
        )

    def _may_try(self, path: str) -> bool:
        """Return whether a queue may be read: some keys are for other queues, and a namespace may be away."""
        source = self.ends.source
        if not source.may_sign_for(path):
            self._refused[path] = KeyOfOthers(f"the key is for {' and '.join(source.keyed_entities)}")
        gave_up = len(self._refused) >= MAX_REFUSED and not source.keyed_entities
        return path not in self._refused and source.name not in self._unseen and not gave_up

    def _record_failure(self, path: str, error: SbpairError) -> None:
        if isinstance(error, EntityMissing):
            self.missing.add(path)
        # Without a connection, no other queue needs to be tried.
        if isinstance(error, NotAuthenticated | NotAuthorized):
            self._refused[path] = error
        elif isinstance(error, AccessError) or (isinstance(error, Unavailable) and not self._messages):
            self._unseen[self.ends.source.name] = f"the messages in the queues: {_why(error)}"
        else:
            self._unseen[path] = error.message

    async def _take(self, seen: PeekedMessage) -> None:
        decision = route(seen.facts)
        if not isinstance(decision, Send):
            self._messages[""] += 1
            self._found.setdefault("", decision if isinstance(decision, DeadLetter) else None)
            return
        destination = self.renames(decision.destination)
        name = self.lookup.name(destination)
        self._messages[name] += 1
        if 0 < seen.facts.enqueued_at < self._oldest_ms:
            self._oldest_ms, self.oldest_for = seen.facts.enqueued_at, name
        if name not in self._found:
            self._found[name] = await self._find(destination)
        entity = self._found[name]
        if isinstance(entity, DestinationEntity) and entity.topic is not None and not entity.topic.take_all:
            payload = restore(seen.sections, decision, int(time.time() * 1000))
            self._discarded[name] += takes(entity.topic, payload) is False

    async def _find(self, path: str) -> DestinationEntity | DeadLetter | None:
        found = None
        try:
            found = await self.lookup.find(path)
            if self.ends.same and isinstance(found, DestinationEntity):
                leads_back = partial(backlog.under_prefix, self.ends.backlog_of)
                self._ways_back[self.lookup.name(path)] = await self.way_to(path, leads_back)
        except SbpairError as error:
            self._unseen[destination_name(self.ends)] = f"the destinations: {_why(error)}"
        return found

    def _destination(self, name: str, messages: int) -> DestinationSummary:
        found = self._found.get(name)
        if isinstance(found, DestinationEntity):
            discarded, way = self._discarded[name], self._ways_back.get(name)
            notes = [f"messages would come back to the backlog: {' -> '.join(way)}"] if way else []
            notes += [f"{discarded} of {messages} match no subscription"] if discarded else []
            notes += [found.disabled] if found.disabled else []
            return DestinationSummary(
                name,
                messages,
                found=True,
                topic=found.is_topic,
                detects_duplicates=found.detects_duplicates,
                discarded=discarded,
                reason="; ".join(notes),
            )
        if isinstance(found, DeadLetter) and found.reason == NotSentReason.MISSING:
            missing = f"{self.ends.destination.name} has no such queue or topic"
            return DestinationSummary(name, messages, found=False, reason=missing)
        return DestinationSummary(name, messages, reason=found.description if found else "")


def _age(seconds: float) -> float | None:
    """Return an age; None if it is negative, because this machine's clock is behind."""
    return max(0.0, seconds) if seconds > -CLOCK_MARGIN_SECONDS else None


def _why(error: SbpairError) -> str:
    return f"{error.message} ({error.hint})" if isinstance(error, AccessError) and error.hint else error.message
