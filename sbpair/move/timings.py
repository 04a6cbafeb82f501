"""The waits of a mover, and when it tries a destination again."""

from dataclasses import dataclass

from sbpair.model.retries import Backoff

DEFAULT_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)


@dataclass(frozen=True, slots=True)
class MoveTimings:
    """`gather_seconds`: how long a few messages wait for more to fill a batch.

    `settle_seconds`: how long an accepted message waits for those in front of it. `renew_before_seconds`: how long
    before a lock expires it is renewed. `min_renewal_seconds`: the shortest time between two checks of the locks, for
    queues with a shorter lock.
    """

    backoff: Backoff = DEFAULT_BACKOFF
    gather_seconds: float = 0.02
    settle_seconds: float = 0.5
    renew_before_seconds: float = 25.0
    min_renewal_seconds: float = 1.0


DEFAULT_MOVE_TIMINGS = MoveTimings()
