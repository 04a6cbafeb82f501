"""The queues of a namespace, over azure-servicebus' administration client.

Thin: it asks, converts and translates errors. Durations are text, for TimeSpan.MaxValue does not fit a timedelta.
The client may be shared by coroutines: it keeps nothing per request, and its session is made for it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from azure.core.exceptions import HttpResponseError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.bus.credentials import connection_string, token_credential
from sbpair.bus.translate import answer_of, translated
from sbpair.bus.transport import CALL_SECONDS, RoadTransport, road_to, session_for
from sbpair.errors import ServiceRefused
from sbpair.model import TIMESPAN_MAX, TIMESPAN_MAX_DAYS, Counts, Endpoint, QueueSpec, QueueState, SasKey, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from azure.servicebus.management import QueueProperties, QueueRuntimeProperties

    from sbpair.bus.control import QueueControl

Value = str | int | bool
# What a creation always says, default or not: the original's clients said it, and a default may change.
ALWAYS_SAID = (
    "lock_duration",
    "max_size_in_megabytes",
    "max_delivery_count",
    "default_message_time_to_live",
    "auto_delete_on_idle",
    "dead_lettering_on_message_expiration",
    "enable_batched_operations",
)


@asynccontextmanager
async def open_queues(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[QueueControl]:
    """The queues of `endpoint`. Nothing is connected before the first call; `call_seconds` bounds each request."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomQueues(client, endpoint.name)


@asynccontextmanager
async def open_client(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[ServiceBusAdministrationClient]:
    """The SDK's client, on the way that leads to `endpoint`."""
    async with session_for(endpoint) as session:
        transport = RoadTransport(road_to(endpoint), session, call_seconds)
        async with _client(endpoint, transport) as client:
            yield client


class AtomQueues:
    """`QueueControl` of one namespace. To be had from `open_queues`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        with translated("list the queues", self._namespace):
            found = [each async for each in self._client.list_queues() if _under(prefix, each.name)]
            counted = await self._counts_under(prefix) if counts and found else {}
        return [state_of(each.name, each, *counted.get(each.name.lower(), ())) for each in found]

    async def get(self, path: str) -> QueueState:
        with translated(f"read the queue {path}", self._namespace):
            try:
                return state_of(path, await self._client.get_queue(path))
            except AttributeError as error:
                # The SDK reads a topic's description as a queue that has none.
                raise ServiceRefused(
                    f"{path} is not a queue in {self._namespace}",
                    hint="something else has its name: rename or delete it",
                ) from error

    async def counts(self, path: str) -> Counts:
        with translated(f"count the messages of {path}", self._namespace):
            return counts_of(await self._client.get_queue_runtime_properties(path))

    async def create(self, spec: QueueSpec) -> bool:
        with translated(f"create the queue {spec.path}", self._namespace):
            try:
                await self._client.create_queue(spec.path, **description(spec))  # type: ignore[arg-type]
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def _counts_under(self, prefix: str) -> dict[str, tuple[Counts, Usage]]:
        listed = self._client.list_queues_runtime_properties()
        return {
            each.name.lower(): (counts_of(each), usage_of(each)) async for each in listed if _under(prefix, each.name)
        }


def description(spec: QueueSpec) -> dict[str, Value]:
    """The keyword arguments of a creation: what is always said, and whatever else is not the service's default."""
    values: Iterable[tuple[str, Value]] = ((each.name, getattr(spec, each.name)) for each in fields(spec))
    defaults = QueueSpec(spec.path)
    return {name: value for name, value in values if name in ALWAYS_SAID or value != getattr(defaults, name)}


def state_of(
    path: str, properties: QueueProperties, counts: Counts | None = None, usage: Usage | None = None
) -> QueueState:
    """A queue as the SDK gives it. What the service left out is its default."""
    read = {each.name: getattr(properties, each.name) for each in fields(QueueSpec) if each.name != "path"}
    said = {name: _plain(value) for name, value in read.items() if value is not None}
    return QueueState(
        QueueSpec(path, **said),  # type: ignore[arg-type]  # the names are the fields' own
        partitioned=bool(properties.enable_partitioning),
        counts=counts,
        usage=usage,
    )


def counts_of(runtime: QueueRuntimeProperties) -> Counts:
    return Counts(
        active=runtime.active_message_count or 0,
        dead_letter=runtime.dead_letter_message_count or 0,
        scheduled=runtime.scheduled_message_count or 0,
        total=runtime.total_message_count or 0,
        transfer=runtime.transfer_message_count or 0,
        transfer_dead_letter=runtime.transfer_dead_letter_message_count or 0,
    )


def usage_of(runtime: QueueRuntimeProperties) -> Usage:
    times = (runtime.created_at_utc, runtime.updated_at_utc, runtime.accessed_at_utc)
    return Usage(runtime.size_in_bytes, *(_seconds(each) for each in times))


def _seconds(at: datetime | None) -> float | None:
    """Since 1970; the service's year 1 is a time that never was."""
    return None if at is None or at.year == 1 else at.timestamp()


def iso_duration(value: timedelta) -> str:
    """ISO 8601 text; anything from the days of TimeSpan.MaxValue on is that value, which the SDK has rounded."""
    if value.days >= TIMESPAN_MAX_DAYS:
        return TIMESPAN_MAX
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    days = f"{value.days}D" if value.days else ""
    parts = (f"{hours}H" if hours else "", f"{minutes}M" if minutes else "")
    time = "".join(parts) + (f"{seconds}{fraction}S" if seconds or fraction else "")
    return f"P{days}{'T' if time else ''}{time}" if days or time else "PT0S"


def _client(
    endpoint: Endpoint, transport: RoadTransport
) -> AbstractAsyncContextManager[ServiceBusAdministrationClient]:
    if isinstance(endpoint.credential, SasKey):
        text = connection_string(endpoint.authority, endpoint.credential)
        return ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
    return _client_with_token(endpoint, transport)


@asynccontextmanager
async def _client_with_token(
    endpoint: Endpoint, transport: RoadTransport
) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with (
        token_credential(endpoint.credential) as credential,
        ServiceBusAdministrationClient(endpoint.authority, credential, transport=transport, retry_total=0) as client,
    ):
        yield client


def _plain(value: object) -> Value:
    if isinstance(value, timedelta):
        return iso_duration(value)
    if isinstance(value, (bool, int)):
        return value
    return str(getattr(value, "value", value))


def _under(prefix: str, path: str) -> bool:
    return path.lower().startswith(prefix.lower())
