"""An emulator in a thread of its own, for tests that are synchronous."""

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.testing import EmulatorThread

PATIENCE_SECONDS = 30
T = TypeVar("T")
NAMESPACE, OTHER = "contoso", "contoso-dr"


class Running(EmulatorThread):
    """An emulator whose loop runs in a thread; `do` calls what touches it there."""

    def __init__(self, namespaces: Iterable[Any] = ((NAMESPACE, 0), (OTHER, 0)), **options: Any) -> None:
        super().__init__(namespaces, **options)
        self._names = (f"queue-{number}" for number in itertools.count())

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context in the emulator's loop."""

        def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)

        entered = wait(context.__aenter__())
        try:
            yield entered
        finally:
            wait(context.__aexit__(None, None, None))

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
    def connection_string(self) -> str:
        return self.emulator.ready.namespaces[0].connection_string

    def connection_string_with(self, rule: AuthorizationRule) -> str:
        endpoint = self.emulator.ready.namespaces[0].endpoint
        key = f"SharedAccessKeyName={rule.key_name};SharedAccessKey={rule.primary_key}"
        return f"Endpoint={endpoint};{key};UseDevelopmentEmulator=true"

    def connection_string_with_token(self, token: str) -> str:
        endpoint = self.emulator.ready.namespaces[0].endpoint
        return f"Endpoint={endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"

    def advance(self, seconds: float) -> None:
        self.do(lambda: self.emulator.advance(int(seconds * 1000)))

    def queue(self, **properties: Any) -> QueueEntity:
        """A new queue with a name of its own."""
        return self.do(lambda: self.namespace.create_queue(next(self._names), QueueDescription(**properties)))
