"""The depth of a run's queues between two counts."""

from sbpair.move.events import BacklogDepth, QueueDepths, QueueDone, QueueProgress, QueuesFound, SyphonEvent


def after(*events: SyphonEvent) -> tuple[int | None, int | None]:
    depth = BacklogDepth()
    for event in events:
        depth.take(event)
    return depth.messages(), depth.oldest_ms()


FOUND = QueuesFound(("q0", "q1"), (), managed=True)
COUNTED = (QueueDepths("q0", 100, 5), QueueDepths("q1", 0))


def test_nothing_is_known_before_every_queue_was_counted() -> None:
    assert after() == (None, None)
    assert after(FOUND, QueueDepths("q0", 100, 5)) == (None, 5)


def test_what_has_left_since_the_count_is_subtracted() -> None:
    assert after(FOUND, *COUNTED) == (100, 5)
    assert after(FOUND, *COUNTED, QueueProgress("q0", 40, 30, 10, None, 30, 7)) == (70, 7)
    assert after(FOUND, *COUNTED, QueueProgress("q0", 30, 30, 0, None, 30)) == (70, 5)


def test_held_messages_are_at_least_there() -> None:
    assert after(FOUND, *COUNTED, QueueProgress("q1", 8, 0, 8, None, 0, 9)) == (108, 5)


def test_a_later_count_wins() -> None:
    progress = QueueProgress("q0", 40, 40, 0, 3, 40)
    assert after(FOUND, *COUNTED, progress) == (3, 5)
    assert after(FOUND, *COUNTED, progress, QueueDepths("q0", 60, 6)) == (60, 6)


def test_an_empty_queue_has_no_oldest_message() -> None:
    assert after(FOUND, *COUNTED, QueueProgress("q0", 100, 100, 0, None, 100), QueueDone("q0")) == (0, None)
