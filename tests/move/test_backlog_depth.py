"""The depth of a run's queues between two counts."""

import pytest

from sbpair.move.events import QueueDepths, QueueDone, QueueProgress, QueuesFound, SyphonEvent
from sbpair.move.run_state import RunState

FOUND = QueuesFound(("q0", "q1"), (), managed=True)
COUNTED = (QueueDepths("q0", 100, 5), QueueDepths("q1", 0))


PROGRESS = QueueProgress("q0", 40, 40, 0, 3, 40)


@pytest.mark.parametrize(
    ("events", "depth"),
    [
        # Nothing is known before every queue was counted.
        ((), (None, None)),
        ((FOUND, COUNTED[0]), (None, 5)),
        # What has left since the count is subtracted.
        ((FOUND, *COUNTED), (100, 5)),
        ((FOUND, *COUNTED, QueueProgress("q0", 40, 30, 10, None, 30, 7)), (70, 7)),
        ((FOUND, *COUNTED, QueueProgress("q0", 30, 30, 0, None, 30)), (70, 5)),
        # Held messages are at least there.
        ((FOUND, *COUNTED, QueueProgress("q1", 8, 0, 8, None, 0, 9)), (108, 5)),
        # A later count wins.
        ((FOUND, *COUNTED, PROGRESS), (3, 5)),
        ((FOUND, *COUNTED, PROGRESS, QueueDepths("q0", 60, 6)), (60, 6)),
        # An empty queue has no oldest message.
        ((FOUND, *COUNTED, QueueProgress("q0", 100, 100, 0, None, 100), QueueDone("q0")), (0, None)),
    ],
)
def test_the_depth_is_the_last_count_less_what_has_gone_since(
    events: tuple[SyphonEvent, ...], depth: tuple[int | None, int | None]
) -> None:
    found = RunState()
    for event in events:
        found.take(event)
    assert (found.messages(), found.oldest_ms()) == depth
