"""The cost of metrics: a watch without them, with a port that is scraped every second, and with one never left alone.

python -m tests.benchmarks.metrics [--messages SMALL LARGE] [--rounds N] [--output json]

All take turns in each round. A cost is a slope between two sizes, so the start and the end of a process are not part of
it. CPU is noisy on a busy machine: with --instructions, valgrind counts those of a message, and of a scrape.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.azure.atom import open_atom
from sbpair.model.pair import Endpoint
from tests.benchmarks.figures import Run, emit, interleaved, log, parser, ratio, summary
from tests.benchmarks.processes import CACHEGRIND, counted_by_valgrind, emulated_environment, emulator, endpoints
from tests.benchmarks.stranded import DESTINATIONS, PRIMARY, SECONDARY, Stranded, destination

WATCH = [sys.executable, "-m", "sbpair", "syphon", "--watch", "--credits", "none", "--log-format", "json"]
WATCH += ["--progress-interval", "1h"]
PORT = ["--metrics-port", "0"]
SCRAPES = {"without": None, "scraped": 1.0, "besieged": 0.0}
"""Seconds between scrapes."""

MAX_SECONDS = 300
POLL_SECONDS = 0.1


def watch(count: int, *, pause: float | None, counting: bool = False, scrapes: int = 0) -> Run:
    """Move messages by a watch that is scraped, and `scrapes` times more at the end. Raises RuntimeError."""
    stranded = Stranded(count, int(time.time() * 1000))
    with emulator(PRIMARY, SECONDARY) as (_, namespaces), TemporaryDirectory() as state:
        primary, secondary = endpoints(namespaces)
        asyncio.run(stranded.create(primary, secondary))
        asyncio.run(stranded.fill(secondary))
        words = [*(CACHEGRIND if counting else ()), *WATCH, *(() if pause is None else PORT)]
        environ = emulated_environment(namespaces, state)
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ
        ) as process:
            url = None if pause is None else _url(process)
            rest = _collected(process)
            with _scraped(url, None if counting else pause):
                _wait_arrived(primary, count)
                for _ in range(scrapes):
                    _scrape(url)
            process.send_signal(signal.SIGTERM)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            printed = "".join(rest())
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}")
        rate = asyncio.run(stranded.check(primary, secondary))
    cpu_s = usage.ru_utime + usage.ru_stime
    return Run(count, cpu_s, rate, usage.ru_maxrss / 1024, counted_by_valgrind(printed))


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if '"metrics-served"' in line:
            return str(json.loads(line)["url"])
    raise RuntimeError("the metrics are not served")


def _collected(process: subprocess.Popen[str]) -> Any:
    """Read stderr in a thread; return a function that returns its lines once it has ended."""
    lines: list[str] = []
    assert process.stderr is not None
    reading = threading.Thread(target=lines.extend, args=(process.stderr,))
    reading.start()

    def ended() -> list[str]:
        reading.join()
        return lines

    return ended


def _scrape(url: str | None) -> None:
    assert url is not None
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310
        answer.read()


@contextmanager
def _scraped(url: str | None, pause: float | None) -> Iterator[None]:
    ended = threading.Event()

    def scrape() -> None:
        while pause is not None and not ended.wait(pause):
            _scrape(url)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _wait_arrived(primary: Endpoint, count: int) -> None:
    async def arrived() -> int:
        async with open_atom(primary) as control:
            return sum([(await control.counts(destination(number))).total for number in range(DESTINATIONS)])

    deadline = time.monotonic() + MAX_SECONDS
    while asyncio.run(arrived()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError("the messages did not arrive")
        time.sleep(POLL_SECONDS)


def document(sizes: list[int], number: int) -> dict[str, Any]:
    """Return CPU per message of each way, and how much more than without."""
    rounds = interleaved(number, sizes, {way: partial(watch, pause=pause) for way, pause in SCRAPES.items()})
    ratios = {f"{way}_to_without": ratio(rounds[way], rounds["without"]) for way in SCRAPES if way != "without"}
    return {"ways": {way: summary(each) for way, each in rounds.items()}, "ratios": ratios}


def instructions(sizes: list[int], number: int) -> dict[str, Any]:
    """Return the instructions of a message without and with a port, and of a scrape.

    The fewest of all rounds count: the slower a run is, the more often its timers fire.
    """
    small, large = sizes
    ways = [(count, pause, 0) for pause in (None, 1.0) for count in sizes] + [(small, 1.0, 100)]
    counted: dict[tuple[int, float | None, int], list[int]] = {way: [] for way in ways}
    for _ in range(number):
        for count, pause, scrapes in ways:
            run = watch(count, pause=pause, counting=True, scrapes=scrapes)
            counted[count, pause, scrapes].append(run.instructions or 0)
            log(f"{count} messages, {'served' if pause else 'without'}, {scrapes} scrapes: {run.instructions}")
    fewest = {way: min(found) for way, found in counted.items()}
    without, served = ((fewest[large, pause, 0] - fewest[small, pause, 0]) / (large - small) for pause in (None, 1.0))
    scrape = (fewest[small, 1.0, 100] - fewest[small, 1.0, 0]) / 100
    return {
        "instructions": {"message": round(without), "message_served": round(served), "scrape": round(scrape)},
        "ratios": {"served_to_without": round(served / without, 4), "scrape_to_message": round(scrape / without, 1)},
    }


def main() -> None:
    options_of = parser(__doc__, messages=(20_000, 120_000), rounds=5)
    options_of.add_argument("--instructions", action="store_true", help="count instructions instead, with valgrind")
    options = options_of.parse_args()
    found = (
        instructions(options.messages, options.rounds)
        if options.instructions
        else document(options.messages, options.rounds)
    )
    emit(options, found)


if __name__ == "__main__":
    main()
