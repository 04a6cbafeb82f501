"""The cost of a move, beside that of a syphon with one queue; and with sessions, beside the official client.

python -m tests.benchmarks.move [--messages SMALL LARGE] [--rounds N] [--way NAME …] [--cachegrind] [--output json]

All take turns in each round. A cost is a slope between two sizes, so the start of a process is not part of it. With
--cachegrind, instructions are counted by valgrind: slower, and independent of what else the machine does.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    Properties,
    Sections,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.backlog import Aliases, queue_path, queue_spec, write_aliases
from sbpair.model.pair import Endpoint
from sbpair.model.queues import QueueSpec
from tests.benchmarks.figures import Rounds, Run, emit, interleaved, parser, ratio, slope, spread, summary
from tests.benchmarks.processes import emulated_environment, emulator, endpoints, spent_by
from tests.benchmarks.stranded import BATCH, BODY, CONTENT_TYPE, DAY_TICKS, ENQUEUED, OWN, PRIMARY, SECONDARY, peeked

SOURCE, DESTINATION = "source", "destination"
LOOP = Path(__file__).parent / "sdk_sessions_loop.py"
WAYS = ("syphon", "move", "move_bare", "move_sessions", "sdk_sessions")
COMPARED = (("move", "syphon"), ("move_bare", "syphon"), ("move_sessions", "syphon"), ("sdk_sessions", "move_sessions"))
SESSION = 1_000
"""Messages of a session."""

MAX_SECONDS_PER_MESSAGE = 0.1
"""A slower way hangs."""


def source_of(way: str) -> str:
    return queue_path(PRIMARY, 0) if way == "syphon" else SOURCE


def command(way: str) -> list[str]:
    if way == "sdk_sessions":
        return [str(LOOP), SOURCE, DESTINATION]
    words = ["syphon"] if way == "syphon" else ["move", f"secondary:{SOURCE}", f"primary:{DESTINATION}"]
    return ["-m", "sbpair", *words, "--once", "--credits", "none", "--output", "json"]


def message(way: str, number: int) -> Sections:
    """Return a message as it waits in its source."""
    own = {} if way == "move_bare" else dict(OWN)
    if way == "syphon":
        own |= write_aliases(Aliases(DESTINATION, ttl_ticks=DAY_TICKS))
    session = f"session-{number // SESSION}" if "sessions" in way else None
    return Sections(
        properties=Properties(message_id=f"{number:09d}", content_type=CONTENT_TYPE, group_id=session).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, own),
        body=data_body(BODY),
    )


async def prepare(way: str, count: int, primary: Endpoint, secondary: Endpoint) -> None:
    """Create both queues, and fill the source."""
    async with open_atom(primary) as control:
        await control.create(QueueSpec(DESTINATION, max_size_in_megabytes=5120))
    async with open_atom(secondary) as control:
        spec = QueueSpec(SOURCE, max_size_in_megabytes=5120, requires_session="sessions" in way)
        await control.create(queue_spec(PRIMARY, 0) if way == "syphon" else spec)
    async with connect(secondary) as wire:
        sender = await wire.sender(source_of(way))
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            payload = batch_of([message(way, number).join() for number in numbers])
            await sender.send(payload, message_format=BATCH_FORMAT)


async def check(way: str, count: int, primary: Endpoint) -> float:
    """Compare every message that has arrived. Return the rate in messages a second. Raises RuntimeError."""
    numbers, times = set(), []
    kept = message("move" if way == "syphon" else way, 0)
    async with connect(primary) as wire:
        async for payload in peeked(wire, DESTINATION):
            found = Sections.split(payload)
            numbers.add(int(found.read_properties().message_id))
            times.append(int(found.read_message_annotations()[ENQUEUED]))
            own = found.read_application_properties() == kept.read_application_properties()
            if found.body != kept.body or not own:
                raise RuntimeError(f"{way}: message {found.read_properties().message_id} is altered")
    if len(times) != count or numbers != set(range(count)):
        raise RuntimeError(f"{way}: {len(times)} messages arrived, {len(numbers)} of {count} different ones")
    return 1000 * count / max(1, max(times) - min(times))


def measure(way: str, count: int, *, cachegrind: bool = False) -> Run:
    with emulator(PRIMARY, SECONDARY) as (_, namespaces), TemporaryDirectory() as state:
        primary, secondary = endpoints(namespaces)
        asyncio.run(prepare(way, count, primary, secondary))
        # A hash that differs from run to run changes the instructions by a tenth of a percent.
        environment = emulated_environment(namespaces, state) | {"PYTHONHASHSEED": "0"}
        max_seconds = 300 + MAX_SECONDS_PER_MESSAGE * count
        words = [sys.executable, *command(way)]
        spent = spent_by(words, environment, max_seconds=max_seconds, cachegrind=cachegrind)
        rate = asyncio.run(check(way, count, primary))
    return Run(count, spent.cpu_s, rate, spent.peak_mb, spent.instructions)


def instruction_ratio(many: Rounds, few: Rounds) -> dict[str, float] | None:
    """Return how many times as many instructions the first takes for a message; None where they are not counted."""
    slopes = [[slope(runs, lambda run: run.instructions or 0) for runs in rounds] for rounds in (many, few)]
    pairs = list(zip(*slopes, strict=True))
    return spread((one / other for one, other in pairs), 3) if all(one and other for one, other in pairs) else None


def document(sizes: list[int], ways: list[str], rounds: int, *, cachegrind: bool) -> dict[str, Any]:
    measured = interleaved(rounds, sizes, {way: partial(measure, way, cachegrind=cachegrind) for way in ways})
    pairs = [(many, few) for many, few in COMPARED if many in ways and few in ways]
    return {
        "ways": {way: summary(each) for way, each in measured.items()},
        "ratios": {f"{many}_to_{few}": ratio(measured[many], measured[few]) for many, few in pairs},
        "instruction_ratios": {
            f"{many}_to_{few}": instruction_ratio(measured[many], measured[few]) for many, few in pairs
        },
    }


def main() -> None:
    options_of = parser(__doc__, messages=(5_000, 30_000), rounds=3)
    options_of.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS))
    options_of.add_argument("--cachegrind", action="store_true", help="count instructions by valgrind")
    options = options_of.parse_args()
    emit(options, document(options.messages, options.way, options.rounds, cachegrind=options.cachegrind))


if __name__ == "__main__":
    main()
