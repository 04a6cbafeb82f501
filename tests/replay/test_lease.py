"""One mover of a pair at a time: the driver's lease, and its tasks' use of the heartbeat file."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.emulator.entities.description import QueueDescription
from sbpair.replay import driver
from sbpair.replay.archive import STOP_FILE, Archive
from sbpair.replay.progress import Event, PhaseProgress
from sbpair.replay.run_description import ReplayOptions
from sbpair.replay.task_lease import POLL_SECONDS, TaskLease, hold_leases
from sbpair.timespan import TICKS_PER_SECOND
from tests.replay.segments import created
from tests.replay.world import OTHER, World

BEACON = "lease/one.json"
LEASES = "leases"


@pytest.fixture
def leases(place: World) -> str:
    description = QueueDescription(requires_session=True, lock_duration=60 * TICKS_PER_SECOND)
    place.running.do(lambda: place.running.other.create_queue(LEASES, description))
    return LEASES


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def beat(archive: Archive, number: int, good_seconds: float, lost: str | None = None) -> None:
    archive.write_line(BEACON, {"number": number, "valid_seconds": good_seconds, "lost": lost})


def is_sure(task_lease: TaskLease) -> bool:
    try:
        task_lease.check()
    except errors.Unreachable:
        return False
    return True


def test_a_task_is_confirmed_from_the_third_heartbeat_until_they_cease(tmp_path: Path) -> None:
    archive, clock = created(tmp_path), Clock()
    task_lease = TaskLease(archive, BEACON, clock)
    assert not is_sure(task_lease), "nothing was written yet"
    heard = []
    for number in range(1, 5):
        clock.seconds += POLL_SECONDS
        beat(archive, number, 10.0)
        heard.append(is_sure(task_lease))
    assert heard == [False, False, True, True]
    clock.seconds += 10.0
    assert not is_sure(task_lease), "the driver has been silent since"
    beat(archive, 5, 0.0, "another mover has it")
    clock.seconds += POLL_SECONDS
    with pytest.raises(errors.LeaseLost, match="another mover has it"):
        task_lease.check()


waits = st.sampled_from((0.0, POLL_SECONDS, 3.0, 12.0))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((1.0, 10.0, 20.0)), st.lists(waits, min_size=4, max_size=4)), max_size=8))
def test_a_task_is_never_confirmed_for_longer_than_its_driver(beats: list[tuple[float, list[float]]]) -> None:
    """Writes may take any time, and reads may be rare; no clock is shared."""
    with TemporaryDirectory() as directory:
        archive, clock = created(directory), Clock()
        task_lease = TaskLease(archive, BEACON, lambda: clock() - 1_000)
        good_until = 0.0

        def look_after(seconds: float) -> None:
            clock.seconds += seconds
            assert not is_sure(task_lease) or clock() < good_until

        for number, (good_seconds, (first, second, third, fourth)) in enumerate(beats, 1):
            confirmed = clock() + good_seconds
            look_after(first)
            clock.seconds += second
            beat(archive, number, good_seconds)
            good_until = max(good_until, confirmed)
            look_after(third)
            look_after(fourth)


def test_a_second_run_on_another_machine_is_refused(place: World, leases: str, tmp_path: Path) -> None:
    first = created(tmp_path / "first")
    with hold_leases(place.pair, "r1", first, directory=tmp_path / "first-state", queue=leases):
        request = place.request(tmp_path / "second", lease_queue=leases)
        with pytest.raises(errors.LeaseHeld, match="run r1") as refused:
            driver.start_run(request, ReplayOptions(), place.queues, lambda _event: None)
    assert refused.value.exit_code == 4
    assert not [*(tmp_path / "second").rglob("run.json")]
    with hold_leases(place.pair, "r2", first, directory=request.state, queue=leases):
        pass  # it was given back


def test_a_queue_unsuitable_for_a_lease_is_refused(place: World, tmp_path: Path) -> None:
    for queue, kind in (("nowhere", errors.EntityMissing), (place.queues[0], errors.UsageError)):
        with pytest.raises(kind, match=queue):
            driver.start_run(
                place.request(tmp_path, lease_queue=queue), ReplayOptions(), place.queues, lambda _event: None
            )


def test_a_lease_file_that_was_replaced_is_lost(place: World, tmp_path: Path) -> None:
    archive = created(tmp_path / "archive")
    with hold_leases(place.pair, "r1", archive, directory=tmp_path) as held:
        held.check()
        (tmp_path / "lease").unlink()
        with pytest.raises(errors.LeaseLost):
            held.check()


@pytest.mark.usefixtures("local_tasks")
def test_a_run_that_loses_its_lease_sends_no_more_and_is_resumed(place: World, leases: str, tmp_path: Path) -> None:
    place.strand_many(120)
    lost: list[Event] = []

    def lose(event: Event) -> None:
        """Let the lock expire, and another receiver hold the session for a moment, while messages are sent."""
        if isinstance(event, PhaseProgress) and event.phase == "send" and event.messages and not lost:
            lost.append(event)
            place.running.do(lambda: place.running.emulator.faults.expire_locks(OTHER, LEASES))

    options = ReplayOptions(empty_seconds=0.1, rate=40.0)
    with pytest.raises(errors.LeaseLost):
        driver.start_run(place.request(tmp_path, lease_queue=leases), options, place.queues, lose)
    assert 0 < len(place.ids()) < 120
    [run] = [path.name for path in (tmp_path / "archive").iterdir()]
    assert Archive(str(tmp_path / "archive"), run).exists(STOP_FILE)
    place.running.do(lambda: place.running.other.delete_queue(leases))
    result = driver.resume_run(place.request(tmp_path), run, lambda _event: None, rate=None)
    assert result.proof.exit_code == 0
    place.check_arrived()
    assert all(numbers == sorted(numbers) for numbers in place.by_session().values())
