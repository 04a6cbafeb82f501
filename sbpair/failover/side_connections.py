"""The SDK's clients, sync or async, and the two connections of one sender: to the primary's entity and to the backlog.

Invariant: a sender that failed without an answer is not used again, and closing it never delays a message.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar

from sbpair.azure.data_errors import is_answer
from sbpair.azure.data_plane import aio_client, signed, sync_client
from sbpair.errors import UsageError
from sbpair.failover.steps import Call, Steps, awaiting, blocking

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Content
    from sbpair.model.pair import Endpoint

SdkAction: TypeAlias = Callable[[Any, float], Any]
"""A function of an SDK object and a number of seconds."""

CLOSE_SECONDS = 5.0

MAX_BROKEN = 4
"""How many broken connections may wait to be closed while messages go to the backlog."""

log = logging.getLogger(__name__)

Side: TypeAlias = Literal["primary", "backlog"]

SideT = TypeVar("SideT", bound=str)


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


class SideConnections(Generic[SideT]):
    """`make` returns a new SDK sender for a path of a side. It connects when first used.

    `unanswered` is whether the last call may have sent something that was neither accepted nor refused.
    """

    def __init__(self, make: Callable[[SideT, str], Any]) -> None:
        self._make = make
        self.unanswered = False
        self._senders: dict[SideT, tuple[str, Any]] = {}
        self._broken: list[Any] = []

    def current(self, side: SideT) -> Any:
        """Return the SDK sender of a side, or None before its first use."""
        found = self._senders.get(side)
        return found[1] if found else None

    def call(
        self, side: SideT, path: str, action: SdkAction, seconds: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Perform `action` with the side's sender and return its result. Raises the errors of `action`.

        `failed` is an error that `action` has already raised outside of these steps.
        """
        self.unanswered = False
        found = self._senders.get(side)
        sender = found[1] if found and found[0] == path else (yield from self._replace(side, path))
        try:
            return (yield Call(action if failed is None else _raising(failed), sender, seconds))
        except BaseException as error:
            self.unanswered = _was_open(sender) and not is_answer(error)
            if not (is_answer(error) or isinstance(error, TypeError | UsageError)):
                del self._senders[side]
                self._broken.append(sender)
            raise

    def close(self) -> Steps[None]:
        senders = [*self._broken, *(sender for _, sender in self._senders.values())]
        self._senders.clear()
        self._broken.clear()
        for sender in senders:
            yield from close_quietly(sender)

    def _replace(self, side: SideT, path: str) -> Steps[Any]:
        if side in self._senders:
            self._broken.append(self._senders.pop(side)[1])
        while self._broken and (side == "primary" or len(self._broken) > MAX_BROKEN):
            yield from close_quietly(self._broken.pop(0))
        sender = self._make(side, path)
        self._senders[side] = path, sender
        return sender


def _was_open(sender: Any) -> bool:
    """Return whether a link of an SDK sender was ever open: before that, it has sent nothing."""
    # The SDK sets it when a link opens, and never again to 0. A sender that fails without an answer is not used again.
    return getattr(sender, "_max_message_size_on_link", None) != 0


def send_action(content: Content) -> SdkAction:
    return lambda sender, seconds: sender.send_messages(content, timeout=seconds)


def open_action(sender: Any, _seconds: float) -> Any:
    """Open the link: creating a batch asks the service how large it may be."""
    return sender.create_message_batch()


def close_quietly(sdk_object: Any) -> Steps[None]:
    """Close an SDK object that may be broken. Logs errors instead of raising them."""
    try:
        yield Call(lambda each, _: each.close(), sdk_object, CLOSE_SECONDS)
    except Exception as error:  # noqa: BLE001  the SDK raises many kinds
        log.info("closing a connection of the SDK: %s", type(error).__name__)


def _raising(error: BaseException) -> SdkAction:
    def action(_sender: Any, _seconds: float) -> None:
        raise error

    return action


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
