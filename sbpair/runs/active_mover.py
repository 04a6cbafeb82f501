"""Whether a mover has the lease of a pair, and since when, as far as this machine and the queue of a lease show it.

Reading takes no lease: the state of a session is read without its lock, while another connection has that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import signed_in
from sbpair.errors import SbpairError, SessionLockLost
from sbpair.model.pair import Ends
from sbpair.runs.file_lease import lease_holder
from sbpair.runs.session_lease import LeaseHolder, lease_session_id

ELSEWHERE = "none on this machine, unknown elsewhere: --lease QUEUE shows those with that lease"


@dataclass(frozen=True, slots=True)
class ActiveMover:
    """A mover of the pair's backlog."""

    moving: Annotated[bool | None, "Whether a mover has the lease of the pair; null if that cannot be known"]
    holder: Annotated[str, "Its process, machine and run, and since when; empty if none is known"] = ""
    reason: Annotated[str, "Why it cannot be known; empty if it is"] = ""

    def is_missed(self, waiting: int | None) -> bool:
        """Return whether messages wait, and certainly no mover has the lease."""
        return self.moving is False and bool(waiting)

    def __str__(self) -> str:
        return self.holder or self.reason or "none"


UNKNOWN_MOVER = ActiveMover(moving=None, reason=ELSEWHERE)


async def read_mover(ends: Ends, lease: str | None, *, seconds: float = 10.0) -> ActiveMover:
    """Return the mover on this machine, or else that in the queue of a `lease`."""
    if holder := lease_holder(ends):
        return ActiveMover(moving=True, holder=f"{holder} on this machine")
    if lease is None:
        return UNKNOWN_MOVER
    try:
        async with asyncio.timeout(seconds), signed_in(connect, ends.source) as client:
            state = await client.session_state(lease, lease_session_id(ends))
    except SessionLockLost:  # no receiver holds the session
        return ActiveMover(moving=False)
    except (SbpairError, TimeoutError) as error:
        why = getattr(error, "message", f"no answer within {seconds:g} s")
        return ActiveMover(moving=None, reason=f"unknown: the lease in {lease} cannot be read: {why}")
    return ActiveMover(
        moving=state is not None, holder=str(LeaseHolder.decode(state) or "another mover") if state else ""
    )
