"""The two connections of one sender: an SDK sender for the primary's entity and one for a backlog queue.

Invariant: a sender that failed without an answer is not used again, and closing it never delays a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from sbpair.azure.data_errors import is_answer
from sbpair.errors import UsageError
from sbpair.failover.steps import Call, Steps

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Content

SdkAction: TypeAlias = Callable[[Any, float], Any]
"""A function of an SDK object and a number of seconds."""

CLOSE_SECONDS = 5.0

MAX_BROKEN = 4
"""How many broken connections may wait to be closed while messages go to the backlog."""

log = logging.getLogger(__name__)


Side: TypeAlias = Literal["primary", "backlog"]

SideT = TypeVar("SideT", bound=str)


class SideConnections(Generic[SideT]):
    """`make` returns a new SDK sender for a path of a side. It connects when first used."""

    def __init__(self, make: Callable[[SideT, str], Any]) -> None:
        self._make = make
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
        found = self._senders.get(side)
        sender = found[1] if found and found[0] == path else (yield from self._replace(side, path))
        try:
            return (yield Call(action if failed is None else _raising(failed), sender, seconds))
        except BaseException as error:
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
