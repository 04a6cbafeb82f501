"""An emulator in a thread with a loop of its own, for programs that block; and the entities that tests declare.

Those are the arguments of the mark `service_bus`, in the form of `declared_entities`. `queues` are names, or a mapping
to properties. `topics` is a mapping to subscriptions, which are names, or a mapping to properties or an SQL filter.
`hybrid_connections` are names, or a mapping to properties. `config` names a Config.json instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from sbpair import timespan
from sbpair.emulator.declared_entities import DeclaredEntities, Members, inner, load_config
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import EntityCounts
from sbpair.emulator.faults.fault_kinds import BadField
from sbpair.emulator.server import Emulator
from sbpair.errors import UsageError

T = TypeVar("T")
ANSWER_SECONDS = 30.0


class EmulatorThread:
    """An emulator for the duration of a `with` block. It takes the arguments of Emulator and raises its errors.

    `thread["contoso"]` is one of its namespaces. `emulator` belongs to the thread: `do` calls a function there.
    """

    def __init__(self, namespaces: Iterable[Any] = (("contoso", 0), ("contoso-dr", 0)), **options: Any) -> None:
        self.emulator = Emulator(namespaces, **options)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="emulator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result(ANSWER_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(ANSWER_SECONDS)

    async def _serve(self) -> None:
        try:
            await self.emulator.__aenter__()
        except BaseException as error:  # noqa: BLE001  # it belongs to the thread that starts this one
            self._started.set_exception(error)
            return
        try:
            self._started.set_result(asyncio.get_running_loop())
            await self._stopped.wait()
        finally:
            await self.emulator.__aexit__(None, None, None)

    def do(self, action: Callable[[], T]) -> T:
        """Call a function in the emulator's thread. Return its result, or raise its error."""

        async def on_loop() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(ANSWER_SECONDS)

    def __getitem__(self, namespace: str) -> EmulatedNamespace:
        return EmulatedNamespace(self, namespace)


@dataclass(frozen=True, slots=True)
class EmulatedNamespace:
    """A namespace of an EmulatorThread. Every method may be called from any thread."""

    thread: EmulatorThread
    name: str

    @property
    def connection_string(self) -> str:
        return self._namespace.connection_string

    @property
    def _namespace(self) -> Namespace:
        return self.thread.emulator.namespaces[self.name]

    def declare(
        self,
        queues: Iterable[str] | Mapping[str, Mapping[str, object]] = (),
        topics: Mapping[str, object] | None = None,
        hybrid_connections: Iterable[str] | Mapping[str, Mapping[str, object]] = (),
    ) -> None:
        """Create entities, described as in the mark `service_bus`. Raises UsageError."""
        given = {"queues": queues, "topics": topics, "hybrid_connections": hybrid_connections}
        self.create(read_declaration(given))

    def create(self, declared: DeclaredEntities) -> None:
        """Create the entities that do not exist. Raises UsageError with every fault."""
        self.thread.do(lambda: _refuse(declared.create_in(self._namespace)))

    def counts(self, path: str) -> EntityCounts:
        """Return the message counts of a queue, a topic, or a subscription such as `news/subscriptions/audit`."""
        return self.thread.do(lambda: self._namespace.entity(path).counts())

    def advance(self, ms: int | timedelta) -> None:
        """Advance the clock of the whole emulator, by milliseconds or a timedelta."""
        self.thread.do(lambda: self.thread.emulator.advance(ms))

    @contextmanager
    def fault(self, kind: str, **fields: int | str) -> Iterator[str]:
        """Begin a fault for the duration of a `with` block. Raises BadField for a missing, unknown or wrong field."""
        if "namespace" in fields:
            raise BadField("namespace", f"not expected: a fault of this object is one of '{self.name}'")
        acting = self.thread.emulator.faults.during(kind, self.name, **fields)
        identity = self.thread.do(acting.__enter__)
        try:
            yield identity
        finally:
            self.thread.do(lambda: acting.__exit__(None, None, None))


class EmulatedPair(NamedTuple):
    """The two namespaces of a pair, in one emulator."""

    primary: EmulatedNamespace
    secondary: EmulatedNamespace

    @property
    def environ(self) -> dict[str, str]:
        """The environment with which `sbpair` and `load_pair` find this pair."""
        sides = {"PRIMARY": self.primary, "SECONDARY": self.secondary}
        names = {f"SBPAIR_{side}_NAME": each.name for side, each in sides.items()}
        return names | {f"SBPAIR_{side}_CONNECTION_STRING": each.connection_string for side, each in sides.items()}


_RELAY: Final = "hybrid_connections"


def definitions(declared: DeclaredEntities) -> Iterator[tuple[str, object]]:
    """Yield each entity's kind and name, in lower case, with its definition."""
    for kind, listed in (("queue", "Queues"), ("hybrid connection", "HybridConnections")):
        for entity in declared.document.get(listed, ()):
            name = entity["Name"].lower()
            yield f"{kind} '{name}'", {**entity, "Name": name}
    for topic in declared.document.get("Topics", ()):
        name = topic["Name"].lower()
        yield f"topic '{name}'", topic.get("Properties", {})
        for each in topic.get("Subscriptions", ()):
            below = each["Name"].lower()
            yield f"subscription '{name}/{below}'", {**each, "Name": below}


def read_declaration(arguments: Mapping[str, object], folder: Path = Path()) -> DeclaredEntities:
    """Return the entities of a mark's arguments; `config` is relative to `folder`. Raises UsageError."""
    members = Members()
    known = members.object("", arguments, ("queues", "topics", "hybrid_connections", "config"))
    queues = [_entity(members, "queues", *each) for each in _named(members, "queues", known.get("queues"))]
    relay = [_entity(members, _RELAY, *each) for each in _named(members, _RELAY, known.get(_RELAY))]
    topics = [_topic(members, *each) for each in _topics(members, known.get("topics"))]
    config = known.get("config")
    if config is not None and (queues or topics or relay):
        members.fault("config", "does not go with queues and topics")
    if config is not None and not isinstance(config, str | Path):
        members.fault("config", "expected the path of a file")
    _refuse(members.faults)
    if config is None:
        listed = {"HybridConnections": relay} if relay else {}
        return DeclaredEntities("", {"Queues": queues, "Topics": topics, **listed})
    file = load_config(folder / str(config))
    [declared, *more] = file.namespaces.values() or [DeclaredEntities("", {})]
    if more:
        raise UsageError(f"config: {file.source} has several namespaces", hint="name a file with one namespace")
    file.requested([], 0)
    return declared


def _named(members: Members, path: str, value: object) -> list[tuple[Any, object]]:
    """Return names with their values: those of a mapping, or None for each of other names."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [(each, None) for each in value]
    if value is not None:
        members.fault(path, "expected names, or a mapping of names")
    return []


def _topics(members: Members, value: object) -> list[tuple[Any, object]]:
    if value is None or isinstance(value, Mapping):
        return _named(members, "topics", value)
    members.fault("topics", 'expected a mapping of topics to subscriptions, such as {"news": ["audit"]}')
    return []


def _topic(members: Members, name: object, subscriptions: object) -> dict[str, Any]:
    path = f"topics.{name}"
    below = [_subscription(members, path, *each) for each in _named(members, path, subscriptions)]
    return {"Name": name, "Subscriptions": below}


def _entity(members: Members, path: str, name: object, properties: object) -> dict[str, Any]:
    if isinstance(properties, Mapping):
        properties = _properties(members, inner(path, name), properties)
    return {"Name": name, "Properties": {} if properties is None else properties}


def _properties(members: Members, path: str, given: Mapping[object, object]) -> dict[str, object]:
    """Return properties with the names of Config.json. One that is given in both forms is a fault."""
    spelled: dict[str, object] = {}
    properties: dict[str, object] = {}
    for key, value in given.items():
        name = _property_name(str(key))
        if name in spelled:
            members.fault(inner(path, key), f"the same property as {spelled[name]}; give one of them")
        spelled[name] = key
        properties[name] = _plain(value)
    return properties


def _subscription(members: Members, path: str, name: object, given: object) -> dict[str, Any]:
    if not isinstance(given, str):
        return _entity(members, path, name, given)
    selected = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": given}}
    return {"Name": name, "Rules": [{"Name": "$Default", "Properties": selected}]}


def _property_name(name: str) -> str:
    """Return the name that Config.json has for a property: LockDuration for `lock_duration`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return timespan.show(value // timedelta(microseconds=1) * 10)
    return value


def _refuse(faults: Iterable[object]) -> None:
    if lines := [str(fault) for fault in faults]:
        raise UsageError("; ".join(lines), hint="see sbpair help emulator")
