"""The terms of a lease across machines: its location, its holder, and how long a confirmation is valid.

Pure: no I/O, and no clock is read.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from sbpair import backlog
from sbpair.errors import NameInvalid, UsageError

if TYPE_CHECKING:
    from sbpair.model.pair import Ends

VALID_SECONDS = 20.0
"""Maximum validity of a lock's confirmation, however long the lock is: clocks may differ, and the service may drop a
link before the client notices. All movers must agree on it.
"""

MIN_LOCK_SECONDS = 5.0
"""The shortest lock of Service Bus, assumed if the two clocks contradict each other."""

MAX_SESSION_ID = 128

CREATE = (
    "create it with sessions and a lock of 30 s or more:"
    " az servicebus queue create --enable-session true --lock-duration PT1M --name"
)


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The holder of a lease, as its session's state names it. `since_ms` is ms since 1970, by the holder's clock."""

    host: str
    pid: int
    run: str
    since_ms: int

    def encode(self) -> bytes:
        return json.dumps({"schema": "sbpair/lease/1", **asdict(self)}).encode()

    @classmethod
    def decode(cls, state: bytes | None) -> LeaseHolder | None:
        """Return the holder, or None for an empty or unreadable state."""
        try:
            found = json.loads(state or b"")
            holder = cls(str(found["host"])[:255], int(found["pid"]), str(found["run"])[:64], int(found["since_ms"]))
            return holder if (holder.host + holder.run).isprintable() and str(holder) else None
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, OSError):
            return None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"process {self.pid} on {self.host} (run {self.run}, since {since} UTC)"


class LeaseLocation(NamedTuple):
    """The address of a lease: a session of a queue of a namespace."""

    namespace: str
    queue: str
    session_id: str

    def __str__(self) -> str:
        return f"the lease of {self.session_id} (queue {self.queue} in {self.namespace})"


class ClockReading(NamedTuple):
    """One moment by two clocks, in seconds: the loop's clock may stop while the machine sleeps."""

    loop: float
    awake: float

    def plus(self, seconds: float) -> ClockReading:
        return ClockReading(self.loop + seconds, self.awake + seconds)

    def is_before(self, other: ClockReading) -> bool:
        """Return whether it is earlier by both clocks."""
        return self.loop < other.loop and self.awake < other.awake


LONG_AGO = ClockReading(float("-inf"), float("-inf"))


def valid_seconds(lock_seconds: float) -> float:
    """Return the validity of a confirmation, counted from its request, for a lock of this length."""
    return min(VALID_SECONDS, max(lock_seconds, MIN_LOCK_SECONDS) * 2 / 3)


def lease_session_id(pair: Ends, source: str | None = None) -> str:
    """Return the session that stands for a pair: its backlog queues' namespace, whatever the pair's local name.

    That of a `source` stands for one entity. Raises NameInvalid.
    """
    if source is not None:
        return source.lower() if len(source) <= MAX_SESSION_ID else sha256(source.lower().encode()).hexdigest()
    name = pair.primary.name.lower()
    if len(name) > MAX_SESSION_ID:
        raise NameInvalid(f"the name of the primary has more than {MAX_SESSION_ID} characters", hint="shorten it")
    return name


def check_queue(queue: str) -> None:
    """Raise NameInvalid or UsageError for a queue that cannot carry a lease."""
    backlog.check_path(queue, shorten="name the queue as its namespace does")
    if backlog.TRANSFER_SEGMENT in queue.lower().split("/"):
        raise UsageError(f"{queue} is a backlog queue and cannot carry a lease", hint=f"{CREATE} sbpair-lease")
