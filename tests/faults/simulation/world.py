"""Two namespaces of the emulator on a simulated network and clock, and the tool's own look at the time and the web.

Inside `made_virtual` the tool finds virtual time wherever it would read the machine's, and nothing depends on where an
object lies in memory: what is a set of objects there is walked in the order in which they came.
"""

import asyncio
import functools
import gc
import itertools
import random as random_module
import sys
import time as time_module
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any, Final

from sbpair import errors
from sbpair.emulator import service_errors
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
from sbpair.emulator.server import Emulator, EmulatorOptions
from sbpair.model.entities import Queue, Subscription, Topic, subscription_of
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import Endpoint, Pair, SasKey
from sbpair.model.queues import Counts, QueueSpec, QueueState
from tests.faults.simulation.loop import VirtualLoop
from tests.faults.simulation.network import End, Network
from tests.faults.simulation.plan import BEGAN_MS

PRIMARY: Final = "contoso"
SECONDARY: Final = "contoso-dr"

_TOOL: Final = (
    "sbpair.amqp",
    "sbpair.emulator",
    "sbpair.failover",
    "sbpair.move",
    "sbpair.relay",
    "sbpair.runs",
    "sbpair.syphon",
)
_TIME: Final = time_module.time


class ServiceClock:
    """The service's clock, on the loop's time. A jump is for ever."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.advanced_ms = 0

    def now_ms(self) -> int:
        return BEGAN_MS + round(self._loop.time() * 1000) + self.advanced_ms

    def advance(self, ms: int) -> None:
        self.advanced_ms += ms


class World(Emulator):
    """Two namespaces on the network. `ahead` is by how many seconds the clock of the tool's machine is wrong."""

    def __init__(self, loop: VirtualLoop, network: Network, *, queues: int) -> None:
        super().__init__(clock=ServiceClock(loop), options=EmulatorOptions(allow_hosts=(PRIMARY, SECONDARY)))
        self.loop = loop
        self.network = network
        self.ahead = 0.0
        self.start_timers()
        self.doors: dict[Any, End] = {}
        self.namespaces |= {name: self._namespace(name) for name in (PRIMARY, SECONDARY)}
        self.primary, self.secondary = self.namespaces.values()
        self.pair = Pair("orders", self._endpoint(PRIMARY), self._endpoint(SECONDARY), backlog_queues=queues)

    def _namespace(self, name: str) -> Namespace:
        namespace = Namespace(name, self.clock, self.timers, call_soon=self.loop.call_soon)
        namespace.authority = f"{name}:5672"
        namespace.on_outage.add(lambda: self._break(name))
        self.network.serve(name, lambda: None if namespace.is_down else AmqpConnection(namespace))
        return namespace

    def _break(self, name: str) -> None:
        for line in self.network.lines_to(name):
            line.server.abort()

    def set_tool_clock_right(self) -> None:
        self.ahead = (self.clock.now_ms() - BEGAN_MS) / 1000 - self.loop.time()

    def tool_time(self) -> float:
        return BEGAN_MS / 1000 + self.loop.time() + self.ahead

    def _endpoint(self, name: str) -> Endpoint:
        key = SasKey(ROOT_RULE.key_name, ROOT_RULE.primary_key)
        clock = NamespaceClock(wall=self.tool_time, uptime=self.loop.time)
        return Endpoint(name, f"{name}:5672", name, 5672, tls=False, credential=key, emulator=True, clock=clock)


class Control:
    """The management side without HTTP. `granted` is whether the tool's key has the Manage claim."""

    def __init__(self, world: World, random: Random, *, granted: bool) -> None:
        self._world = world
        self._random = random
        self._granted = granted

    async def _asked(self) -> None:
        weather = self._world.network.weather
        await asyncio.sleep(2 * weather.slow + weather.jitter * self._random.random())
        if not self._granted:
            raise errors.NotAuthorized("Manage,EntityRead claims are required for this operation.")
        if self._world.secondary.is_down or self._world.network.refusing.get(SECONDARY):
            raise errors.Unreachable(f"no connection to {SECONDARY}")

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        del counts
        await self._asked()
        found = [queue.path for queue in self._world.secondary.queues() if queue.path.lower().startswith(prefix)]
        return [QueueState(QueueSpec(path)) for path in found]

    async def get(self, path: str) -> QueueState:
        await self.counts(path)
        return QueueState(QueueSpec(path))

    async def queue_or_topic(self, path: str) -> Queue | Topic:
        await self._asked()
        if self._world.primary.find_topic(path) is not None:
            return Topic(path)
        if self._world.primary.find_queue(path) is None:
            raise errors.EntityMissing(f"there is no queue {path!r}", entity=path)
        return Queue(path)

    async def subscriptions(self, topic: str) -> list[Subscription]:
        await self._asked()
        found = self._world.primary.find_topic(topic)
        return [Subscription(topic, each.name) for each in found.subscriptions] if found else []

    async def counts(self, path: str) -> Counts:
        await self._asked()
        queue = self._world.secondary.find_queue(path)
        if subscription_of(path) or queue is None:
            with suppress(service_errors.EntityNotFound):
                queue = self._world.primary.entity(path)
        if queue is None:
            raise errors.EntityMissing(f"there is no queue {path!r}", entity=path)
        counts = queue.counts()
        return Counts(counts.active, counts.dead_letter, counts.scheduled, counts.total)

    async def create(self, spec: QueueSpec) -> bool:
        raise NotImplementedError(spec.path)


@contextmanager
def made_virtual(seed: int, loop: VirtualLoop, tool_time: Callable[[], float], control: Any) -> Iterator[None]:
    """The tool's time, chance and management are ours until the end of the block."""
    from sbpair.amqp_client import client
    from sbpair.azure import atom
    from sbpair.failover import outbox
    from sbpair.model import namespace_clock
    from sbpair.runs import session_lease
    from sbpair.syphon import ramp, runner

    @asynccontextmanager
    async def open_atom(*_: Any, **__: Any) -> AsyncIterator[Any]:
        yield control()

    async def no_time(_endpoint: Any) -> None:
        """Answer nothing: there is no HTTP."""

    random_module.seed(seed)
    with ExitStack() as undo:
        _replace(undo, time_module, "time", tool_time)
        _replace(undo, time_module, "monotonic", loop.time)
        for module in (atom, ramp, runner):
            _replace(undo, module, "open_atom", open_atom)
        for module in (namespace_clock, outbox):
            _replace(undo, module, "seconds_since_boot", loop.time)
        for module in (client, session_lease):
            _replace(undo, module, "ask_time", no_time)
        for module in _modules():
            _replace(undo, module, "set", loop.sets)
            for name, value in list(vars(module).items()):
                if type(value) is itertools.count:
                    _replace(undo, module, name, itertools.count())
        for function in _functions():
            _change_defaults(undo, function, tool_time)
        yield


@contextmanager
def without_collection() -> Iterator[None]:
    """Let no object end at a time that depends on what was run before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


def _modules() -> list[types.ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith(_TOOL)]


@functools.cache
def _functions() -> tuple[types.FunctionType, ...]:
    """Those that take the machine's time where nobody gives them another."""
    found: list[types.FunctionType] = []
    for module in _modules():
        for value in list(vars(module).values()):
            members = list(vars(value).values()) if isinstance(value, type) else [value]
            for member in members:
                function = getattr(member, "__wrapped__", getattr(member, "__func__", member))
                if isinstance(function, types.FunctionType) and _TIME in _defaults(function):
                    found.append(function)
    return tuple(dict.fromkeys(found))


def _defaults(function: types.FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _change_defaults(undo: ExitStack, function: types.FunctionType, tool_time: Callable[[], float]) -> None:
    had, had_named = function.__defaults__, function.__kwdefaults__
    undo.callback(setattr, function, "__defaults__", had)
    undo.callback(setattr, function, "__kwdefaults__", had_named)
    function.__defaults__ = had and tuple(tool_time if each is _TIME else each for each in had)
    if had_named:
        function.__kwdefaults__ = {name: tool_time if each is _TIME else each for name, each in had_named.items()}
