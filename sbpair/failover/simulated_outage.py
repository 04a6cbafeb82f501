"""A failure that is only pretended, for rehearsals: a paired client that is given one finds what it says to be away.

Nothing outside of that client notices. The law: what is away is refused before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import ServiceBusConnectionError

from sbpair.azure.data_errors import translate_data_errors

if TYPE_CHECKING:
    from sbpair.failover.side_connections import Side


class SimulatedOutage:
    """What is away at the moment. Any thread may change it.

    outage = Outage()
    with PairedClient(pair, outage=outage) as client:
        outage.begin("primary")
        ...
        outage.end()
    """

    def __init__(self) -> None:
        self._away: frozenset[tuple[Side, str]] = frozenset()

    def begin(self, side: Side, path: str = "") -> None:
        """Have a side be away, or one queue or topic of it."""
        self._away |= {(side, path.lower())}

    def end(self) -> None:
        """Everything is there again."""
        self._away = frozenset()

    @property
    def active(self) -> bool:
        return bool(self._away)

    def check(self, side: Side, path: str) -> None:
        """Raise ServiceBusConnectionError where it is away."""
        if not self._away.isdisjoint({(side, ""), (side, path.lower())}):
            raise ServiceBusConnectionError(message=f"a rehearsed outage: {path} cannot be reached")

    def check_errand(self, side: Side, path: str) -> None:
        """The same for a ping or a probe, whose errors are sbpair's own. Raises Unreachable."""
        with translate_data_errors(f"reaching {path!r}"):
            self.check(side, path)


class OutageProxy:
    """An SDK's sender, sync or aio, over a line that an outage cuts."""

    def __init__(self, sender: Any, outage: SimulatedOutage, side: Side, path: str) -> None:
        self._sender, self._outage, self._where = sender, outage, (side, path)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sender, name)
        return self._guarded(found) if callable(found) and name != "close" else found

    def _guarded(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            self._outage.check(*self._where)
            return action(*arguments, **options)

        return act
