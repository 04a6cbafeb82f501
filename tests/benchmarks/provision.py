"""The time to create queues one after the other, and as `sbpair provision` does it.

python -m tests.benchmarks.provision [--queues N] [--latency MS] [--rounds N] [--output json]

Both run the same code, once with one call at a time, on new namespaces of an emulator that delays every answer. They
take turns. `metered` is a namespace with 1 000 credits a second, as Standard has, and how often it refused a call.
"""

import argparse
import json
import time
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen

from sbpair.cli.command_loop import run
from sbpair.management import calls
from sbpair.management.provisioning import provision
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.report import Outcome
from sbpair.model.retries import Retrying
from tests.benchmarks.figures import emit, log, spread
from tests.benchmarks.processes import emulator

PRIMARY = "primary"


def delay(endpoint: Endpoint, ms: int) -> None:
    """Delay every answer of one namespace of the emulator."""
    fault = {"kind": "latency", "namespace": endpoint.name, "ms": ms}
    url = f"http://{endpoint.host}:{endpoint.port}/$control/faults"
    with urlopen(Request(url, json.dumps(fault).encode())) as answer:
        answer.read()


def endpoint_of(namespaces: dict[str, Any], name: str) -> Endpoint:
    return endpoint_from_connection_string(namespaces[name]["connection_string"], name=name)


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
        left = [endpoint_of(namespaces, name) for name in names]
        primary = endpoint_of(namespaces, PRIMARY)
        # Imports and other one-time costs belong to neither way.
        measure(Pair("warm", primary, left.pop(), backlog_queues=5))
        for turn in range(rounds):
            for concurrency, times in found.items():
                secondary = left.pop()
                delay(secondary, latency_ms)
                with patch.object(calls, "CONCURRENCY", concurrency):
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
        sides = (endpoint_of(namespaces, name) for name in (PRIMARY, "secondary"))
        seconds, throttled = measure(Pair("metered", *sides, backlog_queues=queues))
    return {"queues": queues, "seconds": round(seconds, 3), "throttled": throttled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--latency", type=int, default=20, metavar="MS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--metered", type=int, default=300, metavar="N")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    found = {"provision": turns(options.queues, options.latency, options.rounds)}
    if options.metered:
        found["metered"] = metered(options.metered)
    emit(options, found)


if __name__ == "__main__":
    main()
