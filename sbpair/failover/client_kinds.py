"""The sync and the async kind of everything that differs between them: clients, identities, locks, and `close`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from sbpair.azure.data_client import aio_client, signed, sync_client
from sbpair.failover.side_connections import close_quietly
from sbpair.failover.steps import Steps, drive, drive_async

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

P = ParamSpec("P")
T = TypeVar("T")


def _sync_identity() -> Any:
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _async_identity() -> Any:
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential()


class ClientKind(NamedTuple):
    """`client(endpoint, credential, seconds)` returns an SDK client, `identity()` a DefaultAzureCredential."""

    client: Callable[[Endpoint, Any, float], Any]
    identity: Callable[[], Any]
    lock: Callable[[], Any]


SYNC = ClientKind(sync_client, _sync_identity, threading.RLock)
ASYNC = ClientKind(aio_client, _async_identity, asyncio.Lock)


class ClientFactory:
    """Creates SDK clients of one kind. All of them share one DefaultAzureCredential, created when first needed."""

    def __init__(self, kind: ClientKind) -> None:
        self._kind = kind
        self._identity: Any = None

    def client(self, endpoint: Endpoint, seconds: float) -> Any:
        """Return a client that is not connected yet. `seconds` limits operations without a limit of their own."""
        credential = signed(endpoint)
        if credential is None:
            credential = self._identity = self._identity or self._kind.identity()
        return self._kind.client(endpoint, credential, seconds)

    def close(self) -> Steps[None]:
        if self._identity is not None:
            identity, self._identity = self._identity, None
            yield from close_quietly(identity)


def blocking(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs a procedure of an object in its turn, and blocks until it ends."""

    @wraps(steps)
    def method(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self._turn:
            return drive(steps(self, *arguments, **options))

    method.__name__ = steps.__name__.removeprefix("_")
    return method


def awaiting(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an async method that runs a procedure of an object in its turn."""

    @wraps(steps)
    async def method(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        async with self._turn:
            return await drive_async(steps(self, *arguments, **options))

    method.__name__ = steps.__name__.removeprefix("_")
    return method


class Closable:
    """An object that closes by steps, in its turn."""

    _turn: Any

    def _closing(self) -> Steps[None]:
        raise NotImplementedError

    def _close(self) -> Steps[None]:
        """Close the connections to both sides."""
        return self._closing()


class SyncClosable(Closable):
    """A context manager of programs that block."""

    _kind = SYNC
    close = blocking(Closable._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class AsyncClosable(Closable):
    """A context manager of asyncio programs."""

    _kind = ASYNC
    close = awaiting(Closable._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()
