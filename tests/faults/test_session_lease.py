"""The lease across machines in virtual time: whatever happens to its lock, its link or its holder, one mover sends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import LeaseHeld, LeaseLost, SbpairError, Unavailable, Unreachable
from sbpair.runs.session_lease import RELEASE_SECONDS, VALID_SECONDS, LeaseHolder, SessionLease, hold_lease
from sbpair.syphon import runner
from sbpair.timespan import TICKS_PER_SECOND
from tests.faults.simulation.loop import Process
from tests.faults.simulation.stage import Stage, played
from tests.kit.moves import run_syphon

LEASES = "movers/leases"
DR = "contoso-dr"
LOCK_SECONDS = 60.0
SLOWLY = 1.0  # messages a second
"""A message a second: nothing is on its way when something happens in between."""


def leases(stage: Stage, lock: int = 60) -> Any:
    return stage.world.secondary.create_queue(
        LEASES, QueueDescription(requires_session=True, lock_duration=lock * TICKS_PER_SECOND)
    )


def state_of(queue: Any) -> bytes | None:
    sessions = queue.messages._sessions.sessions
    return sessions["contoso"].state if "contoso" in sessions else None


def lease_lines(stage: Stage) -> list[Any]:
    """Connections to the secondary namespace, the lease's own first: it is made before any other."""
    return stage.network.lines_to(stage.host("secondary"))


def sent(stage: Stage) -> int:
    return len(stage.ids(stage.destination()))


async def start(stage: Stage, messages: int, **terms: Any) -> asyncio.Task[runner.SyphonResult]:
    """A syphon with a lease, that has sent a third of its messages."""
    stage.strand(*range(messages))
    running = stage.start(lease_queue=LEASES, rate=SLOWLY, **terms)
    await stage.until(lambda: sent(stage) == min(messages // 3, 10))
    await asyncio.sleep(0.5)
    return running


@played()
async def test_a_second_mover_is_refused_and_told_who_is_at_work(stage: Stage) -> None:
    queue = leases(stage)
    watching = await start(stage, 3)
    holder = LeaseHolder.decode(state_of(queue))
    assert holder is not None
    with pytest.raises(LeaseHeld) as held:
        await stage.start(lease_queue=LEASES.upper(), once=True)
    assert held.value.message == f"{holder} holds the lease of contoso (queue {LEASES.upper()} in contoso-dr)"
    assert "5 minutes" in held.value.hint
    stage.stop.set()
    assert (await watching).run == holder.run


@played()
async def test_a_clean_end_leaves_the_lease_to_the_next_at_once(stage: Stage) -> None:
    queue = leases(stage)
    stage.destination()
    stage.strand(1)
    for number in (1, 2, 3):
        result = await stage.start(lease_queue=LEASES, once=True)
        assert (result.exit_code, sent(stage)) == (0, 1), number
        assert queue.messages._sessions.sessions == {}


@played()
async def test_the_lease_is_held_for_hours_and_its_link_with_it(stage: Stage) -> None:
    queue = leases(stage)
    stage.destination()
    async with stage.watching(lease_queue=LEASES):
        await stage.until(lambda: state_of(queue))
        number = queue.messages.held_session("contoso").number
        await asyncio.sleep(7_200.0)
        # The same loan: the link was not even taken away because nothing goes over it.
        assert queue.messages.held_session("contoso").number == number
        stage.strand(1)
        await stage.until(lambda: sent(stage) == 1)


def expire(_stage: Stage, queue: Any) -> None:
    queue.messages.expire_locks()


def taken_over(stage: Stage, queue: Any) -> None:
    """The lock runs out, and somebody else is there the same moment."""
    expire(stage, queue)
    queue.messages.accept("contoso")


def had_meanwhile(stage: Stage, queue: Any) -> None:
    """The connection breaks, and somebody has had the lease before it is back."""
    stage.network.cut(lease_lines(stage)[0].client)
    held = queue.messages.held_session("contoso")
    held.close()
    other = queue.messages.accept("contoso")
    other.set_state(None)
    other.close()


def deleted(stage: Stage, _queue: Any) -> None:
    stage.world.secondary.delete_queue(LEASES)


def disabled_for_good(stage: Stage, queue: Any) -> None:
    deleted(stage, queue)
    stage.world.secondary.create_queue(LEASES)


@pytest.mark.parametrize(
    ("lose", "count"),
    # A lock that ends before its time is known to be lost with the detach of its link, a moment later.
    [(expire, 11), (taken_over, 11), (had_meanwhile, 10), (deleted, 10), (disabled_for_good, 10)],
)
@pytest.mark.parametrize("once", [True, False])
@played()
async def test_nothing_is_sent_once_the_lease_is_known_to_be_lost(
    stage: Stage, lose: Callable[..., None], count: int, once: bool
) -> None:
    queue = leases(stage)
    running = await start(stage, 30, once=once)
    lose(stage, queue)
    result = await running
    assert sent(stage) == count
    assert result.exit_code == 4
    assert {(type(error), error.hint.split()[0]) for _, error in result.failures} == {(LeaseLost, "start")}
    assert result.receipt.balanced
    assert result.receipt.released == result.receipt.received - count
    await asyncio.sleep(200.0)
    assert sent(stage) == count
    assert stage.backlog().counts().active == 30 - count


@played()
async def test_an_idle_watch_ends_as_soon_as_its_lease_is_lost(stage: Stage) -> None:
    queue = leases(stage)
    stage.destination()
    watching = stage.start(lease_queue=LEASES)
    await asyncio.sleep(100.0)
    expire(stage, queue)
    async with asyncio.timeout(5.0):
        assert (await watching).exit_code == 4


@played()
async def test_a_lease_lost_without_a_connected_worker_ends_the_watch(stage: Stage) -> None:
    queue = leases(stage)
    watching = stage.start(lease_queue=LEASES)
    await stage.until(lambda: state_of(queue))
    stage.cut("primary")
    await asyncio.sleep(60.0)
    expire(stage, queue)
    result = await watching
    assert [queue for queue, _ in result.failures] == [LEASES]
    assert result.exit_code == 4


@played()
async def test_a_connection_that_breaks_is_made_again_and_the_lease_with_it(stage: Stage) -> None:
    queue = leases(stage)
    running = await start(stage, 30, once=True)
    for _ in range(3):
        before = queue.messages.held_session("contoso").number
        lease = next(line for line in lease_lines(stage) if line.server in door_ends(stage, queue))
        stage.network.cut(lease.client)
        await asyncio.sleep(0.5)
        assert queue.messages.held_session("contoso").number > before
    result = await running
    assert (result.exit_code, sent(stage)) == (0, 30)


def door_ends(stage: Stage, queue: Any) -> list[Any]:
    """The server's end of the connection over which the session is held."""
    del queue
    found = []
    for line in lease_lines(stage):
        links = (link for session in line.server._protocol._connection.sessions for link in session.links)
        if any(getattr(link.context, "path", "") == LEASES and hasattr(link.context, "held") for link in links):
            found.append(line.server)
    return found


@pytest.mark.parametrize("hours", [0.1, 3.0])
@played()
async def test_a_watch_continues_after_an_outage_if_the_lease_stayed_free(stage: Stage, hours: float) -> None:
    leases(stage)
    watching = await start(stage, 30)
    stage.cut("secondary")
    await asyncio.sleep(hours * 3600)
    assert sent(stage) == 10
    stage.restore("secondary")
    await stage.until(lambda: sent(stage) == 30)
    stage.stop.set()
    assert (await watching).exit_code == 0


@pytest.mark.parametrize("lock", [30, 60, 300])
@played()
async def test_unanswered_renewals_end_sends_before_the_lock_expires(stage: Stage, lock: int) -> None:
    queue = leases(stage, lock)
    running = await start(stage, 300)
    locked_until_ms = queue.messages.held_session("contoso").locked_until_ms
    fault = stage.world.faults.throttle(DR, LEASES)
    await asyncio.sleep(VALID_SECONDS + 1.0)
    count = sent(stage)
    assert stage.world.clock.now_ms() < max(locked_until_ms, queue.messages.held_session("contoso").locked_until_ms)
    await asyncio.sleep(3.0)
    assert sent(stage) == count
    # In time: the service itself says that the lock was never anybody else's.
    stage.world.faults.end(fault)
    await stage.until(lambda: sent(stage) > count)
    stage.world.faults.throttle(DR, LEASES)
    result = await running
    assert result.exit_code == 4
    assert stage.loop.time() < 2 * (lock + VALID_SECONDS) + 200.0


@played()
async def test_a_release_without_an_answer_is_given_up(stage: Stage) -> None:
    queue = leases(stage)
    async with hold_lease(stage.world.pair.ends, LEASES, "r"):
        [line] = [line for line in lease_lines(stage) if line.server in door_ends(stage, queue)]
        line.client.out.silent = line.server.out.silent = True
        left_at = stage.loop.time()
    assert stage.loop.time() == pytest.approx(left_at + RELEASE_SECONDS)


async def taken_by_another(stage: Stage, queue: Any) -> int:
    """Wait until the session is free, and take it for a while: how many messages were sent by then."""

    def free() -> bool:
        sessions = queue.messages._sessions.sessions
        return "contoso" not in sessions or sessions["contoso"].holder is None

    def renew(times: int) -> None:
        if times:
            other.renew()
            stage.loop.call_later(20.0, renew, times - 1)

    await stage.until(free)
    other = queue.messages.accept("contoso")
    other.set_state(LeaseHolder("other", 1, "r", 0).encode())
    renew(20)
    return sent(stage)


@played()
async def test_a_mover_frozen_beyond_its_lock_sends_nothing_afterwards(stage: Stage) -> None:
    queue = leases(stage)
    stage.strand(*range(300))
    frozen = Process("frozen")
    run = run_syphon(stage.world.pair, once=True, lease=False, lease_queue=LEASES, rate=SLOWLY)
    running = frozen.start(stage.loop, run)
    await stage.until(lambda: sent(stage) == 10)
    await asyncio.sleep(0.5)
    frozen.frozen = True
    count = await taken_by_another(stage, queue)
    assert count == 10
    frozen.thaw(stage.loop)
    result = await running
    assert (result.exit_code, sent(stage)) == (4, 10)


@pytest.mark.parametrize("said", [True, False])
@played()
async def test_after_a_crash_the_lease_is_free_when_its_lock_has_run_out(stage: Stage, said: bool) -> None:
    """Whether the system says for the dead process that its connections are gone, or the machine died with it."""
    leases(stage)
    stage.strand(*range(30))
    dead = Process("dead")
    dead.start(stage.loop, run_syphon(stage.world.pair, once=True, lease=False, lease_queue=LEASES, rate=SLOWLY))
    await stage.until(lambda: sent(stage) == 10)
    if not said:
        for line in stage.network.lines:
            line.client.out.silent = True
    stage.network.kill(dead)
    refused, died_at = 0, stage.loop.time()
    while stage.loop.time() < died_at + 300.0:
        try:
            async with hold_lease(stage.world.pair.ends, LEASES, "next") as lease:
                lease.check()
                break
        except LeaseHeld as error:
            assert "process" in error.message  # noqa: PT017
            refused += 1
            await asyncio.sleep(1.0)
    waited = stage.loop.time() - died_at
    assert (refused > 0) is (not said)
    assert VALID_SECONDS <= waited <= VALID_SECONDS + (0.0 if said else LOCK_SECONDS) + 2.0
    result = await stage.start(lease_queue=LEASES, once=True)
    assert result.exit_code == 0
    assert set(stage.ids(stage.destination())) == {f"m{number}" for number in range(30)}
    await dead.bury(stage.loop)


# Whatever happens, in whatever order: of two that want the lease, one at most is sure to have it.

KINDS = ["cut", "silence", "throttle", "expire", "freeze", "outage", "clock", "leave"]
STEPS = st.lists(
    st.tuples(st.floats(0.1, 90.0), st.sampled_from(KINDS), st.integers(0, 1), st.floats(0.5, 120.0)), max_size=8
)


class Contender:
    """Wants the lease, has it for a while, and wants it again. `sure` is whether it would send at this moment."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.process = Process(f"contender-{number}")
        self.lease: SessionLease | None = None
        self.leave = asyncio.Event()
        self.had = 0
        self.task = self.process.start(stage.loop, self.run())

    @property
    def sure(self) -> bool:
        if self.lease is None or self.process.frozen:
            return False
        try:
            self.lease.check()
        except SbpairError:
            return False
        return True

    async def run(self) -> None:
        while True:
            try:
                async with hold_lease(self.stage.world.pair.ends, LEASES, self.process.name) as self.lease:
                    self.had += 1
                    self.leave.clear()
                    lost = asyncio.create_task(self.lease.lost())
                    left = asyncio.create_task(self.leave.wait())
                    try:
                        await asyncio.wait((lost, left), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        lost.cancel()
                        left.cancel()
            except (LeaseHeld, Unavailable):
                pass
            finally:
                self.lease = None
            await asyncio.sleep(1.0)


async def happen(stage: Stage, queue: Any, kind: str, contender: Contender, seconds: float) -> None:
    """Something happens, and is over after some seconds."""
    faults, process = stage.world.faults, contender.process
    lines = [line for line in lease_lines(stage) if line.process is process]
    match kind:
        case "cut":
            for line in lines:
                stage.network.cut(line.client)
        case "silence":
            for line in lines:
                line.client.out.silent = line.server.out.silent = True
        case "throttle" | "outage":
            fault = faults.throttle(DR, LEASES) if kind == "throttle" else faults.namespace_down(DR)
            await asyncio.sleep(seconds)
            faults.end(fault)
        case "expire":
            queue.messages.expire_locks()
        case "freeze":
            process.frozen = True
            await asyncio.sleep(seconds)
            process.thaw(stage.loop)
        case "clock":
            # The contenders' machine believes that it is another time, and knows all the same how much of it goes by.
            stage.world.ahead += seconds * (10 if contender.had % 2 else -10)
        case "leave":
            contender.leave.set()


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lock=st.sampled_from([30, 60, 300]), steps=STEPS)
@example(lock=30, steps=[(1.0, "silence", 0, 1.0), (30.0, "silence", 1, 1.0)])
@example(lock=60, steps=[(5.0, "freeze", 0, 100.0), (1.0, "freeze", 1, 70.0), (80.0, "cut", 0, 1.0)])
@example(lock=300, steps=[(1.0, "throttle", 0, 120.0), (1.0, "clock", 0, 100.0), (30.0, "expire", 0, 1.0)])
@played()
async def test_never_are_two_sure_of_the_lease(stage: Stage, lock: int, steps: list[tuple[Any, ...]]) -> None:
    queue = leases(stage, lock)
    contenders = [Contender(stage, number) for number in (0, 1)]
    over = False

    async def watch() -> None:
        while not over:
            assert [each.sure for each in contenders].count(True) < 2
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    ends = []
    for wait, kind, number, seconds in steps:
        await asyncio.sleep(wait)
        ends.append(asyncio.create_task(happen(stage, queue, kind, contenders[number], seconds)))
    await asyncio.gather(*ends)
    # When it is over, somebody has it again, soon after its lock would have run out at the latest.
    async with asyncio.timeout(lock + 200.0):
        while not any(each.sure for each in contenders):  # noqa: ASYNC110  in virtual time
            await asyncio.sleep(0.2)
    over = True
    await watching
    for each in contenders:
        await each.process.bury(stage.loop)


@played()
async def test_a_machine_that_slept_does_not_trust_its_lease(stage: Stage) -> None:
    leases(stage)
    slept = 0.0
    async with hold_lease(stage.world.pair.ends, LEASES, "r", uptime=lambda: stage.loop.time() + slept) as lease:
        lease.check()
        slept = VALID_SECONDS + 1.0
        with pytest.raises(Unreachable):
            lease.check()
        await asyncio.sleep(VALID_SECONDS)
        lease.check()


@played()
async def test_a_stop_ends_the_wait_for_a_lease_that_was_not_given_back(stage: Stage) -> None:
    queue = leases(stage)
    crashed = queue.messages.accept("contoso")
    crashed.set_state(b"what nobody can read")
    crashed.close()
    stage.strand(1)
    stage.destination()
    running = stage.start(lease_queue=LEASES, once=True)
    await asyncio.sleep(VALID_SECONDS / 2)
    stage.stop.set()
    async with asyncio.timeout(5.0):
        result = await running
    assert (result.stopped, result.receipt.received, sent(stage)) == (True, 0, 0)
    # Whoever was not waited for long enough is still to be waited for.
    assert state_of(queue) is not None
    assert queue.messages.accept("contoso").state is not None
