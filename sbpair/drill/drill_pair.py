"""The pair of a drill: an emulator's, or the user's with queues of the drill's own. And how its outages are made.

Invariant: a drill writes only to queues created for it, under unique names, and deletes them whatever happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from sbpair import backlog
from sbpair.errors import TimedOut, first_error
from sbpair.failover.simulated_outage import SimulatedOutage
from sbpair.management.calls import gather_all
from sbpair.management.temporary_queues import IDLE, open_temporary_queues
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.model.queues import QueueSpec

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.server import Emulator, Ready, ReadyNamespace


PRIMARY, SECONDARY = "contoso", "contoso-dr"
OWN_QUEUES = 2


@asynccontextmanager
async def emulated_pair(
    backlog_queues: int, relays: Mapping[str, str] | None = None, token_life: float | None = None
) -> AsyncIterator[tuple[Pair, EmulatedOutages]]:
    """Start an emulator with a pair of namespaces, and with relay paths by namespace. Raises MachineLacks.

    With `token_life`, in seconds, each side signs in with an identity of its own tenant.
    """
    from sbpair.emulator.server import DEFAULT_OPTIONS, Emulator, EmulatorOptions

    def create_relay(namespace: Namespace) -> None:
        namespace.hybrid_connections.create((relays or {})[namespace.name])

    wanted = [(PRIMARY, 0), (SECONDARY, 0)]
    options = DEFAULT_OPTIONS
    if token_life is not None:
        options = EmulatorOptions(tls=True, identity=True, tenants=True, token_life=token_life)
    async with Emulator(wanted, create_entities=create_relay if relays else None, options=options) as emulator:
        # The emulator's clock is advanced on purpose: no difference from this machine's is worth a warning.
        clock = NamespaceClock(wall=lambda: emulator.clock.now_ms() / 1000)
        first, second = (
            replace(
                endpoint_from_connection_string(each.connection_string, name=each.name)
                if token_life is None
                else _signed_in(each, emulator.ready),
                clock=clock,
            )
            for each in emulator.ready.namespaces
        )
        yield Pair("drill", first, second, backlog_queues=backlog_queues), EmulatedOutages(emulator)


def _signed_in(namespace: ReadyNamespace, ready: Ready) -> Endpoint:
    """Return the endpoint with the client of the namespace's tenant."""
    client = namespace.client_id, namespace.tenant_id, str(ready.authority), namespace.client_secret
    endpoint = endpoint_from_connection_string(
        namespace.tls_connection_string, name=namespace.name, ca_file=ready.ca_file
    )
    return replace(endpoint, credential=Identity("client-secret", *client, ca_file=ready.ca_file))


class EmulatedOutages:
    """Outages of emulated namespaces, or of one backlog queue: connections or links break, and new ones are refused."""

    outage = None

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def stop_primary(self) -> None:
        self.emulator.faults.namespace_down(PRIMARY)

    def stop_relay(self, namespace: str) -> None:
        """Break every connection of a namespace. Later ones reach it, and its relay refuses them with 503."""
        self.emulator.faults.relay_down(namespace, status=503)
        with self.emulator.faults.during("namespace-down", namespace):
            pass

    def stop_queue(self, path: str) -> None:
        self.emulator.faults.entity_down(SECONDARY, path)

    def restore(self) -> None:
        self.emulator.faults.end_all()


class SimulatedOutages:
    """Outages that are simulated in this client; no other client is affected."""

    def __init__(self) -> None:
        self.outage = SimulatedOutage()

    def stop_primary(self) -> None:
        self.outage.begin("primary")

    def stop_queue(self, path: str) -> None:
        self.outage.begin("backlog", path)

    def restore(self) -> None:
        self.outage.end()


Outages: TypeAlias = EmulatedOutages | SimulatedOutages


def drill_queue_names(tag: str, queues: int) -> tuple[str, tuple[str, ...]]:
    """Return the queue that a drill creates in the primary, and those in the secondary."""
    entity = f"sbpair-drill-{tag}"
    return entity, tuple(backlog.queue_path(entity, index) for index in range(queues))


@asynccontextmanager
async def drill_queues(pair: Pair, tag: str, queues: int, emit: EmitPhase) -> AsyncIterator[tuple[Pair, str]]:
    """Create the drill's queues, and delete them at the end.

    Yields the pair with the drill's own backlog queues, whose paths begin with another primary's name, and the queue
    in the primary. Needs Manage on both sides.
    """
    entity, _ = drill_queue_names(tag, queues)
    emit("provision", f"creating {entity} in {pair.primary.name}, and {queues} backlog queues in {pair.secondary.name}")
    remaining: list[str] = []

    def left_in(endpoint: Endpoint) -> Callable[[str, object], object]:
        return lambda path, _error: remaining.append(f"{path} in {endpoint.name}")

    try:
        async with (
            open_temporary_queues(pair.primary, left_in(pair.primary)) as own,
            open_temporary_queues(pair.secondary, left_in(pair.secondary)) as waiting,
        ):
            await own.create(QueueSpec(entity, auto_delete_on_idle=IDLE))
            specs = (backlog.queue_spec(entity, index) for index in range(queues))
            await gather_all(waiting.create(replace(spec, auto_delete_on_idle=IDLE)) for spec in specs)
            yield replace(pair, primary=replace(pair.primary, name=entity), backlog_queues=queues), entity
    finally:
        emit("clean", f"not deleted, delete by hand: {', '.join(remaining)}" if remaining else "its queues are deleted")


EmitPhase = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class DrillPhase:
    """Event: a phase begins, or a client has an event ("sender", "relay"). `seconds` counts from the start."""

    name: Annotated[str, "Its name"]
    text: Annotated[str, "Its description"]
    seconds: Annotated[float, "Time since the start"] = 0.0


class Timeline:
    """Emits phases, and records them."""

    def __init__(self, on_event: Callable[[Any], object]) -> None:
        self._on_event = on_event
        self._started = time.monotonic()
        self.phases: list[DrillPhase] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __call__(self, name: str, text: str) -> None:
        self.phases.append(DrillPhase(name, text, round(self.seconds, 3)))
        self._on_event(self.phases[-1])


@asynccontextmanager
async def in_background(send: Callable[[asyncio.Event], Coroutine[Any, Any, object]]) -> AsyncIterator[None]:
    """Send until the block ends, which sets the event of `send`.

    A pending send is completed, not cancelled: the SDK can swallow a cancellation.
    """
    stop = asyncio.Event()
    with first_error():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send(stop), name="send")
            try:
                yield
            finally:
                stop.set()


class Awaited:
    """A state that is waited for. Each change of it sets `changed`."""

    changed: asyncio.Event
    max_phase_seconds: float

    async def until(self, what: str, shown: Callable[[], bool]) -> None:
        """Wait until `shown` returns True. Raises TimedOut."""
        try:
            async with asyncio.timeout(self.max_phase_seconds):
                while not shown():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise TimedOut(
                f"the drill waited {self.max_phase_seconds:g} s for {what}", hint="run sbpair doctor"
            ) from None
