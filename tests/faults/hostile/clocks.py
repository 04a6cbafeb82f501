"""Local clocks that are wrong and jump, for movers, a lease, senders with an outbox, receivers and replays.

The clocks are libfaketime's; that of the namespaces is right.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbpair.azure.atom import open_atom
from sbpair.model.queues import QueueSpec
from tests.benchmarks.stranded import PRIMARY, SECONDARY, destination
from tests.faults.emulated_pair import KILLED, SIDES, EmulatedPair, beside
from tests.faults.hostile.sends import play_sends
from tests.faults.hostile.trial import SYPHON, Trial, bring_back, strand
from tests.faults.measured_command import Command

LIBRARIES: Final = "/usr/lib/*/faketime/libfaketime.so.1"
JUMPS: Final = (
    *("+2h", "-2h", "+1d", "-1d", "+40d", "-40d", "+10y", "-10y"),
    "@1970-01-02 00:00:00",
    "@2038-01-20 00:00:00",
)
COUNT: Final = 8_000
REFUSED: Final = {4, 5}
"""Of a lease, and of tokens whose time is wrong."""

RIGHT: Final = "+0"


class Clock:
    """A clock of processes that a file sets while they run."""

    def __init__(self, library: str, file: Path) -> None:
        self._file = file
        self.variables = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, jump: str) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{jump}\n")
        beside.replace(self._file)

    @asynccontextmanager
    async def jumping(self, random: Random, jump: str) -> AsyncIterator[None]:
        """Set it back and forth at times."""

        async def run() -> None:
            while True:
                await asyncio.sleep(random.uniform(0.5, 4))
                self.set(random.choice((RIGHT, jump)))

        self.set(random.choice((RIGHT, jump)))
        async with beside(run()):
            yield


async def play(trial: Trial) -> None:
    library = next(Path("/").glob(LIBRARIES.lstrip("/")), None)
    if library is None:
        trial.skipped.add("clocks: needs Debian's package faketime")
        return
    # Both lengths are even: half of the combinations come after all of the others.
    jump = JUMPS[(trial.number + trial.number // 30) % len(JUMPS)]
    async with trial.pair().running() as pair:
        clock = Clock(str(library), trial.folder / "clock")
        await WAYS[trial.number % len(WAYS)](trial, pair, clock, jump)
        trial.figures.findings[:] = [f"{jump}: {each}" for each in trial.figures.findings]


async def journal(trial: Trial, pair: EmulatedPair, clock: Clock, jump: str) -> None:
    """Kill a syphon that has sent and not completed; let one with a wrong clock go on, and one with the right one."""
    stranded = await strand(trial, pair, COUNT)
    clock.set(RIGHT)
    mover = await pair.launch(*SYPHON, **clock.variables)
    await _some_arrived(pair, mover)
    side, fault = trial.random.choice(((PRIMARY, "swallow-acks"), (SECONDARY, "stall")))
    begun = await pair.begin(side, kind=fault)
    await mover.signal_after(trial.random.uniform(0.5, 2), signal.SIGKILL)
    await mover.end({0, KILLED})
    await pair.control(side, "DELETE", begun)
    await pair.expire_locks()
    clock.set(jump)
    await pair.run(*SYPHON, codes=REFUSED, **clock.variables)
    await bring_back(pair)
    await pair.judge(stranded, ordered=False)


async def _some_arrived(pair: EmulatedPair, mover: Command) -> None:
    async with open_atom(pair.endpoint(PRIMARY)) as control:
        for _ in range(1_000):
            if mover.process.returncode is not None or (await control.counts(destination(1))).total:
                return
            await asyncio.sleep(0.05)


async def watch(trial: Trial, pair: EmulatedPair, clock: Clock, jump: str) -> None:
    """Let the clock of a syphon jump while it moves, and is killed."""
    stranded = await strand(trial, pair, COUNT)
    words = ("syphon", "--watch", *SYPHON[2:])
    async with clock.jumping(trial.random, jump):
        for _ in range(4):
            after = trial.random.uniform(2, 10)
            await pair.run(*words, after=after, ending=signal.SIGKILL, codes=REFUSED, **clock.variables)
            await pair.expire_locks()
    await bring_back(pair)
    await pair.judge(stranded, ordered=False)


async def lease(trial: Trial, pair: EmulatedPair, clock: Clock, jump: str) -> None:
    """Let two syphons with a lease across machines move a pair, one of them with a wrong clock."""
    stranded = await strand(trial, pair, COUNT)
    async with open_atom(pair.endpoint(SECONDARY)) as control:
        await control.create(QueueSpec("lease", requires_session=True))
    words = ("syphon", "--watch", *SYPHON[2:], "--lease", "lease")
    clock.set(jump)
    right = await pair.launch(*words)
    pair.state = trial.folder / "another-state"
    wrong = await pair.launch(*words, **clock.variables)
    await asyncio.sleep(trial.random.uniform(5, 15))
    for each in (right, wrong):
        each.signal(signal.SIGTERM)
        await each.end({0, 3, 130, *REFUSED})
        pair.name(each.receipt())
    await bring_back(pair)
    await pair.judge(stranded, ordered=False)


async def outbox(trial: Trial, pair: EmulatedPair, clock: Clock, jump: str) -> None:
    """Let the clock of a sender with an outbox jump."""
    during = clock.jumping(trial.random, jump)
    file = trial.folder / "outbox.db"
    await play_sends(trial, pair, "sync", outbox=file, kills=1, during=during, **clock.variables)


async def replay(trial: Trial, pair: EmulatedPair, clock: Clock, jump: str) -> None:
    """Let a replay with a wrong clock be killed, and resumed with the right one."""
    stranded = await strand(trial, pair, COUNT)
    clock.set(jump)
    archive = trial.folder / "archive"
    # 7: libfaketime stalls Java at times.
    await pair.replay(archive, random=trial.random, kills=1, codes={*REFUSED, 7}, **clock.variables)
    await pair.judge(stranded, ordered=False)


async def receivers(trial: Trial, pair: EmulatedPair, clock: Clock, jump: str) -> None:
    """Receive copies of both namespaces with a wrong clock, then the rest with the right one."""
    count = trial.amount(200)
    trial.figures.messages += count
    for side in SIDES:
        async with open_atom(pair.endpoint(side)) as control:
            await control.create(QueueSpec("copies"))
        text = pair.environment[f"SBPAIR_{'PRIMARY' if side == PRIMARY else 'SECONDARY'}_CONNECTION_STRING"]
        async with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("copies") as sender:
            await sender.send_messages([ServiceBusMessage(b"", message_id=f"{each}") for each in range(count)])
    found: Counter[str] = Counter()
    for setting, part in ((RIGHT, count // 3), (jump, count // 3), (RIGHT, 2 * count)):
        clock.set(setting)
        words = ("receive", "copies", "--dedup", "--remove", "--yes", "--max", str(part), "--wait", "3s")
        await pair.run(*words, "--store", str(trial.folder / "keys.db"), codes=REFUSED, **clock.variables)
        found.update(str(each["message_id"]) for each in pair.receipt.get("messages", ()))
    for column, wrong in (
        ("lost", [each for each in range(count) if not found[str(each)]]),
        ("unnamed", [each for each, times in found.items() if times > 1]),
    ):
        if wrong:
            trial.figures.find(column, f"received: {wrong[:5]}", len(wrong))


WAYS: Final = (journal, watch, outbox, receivers, lease, replay)
