"""An emulator in a thread of its own, for tests that are synchronous."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import ROOT_RULE, QueueEntity
from sbpair.testing import EmulatorThread
from tests.kit.waiting import PATIENCE_SECONDS

T = TypeVar("T")
NAMESPACE, OTHER = "contoso", "contoso-dr"


class Running(EmulatorThread):
    """An emulator whose loop runs in a thread; `do` calls what touches it there. Clients sign in by `rule`."""

    rule = ROOT_RULE

    def __init__(self, namespaces: Iterable[Any] = ((NAMESPACE, 0), (OTHER, 0)), **options: Any) -> None:
        super().__init__(namespaces, **options)
        self._names = (f"queue-{number}" for number in itertools.count())

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context in a task of the emulator's loop, which leaves it, too."""
        entered: Future[T] = Future()
        leaving = asyncio.Event()

        async def stay() -> None:
            async with context as value:
                entered.set_result(value)
                await leaving.wait()

        staying = asyncio.run_coroutine_threadsafe(stay(), self._loop)
        wait([entered, staying], PATIENCE_SECONDS, FIRST_COMPLETED)
        try:
            if entered.done():
                yield entered.result()
        finally:
            self._loop.call_soon_threadsafe(leaving.set)
            staying.result(PATIENCE_SECONDS)

    @property
    def namespace(self) -> Namespace:
        return self.emulator.namespaces[NAMESPACE]

    @property
    def other(self) -> Namespace:
        """The namespace without lasting connections."""
        return self.emulator.namespaces[OTHER]

    @property
    def ready(self) -> Any:
        """How each namespace is reached."""
        return self.emulator.ready.namespaces

    @property
    def authority(self) -> str:
        """The host and port that clients of the first namespace connect to."""
        return self.ready[0].endpoint.removeprefix("sb://").rstrip("/")

    @property
    def connection_string(self) -> str:
        return self.connection_string_with(self.rule)

    def connection_string_with(self, rule: AuthorizationRule) -> str:
        key = f"SharedAccessKeyName={rule.key_name};SharedAccessKey={rule.primary_key}"
        return f"Endpoint=sb://{self.authority};{key};UseDevelopmentEmulator=true"

    def connection_string_with_token(self, token: str) -> str:
        return f"Endpoint=sb://{self.authority};SharedAccessSignature={token};UseDevelopmentEmulator=true"

    def advance(self, seconds: float) -> None:
        self.do(lambda: self.emulator.advance(int(seconds * 1000)))

    def queue(self, **properties: Any) -> QueueEntity:
        """A new queue with a name of its own."""
        return self.do(lambda: self.namespace.create_queue(next(self._names), QueueDescription(**properties)))
