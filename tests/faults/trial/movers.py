"""Rounds with a mover: kills, cuts, full disks, broken files, jumps of the clock; then it runs until all is moved."""

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

from tests.faults.test_corrupted_files import corrupted
from tests.faults.trial.command import Clock, Command, end_emulator, end_offspring
from tests.faults.trial.figures import Figures
from tests.faults.trial.stage import MOVERS, NAMES, QUEUES, Stage
from tests.kit.processes import offspring
from tests.kit.proxy import closed_port

KILLED: Final = -signal.SIGKILL
KEY: Final = "SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
DAY: Final = 86_400
CUTS: Final[tuple[dict[str, int | str], ...]] = (
    *({"kind": kind} for kind in ("namespace-down", "drop", "reset", "stall", "detach", "expire-locks", "throttle")),
    *({"kind": kind, "after_frames": 12, "count": 1} for kind in ("drop", "reset", "stall")),
    {"kind": "latency", "ms": 150},
    {"kind": "swallow-acks", "count": 5},
    {"kind": "throttle", "count": 3},
    {"kind": "refuse-requests", "status": 503, "count": 3},
)


async def kills(stage: Stage) -> None:
    """End the mover by signals at random moments, and start it again."""
    random = stage.random
    await stage.prepare(random.randint(40, 250))
    for _ in range(random.randint(1, 3)):
        mover = await stage.launch(rate=random.choice((None, 80, 200)))
        await asyncio.sleep(random.uniform(0.1, 3.5))
        number = random.choice((signal.SIGKILL,) * 4 + (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP))
        mover.signal(number)
        if number == signal.SIGSTOP:
            await asyncio.sleep(random.uniform(0.1, 3))
            if random.random() < 0.5:
                await stage.expire_locks()
            mover.signal(signal.SIGCONT)
        elif random.random() < 0.2:
            await asyncio.sleep(random.uniform(0, 0.3))
            mover.signal(number)
        early = {-number} if number in (signal.SIGTERM, signal.SIGINT) else set()
        await stage.end(mover, {0, 3, 130, KILLED} | early)
        await stage.expire_locks()
    await stage.finish()


async def cuts(stage: Stage) -> None:
    """Kill the emulator and cut its connections while the mover runs."""
    random = stage.random
    await stage.prepare(random.randint(80, 250))
    watching = stage.mover == "syphon" and random.random() < 0.4
    mover = await stage.launch(*(["--watch"] if watching else []), rate=random.choice((40, 80)))
    await asyncio.sleep(random.uniform(0.3, 2))
    for _ in range(random.randint(1, 4)):
        if random.random() < 0.3:
            await stage.emulator.kill()
            await asyncio.sleep(random.uniform(0, 2))
            await stage.emulator.start()
        else:
            side, _ = random.choice(NAMES)
            fault = await stage.emulator.begin_fault(namespace=side, **random.choice(CUTS))
            await asyncio.sleep(random.uniform(0.1, 2))
            await stage.emulator.end_fault(fault)
        await asyncio.sleep(random.uniform(0, 1))
    if watching:
        await asyncio.sleep(1)
        mover.signal(signal.SIGTERM)
    else:
        # What a lost connection has locked would be waited for.
        await stage.expire_locks()
    await stage.end(mover, {0, 3, 6})
    await stage.finish()


@contextmanager
def disk(path: Path, kilobytes: int) -> Iterator[None]:
    """Mount a small disk of its own."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "sbpair-trial", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def enlarge(path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(path)], check=True)


async def full_disk(stage: Stage) -> None:
    """Run with a state directory on a disk that is too small, or fills up meanwhile."""
    random = stage.random
    await stage.prepare(random.randint(40, 200))
    small = random.random() < 0.6
    with disk(stage.state, random.randrange(4, 400, 4) if small else 4_000):
        mover = await stage.launch(rate=random.choice((80, 200)))
        if not small:
            await asyncio.sleep(random.uniform(0.2, 2.5))
            with suppress(OSError), (stage.state / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
        await stage.end(mover, {0, 3, 7})
        enlarge(stage.state)
        (stage.state / "filler").unlink(missing_ok=True)
        await stage.finish()


async def broken_files(stage: Stage) -> None:
    """Damage the files of the state between kills. They are moved away where a command refuses them."""
    random = stage.random
    if random.random() < 0.25:
        await broken_outbox(stage)
    await stage.prepare(random.randint(40, 150))
    for _ in range(random.randint(1, 3)):
        mover = await stage.launch(rate=random.choice((80, 200)))
        await asyncio.sleep(random.uniform(0.8, 3))
        mover.signal(random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        await stage.end(mover, {0, 3, 130, KILLED, -signal.SIGTERM})
        await stage.expire_locks()
        files = sorted(path for path in stage.state.glob("state.db*") if path.stat().st_size > 4096)
        if not files:
            continue
        damaged = random.choice(files)
        damaged.write_bytes(corrupted(damaged.read_bytes(), random))
        # What was noted of messages in flight may be gone: the error announces that they may arrive twice.
        stage.named.update(stage.stranded)
        code = await stage.end(await stage.launch(rate=200), {0, 3, 4, 7})
        await stage.run("runs", "list", "--state", str(stage.state), codes={0, 3, 4, 7})
        if code in (4, 7):
            stage.state.rename(stage.state.with_name(f"broken-{random.random()}"))
        await stage.expire_locks()
    await stage.finish()


async def broken_outbox(stage: Stage) -> None:
    """Fill an outbox while both namespaces are away, damage it, and send again."""
    outbox, lines = stage.directory / "outbox.db", stage.directory / "lines"
    lines.write_text("line\n" * 300)
    words = ["send", "orders", str(lines), "--outbox", str(outbox), "--on-failure", "backlog-now", "--timeout", "3s"]
    with closed_port() as first, closed_port() as second:
        stage.emulator.namespaces = [
            {"name": name, "connection_string": f"Endpoint=sb://127.0.0.1:{port};{KEY}"}
            for (name, _), port in zip(NAMES, (first, second), strict=True)
        ]
        for damage in (False, True):
            if damage and outbox.exists():
                outbox.write_bytes(corrupted(outbox.read_bytes(), stage.random))
            sending = await stage.start(*words)
            await asyncio.sleep(4)
            sending.signal(signal.SIGTERM)
            await sending.end({0, 3, 4, 6, 7, 130, -signal.SIGTERM})


async def clock(stage: Stage) -> None:
    """Let the clock of a watch jump by a day, forward and back, while messages are stranded."""
    random = stage.random
    stage.mover = "syphon"
    await stage.prepare(20, flawed=0.0)
    jumping = Clock(stage.directory)
    watch = await stage.launch("--watch", env=jumping.environment)
    for jump in (0, *(random.choice((-DAY, DAY, 0, -3600, 3600)) for _ in range(random.randint(1, 3)))):
        jumping.jump(jump)
        await asyncio.sleep(random.uniform(0.5, 2))
        if random.random() < 0.5:
            # The next token has an expiry by the changed clock, which the service may refuse.
            await stage.emulator.end_fault(await stage.emulator.begin_fault("reset", random.choice(NAMES)[0]))
        await stage.send_more(20)
        await drained(stage, f"after a jump to {jump:+} s", watch)
    watch.signal(signal.SIGTERM)
    await stage.end(watch, {0, 5})
    await stage.finish()


async def drained(stage: Stage, when: str, watch: Command) -> None:
    """Wait until the backlog is empty."""
    for _ in range(600):
        _, secondary = (await stage.emulator.control("GET", "state"))["namespaces"]
        left = sum(each["active"] for each in secondary["queues"] if "transfer" in each["path"])
        if not left or watch.process.returncode is not None:
            return
        await asyncio.sleep(0.1)
    stage.figures.find("other", f"the watch does not move {when}: {watch.err[-800:]}")


async def replay(stage: Stage) -> None:
    """Kill a replay, or fill its archive's disk, and resume it until it is done."""
    random, archive = stage.random, stage.directory / "archive"
    stage.mover, stage.ordered = "syphon", False
    await stage.prepare(random.randint(200, 600), flawed=0.0)
    small = random.random() < 0.3
    common = ["--archive", str(archive), "--state", str(stage.state), "--output", "json", "--master", "local[2,4]"]
    common += ["--conf", "spark.sql.codegen.wholeStage=false"]
    run, code = "", None
    with disk(archive, random.randrange(100, 4_000, 100) if small else 64_000):
        for attempt in range(6):
            words = ("resume", run) if run else ("run", "--count", str(QUEUES), "--rate", "150")
            started = await stage.start("replay", *words, *common)
            if attempt < 2 and not small:
                await asyncio.sleep(random.uniform(3, 30))
                await end_replay(started, random)
            code = await stage.end(started, {0, 3, 7, 130, KILLED} if small else {0, 3, 130, KILLED}, max_mb=3_000)
            await stage.expire_locks()
            enlarge(archive)
            listed = await stage.run("replay", "list", "--archive", str(archive), "-o", "json", codes={0, 3})
            run = next((each["run"] for each in listed.receipt().get("runs", ())), "")
            if code in (0, 3) and run:
                break
        else:
            stage.figures.find("other", f"the replay does not end: {code}")
        await stage.run("replay", "verify", run, "--archive", str(archive), codes={0})
        await end_emulator(stage.emulator, stage.figures)
        await stage.judge()


async def end_replay(started: Command, random: Random) -> None:
    number = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    children = offspring(started.process.pid)
    started.signal(number)
    if number == signal.SIGKILL:
        await end_offspring(children)


def round_of(act: Callable[[Stage], Awaitable[None]]) -> Callable[[Path, Random, Figures], Awaitable[None]]:
    """Return a function that plays one round on a stage of its own."""

    async def play(directory: Path, random: Random, figures: Figures) -> None:
        stage = Stage(random.choice(MOVERS), directory, random, figures)
        try:
            await act(stage)
        finally:
            await stage.close()

    return play
