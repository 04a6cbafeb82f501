"""An emulator in a thread with an event loop of its own, for programs that block or run another loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from sbpair.emulator.faults.active import BadField
from sbpair.emulator.server import Emulator
from sbpair.testing.declarations import Declaration, read_declaration

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import EntityCounts

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

    def create(self, declaration: Declaration) -> None:
        """Create the entities of a declaration that do not exist. Raises UsageError."""
        self.thread.do(lambda: declaration.create_in(self._namespace))

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
