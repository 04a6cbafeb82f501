"""The status of a pair: its two sides, the messages in the backlog, and links to queues and topics.

status = await sbpair.status.read_status(pair, ["orders"])

Invariant: nothing is sent, locked or changed, and an error of one side does not hide the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

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
from sbpair.failover.ping_on_request import Health, PingResult, health_exit_code, health_of, ping_all
from sbpair.gateway.running_gateways import RunningGateway, running_gateways
from sbpair.management import auditing
from sbpair.management.audit_findings import (
    MAX_PEEK_DEAD_LETTERS,
    BacklogTotal,
    DestinationSummary,
    QueueStatus,
    ReasonCount,
    Unseen,
    audit_mends,
    held_by,
    queue_status,
    total_of,
    unknown_runs,
    with_elsewhere,
)
from sbpair.management.auditing import destination_name
from sbpair.model.connect_errors import is_accepted
from sbpair.model.document import LATER, SPREAD, Failing
from sbpair.model.entities import Topic
from sbpair.model.pair import Endpoint, Ends, Pair
from sbpair.model.report import AuditFinding, Outcome
from sbpair.move.message.route import OTHERS
from sbpair.runs.active_mover import UNKNOWN_MOVER, ActiveMover, read_mover
from sbpair.runs.database import StateOwner, state_if_any
from sbpair.runs.journal import Doubt, messages_accepted_twice
from sbpair.runs.run_log import delivered_elsewhere
from sbpair.runs.waiting import WaitingRun, read_waiting

FINDINGS = (AuditFinding.MESSAGES, AuditFinding.DEAD_LETTERS, AuditFinding.NO_MOVER)
MAX_DESTINATIONS = 100
MAX_PEEK = 250
"""One page of each queue: the first message is the oldest, except for scheduled ones."""


@dataclass(frozen=True, slots=True)
class SideStatus(Failing):
    """One namespace: the seconds until its management side answered without a token, or `error`.

    An AccessError is that of its credential, which the namespace or the issuer of tokens refused.
    """

    endpoint: Endpoint
    seconds: Annotated[float, "Time to the answer"]
    error: SbpairError | None = None

    @property
    def namespace(self) -> Annotated[str, "Its name"]:
        return self.endpoint.name

    @property
    def health(
        self,
    ) -> Annotated[Literal["up", "refused", "down"], "Whether it answers, and accepts the credential"]:
        if self.error is None:
            return "up"
        return "refused" if self.denied else "down"

    @property
    def answers(self) -> bool:
        return self.error is None

    @property
    def denied(self) -> bool:
        return self.error is not None and self.error.exit_code == ExitCode.ACCESS


@dataclass(frozen=True, slots=True)
class DestinationStatus:
    """A queue or topic, and the messages for it in the backlog: at least `waiting` unless `exact`.

    `note` is why it would not keep all of them; "" if it would. `topic` is whether it is a topic; None if unknown.
    `asked` is whether it was named: then its check needs Send.
    """

    link: Annotated[PingResult, SPREAD]
    waiting: Annotated[int, "Messages for it in the backlog, at least so many if exact is false"]
    exact: Annotated[bool, "Whether waiting is exact"] = True
    note: Annotated[str, "Why it would not keep all of them; empty if it would", LATER] = ""
    topic: bool | None = None
    asked: bool = True

    @property
    def error(self) -> SbpairError | None:
        """Why it is not up; None if only the key lacks the right to try one that was not named."""
        return None if isinstance(self.link.error, NotAuthorized) and not self.asked else self.link.error


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The messages for one destination in an outbox."""

    name: Annotated[str, "Its path"]
    messages: Annotated[int, "Messages for it"]
    oldest_seconds: Annotated[float, "Age of the oldest"]


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """A file of messages that neither side accepted."""

    path: Annotated[Path, "Its path"]
    entities: Annotated[tuple[KeptMessages, ...], "Its destinations"]

    @property
    def messages(self) -> Annotated[int, "Messages in it"]:
        return sum(each.messages for each in self.entities)


@dataclass(frozen=True, slots=True)
class LostPrimary:
    """A primary that is declared lost, or whose backlog was delivered elsewhere."""

    namespace: Annotated[str, "Its name"]
    declared: Annotated[bool, "Whether it is declared lost; if not, its backlog was delivered elsewhere before"]
    answers: Annotated[bool, "Whether it answers again"] = False
    messages: Annotated[int | None, "Messages in its entities, without dead letters; null if unknown"] = None
    dead_letters: Annotated[int | None, "Dead letters there; null if unknown"] = None
    reason: Annotated[str, "Why it does not answer, or cannot be counted; may be empty"] = ""
    accepted_twice: Annotated[tuple[Doubt, ...], "Acceptances of messages that two namespaces accepted"] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """`unseen` are queues and namespaces that could not be read; `denied` is all of the backlog.

    `waiting` are runs with work left. `reasons` are those of peeked dead letters; None if none were peeked. `lost` says
    that the primary is declared lost; "" if it is not. `to` is the namespace that the backlog would go to; with it,
    `primary` is None: it was not contacted. `mover` is that of the pair. `gateways` are this user's, of any pair.
    Unless `complete`, not all messages were peeked, and there may be more destinations.
    `oldest_for` is the destination of the oldest one; "" if unknown.
    `mends` are how to mend queues that are not as expected.
    """

    primary: Annotated[SideStatus | None, "The primary; null with --to, which does not contact it"]
    secondary: Annotated[SideStatus, "The secondary"]
    queues: Annotated[tuple[QueueStatus, ...], "Backlog queues"] = ()
    entities: Annotated[tuple[DestinationStatus, ...], "Checked queues and topics of the primary, or of --to"] = ()
    unseen: Annotated[
        tuple[Unseen, ...], "What could not be read, and runs whose messages are unknown", {"name": "skipped"}
    ] = ()
    denied: bool = False
    outbox: Annotated[OutboxStatus | None, "The file of --outbox; null without it"] = None
    waiting: tuple[WaitingRun, ...] = ()
    reasons: tuple[ReasonCount, ...] | None = None
    lost: str = ""
    to: Annotated[SideStatus | None, "The namespace of --to; null without it", {"name": "destination"}] = None
    lost_primary: Annotated[LostPrimary | None, "The primary, if it is declared lost, or was"] = None
    mover: Annotated[ActiveMover, "The mover of the backlog"] = UNKNOWN_MOVER
    gateways: Annotated[tuple[RunningGateway, ...], "Gateways of this user on this machine"] = ()
    complete: bool = True
    oldest_for: str = ""
    mends: tuple[str, ...] = ()

    @property
    def sides(self) -> dict[str, SideStatus]:
        """The namespaces that were asked, each once."""
        sides = {"primary": self.primary, "secondary": self.secondary, "to": self.to}
        twice = self.to is not None and self.to.endpoint.authority == self.secondary.endpoint.authority
        return {what: each for what, each in sides.items() if each and not (what == "to" and twice)}

    @property
    def total(self) -> Annotated[BacklogTotal, "All backlog queues together", {"name": "backlog"}]:
        """All backlog queues together, with the archives and the outbox."""
        kept = self.outbox.messages if self.outbox else 0
        return with_elsewhere(replace(total_of(self.queues), dead_letter_reasons=self.reasons), self.waiting, kept)

    @property
    def found(self) -> Mapping[AuditFinding, Collection[object]]:
        """The queues, archives and destinations in the outbox of each kind of finding that status knows."""
        kept = self.outbox.entities if self.outbox else ()
        queues = (each for each in self.queues if each.messages or each.scheduled)
        return {
            AuditFinding.MESSAGES: [*queues, *held_by(self.waiting), *kept],
            AuditFinding.DEAD_LETTERS: [each for each in self.queues if each.dead_letters],
            AuditFinding.NO_MOVER: [self.mover] if self.mover.is_missed(self.total.messages) else [],
        }

    @property
    def exit_code(self) -> int:
        """0 if all are up, 6 if a side or an entity is down; 2, 5 or 7 if all failures have that code, else 3."""
        return health_exit_code(self.errors) or (ExitCode.ACCESS if self.denied else ExitCode.DONE)

    @property
    def errors(self) -> Sequence[SbpairError]:
        """Why sides and entities are not up."""
        sides = (each.error for each in self.sides.values())
        found = (*sides, *(each.error for each in self.entities))
        return [error for error in found if error is not None]


@dataclass(frozen=True, slots=True)
class _Backlog:
    queues: tuple[QueueStatus, ...] = ()
    waiting: tuple[DestinationSummary, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    denied: bool = False
    complete: bool = False
    oldest_for: str = ""
    reasons: tuple[ReasonCount, ...] | None = None
    mends: tuple[str, ...] = ()


async def read_status(
    pair: Pair,
    entities: Sequence[str] = (),
    *,
    to: Endpoint | None = None,
    renames: Callable[[str], str] = str,
    outbox: Path | None = None,
    state: Path | None = None,
    lease: str | None = None,
    seconds: float = 10.0,
    max_peek: int = MAX_PEEK,
    max_peek_dead_letters: int = MAX_PEEK_DEAD_LETTERS,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Read the status of both sides, with at most `seconds` for each answer.

    Links are opened to `entities` of the primary and to the destinations of the backlog; nothing is sent over them.
    With `to`, these are in that namespace, and the primary is never contacted. `renames` returns the name that a
    destination has there.
    Up to `max_peek` messages of each queue are peeked for their destinations.
    Counts need the Manage claim on the secondary; without it, messages are peeked with Listen. If there are dead
    letters, up to `max_peek_dead_letters` in all are peeked for their reasons, 0 for none. An `outbox` is a file,
    which may be in use. `state` is the state directory whose runs with work left are counted, `lease` the queue of
    movers' leases. Raises NameInvalid, and errors of that file. A side without an answer is part of the result.
    """
    outbox_status = None if outbox is None else _read_outbox(outbox, time.time())
    ends = pair.ends_to(to or pair.primary)
    read = [pair.secondary] if ends.same else [pair.secondary, ends.destination]
    secondary, *others = await asyncio.gather(*(read_side(side, seconds, clock) for side in read))
    backlog = _Backlog()
    if _may_be_accepted(secondary):
        held = await _backlog(pair, ends, renames, max_peek, max_peek_dead_letters)
        if secondary.answers or not held.denied:
            secondary, backlog = replace(secondary, error=None), held
    destination = others[0] if others else replace(secondary, endpoint=ends.destination)
    waiting = {each.name.lower(): each for each in backlog.waiting}
    names = {name.lower(): name for name in (*entities, *(each.name for each in waiting.values()))}
    paths = list(names.values())[: len(set(entities)) + MAX_DESTINATIONS]
    links = await _links(destination, paths, seconds)
    if isinstance(destination.error, NotAuthenticated) and any(is_accepted(each.error) for each in links):
        destination = replace(destination, error=None)
    nothing = DestinationSummary("", 0)
    summaries = (waiting.get(link.name.lower(), nothing) for link in links)
    found = tuple(
        DestinationStatus(
            link, each.messages, backlog.complete, each.reason if each.found else "", each.topic, link.name in entities
        )
        for link, each in zip(links, summaries, strict=True)
    )
    runs, problem = ((), "") if state is None else read_waiting(StateOwner(pair.ends, state))
    checked = {name.lower() for name in paths}
    beyond = [each for name, each in waiting.items() if name not in checked]
    if beyond:
        count = sum(each.messages for each in beyond)
        left = f"{count} message{'' if count == 1 else 's'} for {len(beyond)} more"
        backlog = replace(backlog, unseen=(*backlog.unseen, Unseen("other destinations", left)))
    unseen = (*backlog.unseen, *unknown_runs(runs, problem))
    lost = None if to else await read_lost_primary(pair, state, seconds)
    return Status(
        primary=None if to else destination,
        secondary=secondary,
        queues=backlog.queues,
        entities=found,
        unseen=unseen,
        denied=backlog.denied,
        outbox=outbox_status,
        waiting=runs,
        reasons=backlog.reasons,
        lost=pair.loss,
        to=destination if to else None,
        lost_primary=lost,
        mover=await read_mover(ends, lease, seconds=seconds),
        gateways=running_gateways(),
        complete=backlog.complete or not backlog.queues,
        oldest_for=backlog.oldest_for,
        mends=backlog.mends,
    )


async def read_lost_primary(pair: Pair, state: Path | None = None, seconds: float = 10.0) -> LostPrimary | None:
    """Return the state of a primary that is declared lost, or whose backlog went elsewhere; None of any other."""
    known = LostPrimary(pair.primary.name, declared=bool(pair.lost)) if pair.lost else None
    with suppress(SbpairError), (state and state_if_any(state, pair.ends)) or nullcontext() as journal:
        if journal is not None and (known or delivered_elsewhere(journal)):
            twice = tuple(messages_accepted_twice(journal))
            known = LostPrimary(pair.primary.name, declared=bool(pair.lost), accepted_twice=twice)
    if known is None:
        return None
    try:
        async with open_atom(pair.primary, call_seconds=seconds) as namespace:
            counts = [(kind, each.counts) for kind, each in await namespace.list_counted() if each.counts]
    except SbpairError as error:
        return replace(known, answers=isinstance(error, (NotAuthenticated, NotAuthorized)), reason=error.message)
    dead = sum(each.dead_letter + each.transfer_dead_letter for _, each in counts)
    # A topic has scheduled messages only: those of its subscriptions are counted there.
    held = sum(each.scheduled if kind == Topic.kind else each.total for kind, each in counts)
    return replace(known, answers=True, messages=max(0, held - dead), dead_letters=dead)


def _read_outbox(path: Path, now: float) -> OutboxStatus:
    from sbpair.failover.outbox import outbox_depths

    if not path.exists():
        raise UsageError(f"outbox {path} does not exist", hint="check the path; the first message creates it")
    found = outbox_depths(path).items()
    return OutboxStatus(
        path, tuple(KeptMessages(name, each.messages, max(0.0, now - each.oldest_ms / 1000)) for name, each in found)
    )


async def read_side(
    endpoint: Endpoint, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
) -> SideStatus:
    """Read whether a namespace answers within `seconds`, and accepts its credential. Raises nothing expected."""
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
    with suppress(NotAuthorized, ServiceRefused):
        async with open_atom(endpoint, call_seconds=seconds) as namespace:
            await namespace.tier_name()


def _may_be_accepted(side: SideStatus) -> bool:
    """Return whether links may be accepted: management refuses the key of an entity as it refuses a wrong one."""
    return side.answers or isinstance(side.error, NotAuthenticated)


async def _links(side: SideStatus, names: Sequence[str], seconds: float) -> tuple[PingResult, ...]:
    if not names:
        return ()
    try:
        if side.error is not None and not _may_be_accepted(side):
            raise side.error
        async with signed_in(connect, side.endpoint) as client:
            found = await ping_all(side.endpoint, names, seconds=seconds, ping=partial(_open_link, client))
    except SbpairError as error:
        found = tuple(PingResult(name, health_of(error), side.seconds, error) for name in names)
    return tuple(
        replace(each, health=Health.UNKNOWN) if isinstance(each.error, AccessError) else each for each in found
    )


async def _open_link(client: AmqpClient, side: Endpoint, entity: str, _seconds: float) -> None:
    """Open a link to the entity and close it: a check without a message."""
    try:
        (await client.sender(entity)).close()
    except EntityMissing as error:
        text = f"{side.name} has no queue or topic {entity!r}"
        raise EntityMissing(text, entity=entity, namespace=side.name, hint=error.hint) from error


async def _backlog(
    pair: Pair, ends: Ends, renames: Callable[[str], str], max_peek: int, max_peek_dead_letters: int
) -> _Backlog:
    try:
        found = await auditing.audit(
            pair,
            to=ends.destination,
            renames=renames,
            max_peek=max_peek,
            max_peek_dead_letters=max_peek_dead_letters,
            sample_seconds=0,
        )
    except SbpairError as error:
        return _Backlog(unseen=(Unseen(pair.secondary.name, error.message),), denied=isinstance(error, AccessError))
    return _Backlog(
        tuple(queue_status(item) for item in found if item.outcome is not Outcome.FOREIGN),
        _waiting(found.destinations),
        tuple(each for each in found.unseen if each.name != destination_name(ends)),
        complete=found.complete,
        oldest_for=found.oldest_for,
        reasons=found.reasons,
        mends=tuple(audit_mends(found, pair.secondary.name)),
    )


def _waiting(destinations: Sequence[DestinationSummary]) -> tuple[DestinationSummary, ...]:
    return tuple(each for each in destinations if each.name not in ("", OTHERS))
