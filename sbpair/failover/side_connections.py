"""The SDK's clients, sync or async, and connections to both sides.

Invariant: a sender that failed without an answer is not used again, and closing it never delays a message.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
)

from sbpair.amqp.conditions import RETRY_HINT
from sbpair.amqp_client.limits import UNUSED_SECONDS
from sbpair.azure.data_plane import AioSdkKey, SdkKey, aio_client, from_sdk_error, is_answer, sync_client, text_of
from sbpair.errors import NotAuthenticated, SbpairError, TokenExpired, UsageError
from sbpair.model.pair import Identity
from sbpair.sync_async import Action, Call, Steps, Work, awaiting, blocking

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Content
    from sbpair.model.pair import Endpoint, Pair

CLOSE_SECONDS = 5.0

MAX_BROKEN = 4
"""How many broken connections may wait to be closed while messages go to the backlog."""

log = logging.getLogger(__name__)

SideT = TypeVar("SideT", bound=str)


class ClientFactory:
    """Creates SDK clients, sync or aio. Those of one identity share its tokens."""

    def __init__(self, *, is_async: bool) -> None:
        self._is_async = is_async
        self._tokens: dict[Identity, Any] = {}

    def client(self, endpoint: Endpoint, seconds: float) -> Any:
        """Return a client that is not connected yet. `seconds` limits operations without a limit of their own."""
        credential: Any = (AioSdkKey if self._is_async else SdkKey)(endpoint)
        if isinstance(endpoint.credential, Identity):
            if endpoint.credential not in self._tokens:
                self._tokens[endpoint.credential] = self._new_tokens(endpoint.credential, seconds)
            credential = self._tokens[endpoint.credential]
        return (aio_client if self._is_async else sync_client)(endpoint, credential, seconds)

    def close(self) -> Steps[None]:
        while self._tokens:
            yield from close_quietly(self._tokens.popitem()[1])

    def _new_tokens(self, identity: Identity, seconds: float) -> Any:
        from sbpair.azure.identity_tokens import BlockingTokens, tokens_of  # loads azure-identity

        # A send may ask twice for the primary, and once for the backlog.
        return tokens_of(identity) if self._is_async else BlockingTokens(identity, seconds / 4)


class SideConnections(Generic[SideT]):
    """`make` returns a new SDK sender for a path of a side. It connects when first used.

    `check(side, path)` raises the error of a simulated outage. With it, the senders are used by `call` only.
    `unanswered` is whether the last call may have sent something that was neither accepted nor refused.
    """

    def __init__(self, make: Callable[[SideT, str], Any]) -> None:
        self._make = make
        self.check: Callable[[SideT, str], None] | None = None
        self.unanswered = False
        self._senders: dict[SideT, tuple[str, Any]] = {}
        self._stale_at: dict[SideT, float] = {}
        self._broken: list[Any] = []

    def current(self, side: SideT) -> Any:
        """Return the SDK sender of a side for a use without steps, or None before its first use."""
        found = self._senders.get(side)
        if not found or self.check is not None or (now := monotonic()) > self._stale_at[side]:
            return None
        self._stale_at[side] = now + UNUSED_SECONDS
        return found[1]

    def call(
        self, side: SideT, path: str, action: Action, seconds: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Perform `action` with the side's sender and return its result. Raises the errors of `action`.

        `failed` is an error that `action` has already raised outside of these steps.
        """
        self.unanswered = False
        found = self._senders.get(side)
        # After a pause a link may have ended unseen, and a send over it would be in doubt.
        now, stale_at = monotonic(), self._stale_at.get(side, 0.0)
        self._stale_at[side] = now + UNUSED_SECONDS
        if found and found[0] == path and now <= stale_at:
            sender = found[1]
        else:
            sender = yield from self._replace(side, path)
        try:
            if self.check is not None:
                self.check(side, path)
            return (yield Call(action if failed is None else _raising(failed), sender, seconds))
        except BaseException as error:
            self.unanswered = _was_open(sender) and not is_answer(error)
            if not (is_answer(error) or isinstance(error, TypeError | UsageError)):
                del self._senders[side]
                self._broken.append(sender)
            if not is_answer(error) and (yield from has_next_key(sender, error)):
                if failed is not None or self.unanswered:
                    raise ServiceBusConnectionError(message="the key was replaced") from error
                return (yield from self.call(side, path, action, seconds))
            if _token_ended(sender, error):
                ended = TokenExpired(str(error), hint=RETRY_HINT)
                raise ServiceBusAuthenticationError(message=ended.message, error=ended) from error
            if type(error) is TimeoutError:
                # The async driver has ended a call that the SDK did not end in its time.
                raise OperationTimeoutError(message=f"no answer from {path!r} in time") from error
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


def has_next_key(sdk_object: Any, error: BaseException) -> Steps[bool]:
    """Return whether an error refuses the key of a sender or a receiver, and there is another one by now."""
    key = getattr(sdk_object, "_credential", None)
    is_refusal = isinstance(error, AzureError) and isinstance(from_sdk_error(error, ""), NotAuthenticated)
    if not is_refusal or not isinstance(key, SdkKey):
        return False
    error.add_note(f"The key is from {key.source or 'the program'}.")
    try:
        return bool((yield Work(key.replaced)))
    except SbpairError as why:
        error.add_note(f"No other one can be read: {why.message}.")
        return False


def _token_ended(sender: Any, error: BaseException) -> bool:
    """Return whether the token of an identity was refused because it had just ended: the next one is accepted."""
    is_key = isinstance(getattr(sender, "_credential", None), SdkKey)
    return not is_key and isinstance(error, AzureError) and text_of(error).startswith("ExpiredToken")


def _was_open(sender: Any) -> bool:
    """Return whether a link of an SDK sender was ever open: before that, it has sent nothing."""
    # The SDK sets it when a link opens, and never again to 0. A sender that fails without an answer is not used again.
    return getattr(sender, "_max_message_size_on_link", None) != 0


def send_action(content: Content) -> Action:
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


def _raising(error: BaseException) -> Action:
    def action(_sender: Any, _seconds: float) -> None:
        raise error

    return action


class Closable:
    """An object that closes by steps. Its procedures take turns, because an SDK object is for one user at a time."""

    _is_async: bool

    def __init__(self) -> None:
        self._turn: Any = asyncio.Lock() if self._is_async else threading.RLock()
        self._closed = False

    def _closing(self) -> Steps[None]:
        raise NotImplementedError

    def _close(self) -> Steps[None]:
        """Close the connections to both sides."""
        return self._closing()


class SyncClosable(Closable):
    """A context manager of programs that block."""

    _is_async = False
    close = blocking(Closable._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class AsyncClosable(Closable):
    """A context manager of asyncio programs."""

    _is_async = True
    close = awaiting(Closable._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


class BothSides(Closable):
    """A user of an entity in both namespaces. `seconds` limits operations without a limit of their own."""

    _noun: str

    def __init__(self, pair: Pair, entity: str, seconds: float) -> None:
        super().__init__()
        self.pair = pair
        self.entity_name = entity
        self._client_seconds = seconds
        self._factory = ClientFactory(is_async=self._is_async)
        self._clients: dict[str, Any] = {}

    def _open(self) -> None:
        """Create both clients before both sides are used concurrently. Connects to nothing."""
        if self._closed:
            raise ValueError(f"the {self._noun} has been closed: make another one")
        for side in ("primary", "secondary"):
            if side not in self._clients:
                endpoint = self.pair.primary if side == "primary" else self.pair.secondary
                self._clients[side] = self._factory.client(endpoint, self._client_seconds)

    def _closing(self) -> Steps[None]:
        self._closed = True
        yield from self._close_sides()
        while self._clients:
            yield from close_quietly(self._clients.popitem()[1])
        yield from self._factory.close()

    def _close_sides(self) -> Steps[None]:
        raise NotImplementedError
