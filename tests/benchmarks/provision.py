"""The time to create queues one after the other, and as `sbpair provision` does it.

python -m tests.benchmarks.provision [--queues N] [--latency MS] [--rounds N] [--output json]

Both run the same code, once with one call at a time, on new namespaces of an emulator that delays every answer. They
take turns. `metered` is a namespace with 1 000 credits a second, as Standard has, and how often it refused a call.
"""

import time
from typing import Any
from unittest.mock import patch

from sbpair.cli.command_loop import run
from sbpair.management import calls
from sbpair.management.provisioning import provision
from sbpair.model.pair import Pair
from sbpair.model.report import Outcome
from sbpair.model.retries import Retrying
from tests.benchmarks.figures import emit, log, parser, spread
from tests.benchmarks.processes import emulator, endpoints, far_away

PRIMARY = "primary"


def measure(pair: Pair) -> tuple[float, int]:
    """Return the seconds to provision an empty namespace as the command does it, and the number of retries."""
    retries = 0

    def count(event: object) -> None:
        nonlocal retries
        retries += isinstance(event, Retrying)

    started = time.perf_counter()
    report = run(provision(pair, on_event=count))
    seconds = time.perf_counter() - started
    if len(report.of(Outcome.CREATED)) != pair.backlog_queues:
        raise RuntimeError(f"some queues were not created: {[item.reason for item in report]}")
    return seconds, retries


def turns(queues: int, latency_ms: int, rounds: int) -> dict[str, Any]:
    """Measure both ways in turn, each on a new namespace."""
    names = [f"secondary-{number}" for number in range(2 * rounds + 1)]
    found: dict[int, list[float]] = {1: [], calls.CONCURRENCY: []}
    with emulator(PRIMARY, *names) as (_pid, namespaces):
        primary, *left = endpoints(namespaces)
        # Imports and other one-time costs belong to neither way.
        measure(Pair("warm", primary, left.pop(), backlog_queues=5))
        for turn in range(rounds):
            for concurrency, times in found.items():
                secondary = left.pop()
                with far_away([secondary], latency_ms), patch.object(calls, "CONCURRENCY", concurrency):
                    times.append(measure(Pair("bench", primary, secondary, backlog_queues=queues))[0])
                log(f"round {turn + 1} of {rounds}: {concurrency} at once, {times[-1]:.3f} s")
    sequential, concurrent = found.values()
    return {
        "queues": queues,
        "latency_ms": latency_ms,
        "rounds": rounds,
        "concurrency": calls.CONCURRENCY,
        "sequential_s": spread(sequential),
        "concurrent_s": spread(concurrent),
        "ratio": spread((few / many for few, many in zip(concurrent, sequential, strict=True)), 4),
    }


def metered(queues: int) -> dict[str, Any]:
    """Provision a namespace that counts credits."""
    with emulator(PRIMARY, "secondary", options=("--credits", "1000")) as (_pid, namespaces):
        seconds, throttled = measure(Pair("metered", *endpoints(namespaces), backlog_queues=queues))
    return {"queues": queues, "seconds": round(seconds, 3), "throttled": throttled}


def main() -> None:
    options_of = parser(__doc__, rounds=3)
    options_of.add_argument("--queues", type=int, default=100)
    options_of.add_argument("--latency", type=int, default=20, metavar="MS")
    options_of.add_argument("--metered", type=int, default=300, metavar="N")
    options = options_of.parse_args()
    found = {"provision": turns(options.queues, options.latency, options.rounds)}
    if options.metered:
        found["metered"] = metered(options.metered)
    emit(options, found)


if __name__ == "__main__":
    main()
