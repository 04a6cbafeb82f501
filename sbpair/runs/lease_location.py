"""What a lease across machines goes by: where it is, who holds it, and for how long a confirmation of it is good.

Pure: no I/O, and the only clock that is read is the one of `uptime`.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from sbpair import backlog
from sbpair.errors import NameInvalid, UsageError

if TYPE_CHECKING:
    from sbpair.model.pair import Pair

VALID_SECONDS = 20.0
"""For how long a confirmation of the lock is good at most, however long the lock is: the service's clock may be another
than ours, and a link may be gone there before it is here. All movers must agree on it."""

MIN_LOCK_SECONDS = 5.0
"""The shortest lock that Service Bus knows, believed where its clock and ours make no sense together."""

MAX_SESSION_ID = 128

CREATE = (
    "create it with sessions, and a lock of 30 s or more:"
    " az servicebus queue create --enable-session true --lock-duration PT1M --name"
)


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who has a lease, as the state of its session says. `since_ms` is in ms since 1970, by the holder's clock."""

    host: str
    pid: int
    run: str
    since_ms: int

    def encode(self) -> bytes:
        return json.dumps({"schema": "sbpair/lease/1", **asdict(self)}).encode()

    @classmethod
    def decode(cls, state: bytes | None) -> LeaseHolder | None:
        """None where it is nobody's, or says nothing that can be read."""
        try:
            said = json.loads(state or b"")
            found = cls(str(said["host"])[:255], int(said["pid"]), str(said["run"])[:64], int(said["since_ms"]))
            return found if (found.host + found.run).isprintable() and str(found) else None
        except (ValueError, LookupError, TypeError, OverflowError, OSError):
            return None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"process {self.pid} on {self.host} (run {self.run}, since {since} UTC)"


class LeaseLocation(NamedTuple):
    """Where a lease is: a session of a queue of a namespace."""

    namespace: str
    queue: str
    session_id: str

    def __str__(self) -> str:
        return f"the lease of {self.session_id} (queue {self.queue} in {self.namespace})"


class ClockReading(NamedTuple):
    """The same moment by two clocks, in seconds: the loop's may stand still while the machine sleeps."""

    loop: float
    awake: float

    def plus(self, seconds: float) -> ClockReading:
        return ClockReading(self.loop + seconds, self.awake + seconds)

    def is_before(self, other: ClockReading) -> bool:
        """Whether it is by both of them."""
        return self.loop < other.loop and self.awake < other.awake


LONG_AGO = ClockReading(float("-inf"), float("-inf"))


def uptime() -> float:
    """Seconds, those included for which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def valid_seconds(lock_seconds: float) -> float:
    """For how many seconds, from when it was asked for, the confirmation of such a lock is relied upon."""
    return min(VALID_SECONDS, max(lock_seconds, MIN_LOCK_SECONDS) * 2 / 3)


def lease_session_id(pair: Pair) -> str:
    """The session that stands for a pair: what its backlog queues are named after, whatever a machine calls the pair.

    Raises NameInvalid.
    """
    name = pair.primary.name.lower()
    if len(name) > MAX_SESSION_ID:
        raise NameInvalid(f"the name of the primary has more than {MAX_SESSION_ID} characters", hint="shorten it")
    return name


def check_queue(queue: str) -> None:
    """Raise NameInvalid, or UsageError, for a queue that can carry no lease."""
    backlog.check_path(queue, shorten="name the queue as its namespace does")
    if backlog.TRANSFER_SEGMENT in queue.lower().split("/"):
        raise UsageError(f"{queue} is a backlog queue, and cannot carry a lease", hint=f"{CREATE} sbpair-lease")
