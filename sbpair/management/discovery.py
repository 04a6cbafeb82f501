"""Discovery of old pairs: backlog queues in all namespaces that an identity, or keys of namespaces, can read.

Nothing is changed, locked or received. A subscription or namespace that cannot be read is an item, and hides no other.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from sbpair import backlog
from sbpair.amqp_client.client import GetToken
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import open_tokens
from sbpair.azure.http_client import check_health, is_local
from sbpair.errors import SbpairError
from sbpair.management.audit_findings import BacklogTotal, QueueStatus, total_of
from sbpair.management.calls import CONCURRENCY, ControlEvent
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import AMQPS_PORT, MAX_BACKLOG_QUEUES, Endpoint, Identity, endpoint_settings, is_address
from sbpair.model.queues import Counts, QueueState
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.model.retries import attempt
from sbpair.move.peek.peeker import PAGE, Peeked, PeekedMessage, Peeker, PeekPosition

Result = TypeVar("Result")
OnEvent: TypeAlias = Callable[["ControlEvent | Peeked"], object]
Settings: TypeAlias = dict[str, str | bool]
PrimaryState: TypeAlias = Literal["found", "unreadable", "unresolved", "unknown"]

PEEK_SECONDS = 15.0
RESOLVE_SECONDS = 10.0
FORBIDDEN = 403
HOST_MISSING = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


@dataclass(frozen=True, slots=True)
class OldPair:
    """A primary, and the namespace that holds its backlog queues."""

    name: Annotated[str, "Name of the pair in the file"]
    primary: Annotated[str, "Name of the primary"]
    state: Annotated[PrimaryState, "Whether the primary was found, cannot be read, or its name no longer resolves"]
    secondary: Annotated[str, "Name of the namespace with the backlog queues"]
    subscription: Annotated[str, "Its subscription; empty without Resource Manager"]
    resource_group: Annotated[str, "Its resource group; empty without Resource Manager"]
    backlog_queues: Annotated[int, "Number of backlog queues that clients used, by the highest index"]
    sides: Annotated[dict[str, Settings], "Settings of each side in the file"]
    queues: Annotated[tuple[QueueStatus, ...], "Backlog queues"] = ()

    @property
    def backlog(self) -> Annotated[BacklogTotal, "All backlog queues together"]:
        """All of its backlog queues together."""
        return total_of(self.queues)


@dataclass(frozen=True, slots=True)
class Discovery:
    """The pairs in so many `namespaces`, and an item for each subscription and namespace to read."""

    pairs: tuple[OldPair, ...]
    namespaces: int
    read: Report[Any]


@dataclass(frozen=True, slots=True)
class _Readable:
    """A namespace whose queues can be listed, with its subscription and resource group."""

    endpoint: Endpoint
    list_queues: Callable[[], Awaitable[list[QueueState]]]
    place: tuple[str, str] = ("", "")


async def primary_state(guess: Endpoint) -> PrimaryState:
    """Return whether the name of a primary that was not found still resolves: an emulator knows its own hosts."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            if is_local(guess):
                status = (await check_health(guess, seconds=RESOLVE_SECONDS)).status
                return "unresolved" if status == FORBIDDEN else "unreadable"
            if guess.web_proxy() is not None:  # which resolves the names of Azure
                return "unknown"
            await asyncio.get_running_loop().getaddrinfo(guess.host, None)
    except (SbpairError, OSError, UnicodeError) as error:
        missing = isinstance(error, socket.gaierror) and error.errno in HOST_MISSING
        return "unresolved" if missing else "unknown"
    return "unreadable"


async def discover_by_manager(
    beside: Endpoint, subscriptions: Collection[str] = (), *, on_event: OnEvent = lambda _event: None
) -> Discovery:
    """Read the namespaces of these subscriptions, or of all that the identity can read, in the cloud of a namespace.

    Raises SbpairError if the subscriptions cannot be listed.
    """
    from sbpair.azure.arm import list_namespaces, list_subscriptions, open_clients

    async with open_clients(beside) as clients, open_tokens() as get_token:
        reader = _Reader(on_event, get_token)
        ids = subscriptions or await reader.attempt("list the subscriptions", partial(list_subscriptions, clients))
        listed = await asyncio.gather(
            *(reader.read(f"subscription {each}", partial(list_namespaces, clients, each)) for each in ids)
        )
        readable = []
        for each in chain.from_iterable(item.detail or () for item in listed):
            # Only an emulator has an address for each; a namespace that is still created has none.
            endpoint = _endpoint_at(beside, each.name, str(each.resource["properties"].get("serviceBusEndpoint", "")))
            place = (each.resource["id"].split("/")[2], each.group)
            readable.append(_Readable(endpoint, partial(each.list_under, "", counts=True), place))
        return await reader.discover(readable, listed)


async def discover_by_keys(endpoints: Iterable[Endpoint], *, on_event: OnEvent = lambda _event: None) -> Discovery:
    """Read the namespaces of these endpoints, each with the variable of its key as `key_source`."""
    reader, readable = _Reader(on_event), []
    async with AsyncExitStack() as stack:
        for each in endpoints:
            control = await stack.enter_async_context(open_atom(each))
            name = each.name
            if is_address(each.host):
                name = (await reader.read(each.key_source, control.own_name)).detail or each.key_source
            readable.append(_Readable(replace(each, name=name), partial(control.list_under, "", counts=True)))
        return await reader.discover(readable)


def _endpoint_at(beside: Endpoint, name: str, address: str = "") -> Endpoint:
    """Return the endpoint of a namespace in the cloud of another one, or on its emulator, for the identity."""
    local = is_local(beside)
    domain = "servicebus.windows.net" if local else beside.tls_name.partition(".")[2]
    authority = f"{name}.{domain}".lower()
    host, port = (beside.host, urlsplit(address).port or beside.port) if local else (authority, AMQPS_PORT)
    found = replace(beside, name=name.lower(), authority=authority, host=host, port=port, key_source="")
    return replace(found, credential=Identity(), rotated=None, clock=NamespaceClock())


def settings_of(endpoint: Endpoint) -> Settings:
    """Return the settings of a side in the file: no secret, but the name of its variable."""
    found: Settings = {**endpoint_settings(endpoint)}
    if endpoint.key_source:
        return found | {"connection_string_env": endpoint.key_source}
    return found if endpoint.tls else found | {"tls": False}


@dataclass
class _Reader:
    """Reads namespaces concurrently."""

    on_event: OnEvent
    get_token: GetToken | None = None
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENCY))

    async def attempt(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        async with self.slots:
            return await attempt(what, action, sleep=asyncio.sleep, on_event=self.on_event)

    async def read(self, name: str, action: Callable[[], Awaitable[Result]]) -> ReportItem[Result]:
        """Return the result, or the error, as an item."""
        try:
            return ReportItem(name, Outcome.OK, detail=await self.attempt(f"read {name}", action))
        except SbpairError as error:
            return ReportItem(name, Outcome.FAILED, error.message, exit_code=error.exit_code)

    async def discover(self, readable: Iterable[_Readable], before: Iterable[ReportItem[Any]] = ()) -> Discovery:
        """List the queues of namespaces, and return the pairs, by secondary and primary."""
        known = {each.endpoint.name: each for each in readable}
        listed = await asyncio.gather(*(self.read(name, each.list_queues) for name, each in sorted(known.items())))
        backlogs: dict[tuple[str, str], list[QueueState]] = defaultdict(list)
        for item in listed:
            for state in item.detail or ():
                if primary := backlog.primary_of(state.spec.path):
                    backlogs[primary.lower(), item.name].append(state)
        pairs = await asyncio.gather(*(self._pair(known, *names, found) for names, found in backlogs.items()))
        read = sum(item.detail is not None for item in listed)
        return Discovery(tuple(with_names(pairs)), read, Report((*before, *listed)))

    async def _pair(
        self, known: Mapping[str, _Readable], primary: str, secondary: str, states: Sequence[QueueState]
    ) -> OldPair:
        holder = known[secondary]
        end = known[primary].endpoint if primary in known else _endpoint_at(holder.endpoint, primary)
        state: PrimaryState = "found" if primary in known else await primary_state(end)
        # An address of an emulator is that of its other namespace.
        elsewhere = primary not in known and is_local(end)
        settings: Settings = {"namespace": f"{primary}.localhost"} if elsewhere else settings_of(end)
        sides = {"primary": settings, "secondary": settings_of(holder.endpoint)}
        used = min(max(backlog.index_of(primary, each.spec.path) or 0 for each in states) + 1, MAX_BACKLOG_QUEUES)
        queues = await asyncio.gather(*(self._queue(holder.endpoint, each) for each in states))
        return OldPair("", primary, state, secondary, *holder.place, used, sides, tuple(queues))

    async def _queue(self, endpoint: Endpoint, state: QueueState) -> QueueStatus:
        counts, times, notes, path = state.counts or Counts(), list[int](), list[str](), state.spec.path

        async def take(seen: PeekedMessage) -> None:
            times.append(seen.facts.enqueued_at)

        if counts.active:
            peeker = Peeker(endpoint, self.get_token, asyncio.sleep, self.on_event, PAGE, bodies=False)
            try:
                async with self.slots, asyncio.timeout(PEEK_SECONDS):
                    await peeker.peek(PeekPosition(path), take)
            except (SbpairError, TimeoutError) as error:
                notes.append(f"its messages cannot be peeked: {getattr(error, 'message', 'no answer')}")
        if state.usage and state.usage.used_at is not None:
            notes.append(time.strftime("last used on %Y-%m-%d", time.gmtime(state.usage.used_at)))
        oldest = min(filter(None, times), default=None)
        age = None if oldest is None else max(0.0, time.time() - oldest / 1000)
        return QueueStatus(path, counts.active, counts.dead_letter, True, age, "; ".join(notes), counts.scheduled)


def with_names(pairs: Iterable[OldPair]) -> Iterable[OldPair]:
    """Give each pair a valid name that no other has, in any case of letters: that of its primary, if possible."""
    taken: set[str] = set()
    for pair in pairs:
        plain = re.sub(r"^[._-]+", "", pair.primary)[:50] or "pair"
        more = chain(("", f"-{pair.secondary}"), (f"-{number}" for number in count(2)))
        name = next(each for end in more if (each := f"{plain}{end}"[:64]).lower() not in taken)
        taken.add(name.lower())
        yield replace(pair, name=name)
