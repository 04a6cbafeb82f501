"""One schedule of a replay in virtual time: its tasks without Spark, begun again whenever they end too soon.

Drains fill an archive while the faults strike, then tasks send from it. When the faults are over all must come to an
end, and the proof must agree with what the namespaces saw.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sbpair.amqp.message import Sections
from sbpair.backlog import queue_path
from sbpair.drill.drill_messages import message_differences
from sbpair.errors import SbpairError
from sbpair.replay.archive import DRAINED_FILE, Archive
from sbpair.replay.digests import adopt_segments, write_report
from sbpair.replay.outcomes import Proof
from sbpair.replay.queue_task import QueueDrain, count_remaining
from sbpair.replay.run_description import ReplayOptions, ReplayRun, TaskJob, save_run
from sbpair.replay.send_task import send_batches
from sbpair.replay.verify import check_segments, verify
from sbpair.runs.database import identity
from tests.faults.simulation.faults import PRIMARY_NAME
from tests.faults.simulation.history import Track
from tests.faults.simulation.plan import BEGAN_MS, Plan, plan
from tests.faults.simulation.run import RECOVERY_SECONDS, SyphonSimulation
from tests.replay.tasks import planned

REPLAY = "replay"
WITHOUT = frozenset(
    {
        *("second", "stop"),
        # A run takes what was there when it began, by the service's clock.
        *("strand", "backlog-remade", "clock", "tool-clock"),
        # A missing destination is an outcome.
        "destination-gone",
    }
)


def replay_plan(seed: int) -> Plan:
    """Return the plan of a syphon with this seed, as far as a replay has the same."""
    drawn = plan(seed, without=WITHOUT)
    return replace(drawn, mover=REPLAY, remaining=False, choice=None, ramp=None, pauses=())


@dataclass(frozen=True)
class Access:
    """A namespace whose key needs no environment variable."""

    of: Any

    def endpoint(self) -> Any:
        return self.of


class ReplaySimulation(SyphonSimulation):
    proof: Proof | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sending = asyncio.Event()

    def _arrived(self, track: Track) -> None:
        """A ledger is written after a message was accepted."""

    async def main(self) -> None:
        self.history.completes_archived = True
        self._set_the_stage()
        async with asyncio.TaskGroup() as tasks:
            striking = tasks.create_task(self._strike(tasks))
            driving = tasks.create_task(self._drive())
            await striking
            await self._lift_all()
            self.history.tell("nothing is wrong any more")
            await asyncio.wait([driving], timeout=RECOVERY_SECONDS)
            if not driving.done():
                self.history.accuse(f"the run did not end within {RECOVERY_SECONDS:g} s")
                driving.cancel()
                self.kill()

    async def _strike(self, tasks: asyncio.TaskGroup) -> None:
        """Let faults of the secondary strike the drain, and those of the primary what is sent."""
        self._lasting = []
        for primary in (False, True):
            if primary:
                await self._sending.wait()
            began_ms = round(self.loop.time() * 1000)
            for step in self.plan.steps:
                if step.primary is primary:
                    await self.until((began_ms + step.at_ms) / 1000)
                    later = replace(step, at_ms=began_ms + step.at_ms)
                    self._lasting.append(tasks.create_task(self._step(later)))

    def _job(self) -> TaskJob:
        pair = self.world.pair
        queues = tuple(queue_path(PRIMARY_NAME, index) for index in range(self.plan.queues))
        options = ReplayOptions(rate=self.plan.rate, segment_messages=max(2, self.plan.hold), max_discard=None)
        run = ReplayRun("r1", identity(pair.ends), queues, 1, BEGAN_MS + 60_000, options, digests=True)
        archive = Archive(str(self.directory / "archive"), run.id)
        save_run(archive, run)
        primary: Any = Access(pair.primary)
        secondary: Any = Access(pair.secondary)
        return TaskJob(run, archive.url, primary, secondary, len(queues))

    async def _drive(self) -> None:
        job = self._job()
        while True:
            drains = (self._repeat(lambda queue=queue: QueueDrain(job, queue).run()) for queue in job.run.queues)
            await asyncio.gather(*drains)
            remaining = await self._repeat(lambda: count_remaining(job))
            if not remaining:
                break
            await asyncio.sleep(20.0)
        adopt_segments(job.open(), job.run)
        messages = check_segments(job.open(), job.run, full=True).messages
        counts = {"messages": messages, "remaining_in_queues": {}, "locked": 0}
        write_report(job.open(), job.run, DRAINED_FILE, counts)
        self._sending.set()
        while True:
            await self._repeat(
                lambda: send_batches(job, iter(planned(job.open()) if job.open().files("segments") else []))
            )
            self.proof = verify(job.open(), job.run)
            self.history.tell(f"sent {self.proof.acknowledged}, and {self.proof.unsent} are left")
            if not self.proof.unsent:
                return
            await asyncio.sleep(20.0)

    async def _repeat(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do a task's work in a process of its own, and again after it has failed or was killed."""
        while True:
            process = self.new_process("task")
            self.history.tell(f"start {process.name}")
            process.work = process.start(self.loop, work())
            self._syphons.append(process)
            if await process.ends(process.work):
                self._syphons.remove(process)
                try:
                    result = process.work.result()
                except SbpairError as error:
                    self.history.tell(f"end {process.name} with {type(error).__name__}: {error.message}")
                else:
                    self.history.tell(f"end {process.name}")
                    return result
            await asyncio.sleep(1.0)

    def judge(self) -> None:
        for line in self._wrong():
            self.history.accuse(line)

    def _wrong(self) -> Iterator[str]:
        tracks, proof = list(self.history.tracks.values()), self.proof
        doubtful = set() if proof is None else {each.message_id for each in proof.doubtful}
        for track in tracks:
            yield from _wrong_with(track, is_doubtful=track.stranded.id in doubtful)
        dooms = sum(each.stranded.doom is not None for each in tracks)
        if proof is not None and not (proof.balanced and proof.quarantined == dooms and not proof.expired):
            yield f"the proof is wrong, with {dooms} that cannot arrive: {proof}"
        if "crash" not in self.plan.kinds:
            for road, arrived in self.history.first_arrivals.items():
                numbers = [each.number for each in arrived]
                if numbers != sorted(numbers):
                    yield f"out of order: {road[0]} to {road[1]}: {numbers}"


def _wrong_with(track: Track, *, is_doubtful: bool) -> Iterator[str]:
    times = len(track.arrivals)
    if track.stranded.doom and times:
        yield f"arrived, and cannot have: {track}"
    if not (track.stranded.doom or times):
        yield f"lost: {track}"
    if times > 1 and not is_doubtful:
        yield f"arrived {times} times, and the proof does not say so: {track}"
    if not track.completed:
        yield f"left behind: {track}"
    for payload in track.arrivals:
        for line in message_differences(track.stranded.original, Sections.split(payload)):
            yield f"altered: {track}: {line}"
