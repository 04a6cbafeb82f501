"""One sender's two connections: an SDK's sender for the primary's entity, and one for a backlog queue.

The law: a sender on which something went wrong without an answer is not used again, and nobody waits for it to close
while a message waits. Sync or async: what is awaited is the driver's affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from sbpair.azure.data_errors import is_answer
from sbpair.errors import UsageError
from sbpair.failover.steps import Call, Steps

Use: TypeAlias = Callable[[Any, float], Any]
"""What to do with an SDK's sender, in so many seconds."""

CLOSE_SECONDS = 5.0

MAX_SPENT = 4
"""So many broken connections may wait to be closed, while a message is in a hurry."""

log = logging.getLogger(__name__)


Side: TypeAlias = Literal["primary", "backlog"]

SideT = TypeVar("SideT", bound=str)


class SideConnections(Generic[SideT]):
    """`make` gives a new SDK sender for a path of a side; it connects when it is first used."""

    def __init__(self, make: Callable[[SideT, str], Any]) -> None:
        self._make = make
        self._senders: dict[SideT, tuple[str, Any]] = {}
        self._spent: list[Any] = []

    def opened(self, side: SideT) -> Any:
        """The SDK's sender of a side; None where it has yet to be made."""
        known = self._senders.get(side)
        return known[1] if known else None

    def on(self, side: SideT, path: str, use: Use, seconds: float, failed: BaseException | None = None) -> Steps[Any]:
        """What `use` answers. Raises what it raises. `failed` is what it has raised already, without these steps."""
        known = self._senders.get(side)
        sender = known[1] if known and known[0] == path else (yield from self._new(side, path))
        try:
            return (yield Call(use if failed is None else _raising(failed), sender, seconds))
        except BaseException as error:
            if not (is_answer(error) or isinstance(error, TypeError | UsageError)):
                del self._senders[side]
                self._spent.append(sender)
            raise

    def close(self) -> Steps[None]:
        senders = [*self._spent, *(sender for _, sender in self._senders.values())]
        self._senders.clear()
        self._spent.clear()
        for sender in senders:
            yield from closed(sender)

    def _new(self, side: SideT, path: str) -> Steps[Any]:
        if side in self._senders:
            self._spent.append(self._senders.pop(side)[1])
        while self._spent and (side == "primary" or len(self._spent) > MAX_SPENT):
            yield from closed(self._spent.pop(0))
        sender = self._make(side, path)
        self._senders[side] = path, sender
        return sender


def _raising(error: BaseException) -> Use:
    def use(_sender: Any, _seconds: float) -> None:
        raise error

    return use


def closed(sender: Any) -> Steps[None]:
    """Close what may be broken: what goes wrong then concerns nobody any more."""
    try:
        yield Call(lambda each, _: each.close(), sender, CLOSE_SECONDS)
    except Exception as error:  # noqa: BLE001  the SDK raises what it likes
        log.info("closing a connection of the SDK: %s", type(error).__name__)
