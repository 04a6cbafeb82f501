"""A session of an entity, held by a link: no other receiver gets it while the link lives and its lock is renewed.

Invariant: the lock belongs to the link, and ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sbpair import errors
from sbpair.amqp.performatives import Source, Target
from sbpair.amqp.types import Described, Map, Symbol
from sbpair.amqp_client.raw_links import RawReceiver

if TYPE_CHECKING:
    from sbpair.amqp.session import Session
    from sbpair.amqp_client.stream import Stream

FILTER = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")

_TICKS_TO_1970 = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class SessionReceiver(RawReceiver):
    """Receives from one session, and holds it. `AmqpClient.renew_session` renews its lock."""

    def __init__(self, stream: Stream, session: Session, address: str, session_id: str) -> None:
        super().__init__(stream, session, address)
        self.session_id = session_id

    async def attach(self) -> None:
        """Open the link. Raises SessionLocked; ServiceRefused if the peer grants no session, or another one."""
        await self.open(
            source=Source(self.address, filter=Map([(FILTER, self.session_id)])),
            target=Target(f"sbpair-{self._link.name}"),
            snd_settle_mode=0,
            rcv_settle_mode=1,
        )
        if self._granted_session() != self.session_id:
            self.close()
            raise errors.ServiceRefused(
                f"link to {self.address!r}: the session was not granted",
                condition="amqp:not-allowed",
                hint="the same request would be refused again",
            )

    @property
    def locked_until_ms(self) -> int:
        """The lock's expiry when the link was opened, in ms since 1970 by the service; 0 if unknown."""
        ticks = (self._link.remote.properties or {}).get(LOCKED_UNTIL)
        return (int(ticks) - _TICKS_TO_1970) // _TICKS_PER_MS if isinstance(ticks, int) else 0

    def _granted_session(self) -> Any:
        source = self._link.remote.source
        given = source.filter.get(FILTER) if isinstance(source, Source) and isinstance(source.filter, Map) else None
        return given.value if isinstance(given, Described) else given
