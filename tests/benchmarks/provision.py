"""How long it takes to create queues one after the other, and as `sbpair provision` does it.

Run it by hand: python -m tests.benchmarks.provision [--queues N] [--latency MS] [--rounds N] [--output json]

Both are the same code, once with one call at a time, on new namespaces of an emulator that answers everything so much
later; they take turns, and figures are medians over the rounds. `metered` is another thing: a namespace that has 1 000
credits a second, as Standard does, and how often it had to refuse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen

from sbpair.cli.command_loop import run
from sbpair.management import calls
from sbpair.management.provisioning import provision
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import Retrying
from sbpair.model.report import Outcome
from tests.benchmarks.processes import emulator

SCHEMA = "sbpair/benchmark/1"
PRIMARY = "primary"


def delay(endpoint: Endpoint, ms: int) -> None:
    """Have one namespace of the emulator answer later."""
    fault = {"kind": "latency", "namespace": endpoint.name, "ms": ms}
    url = f"http://{endpoint.host}:{endpoint.port}/$control/faults"
    with urlopen(Request(url, json.dumps(fault).encode())) as answer:
        answer.read()


def endpoint_of(namespaces: dict[str, Any], name: str) -> Endpoint:
    return endpoint_from_connection_string(namespaces[name]["connection_string"], name=name)


def measure(pair: Pair) -> tuple[float, int]:
    """Seconds to provision an empty namespace, as the command does it; and how often something was tried again."""
    retries = 0

    def count(event: object) -> None:
        nonlocal retries
        retries += isinstance(event, Retrying)

    started = time.perf_counter()
    report = run(lambda _stop: provision(pair, on_event=count))
    seconds = time.perf_counter() - started
    if len(report.of(Outcome.CREATED)) != pair.backlog_queues:
        raise RuntimeError(f"not everything was created: {[item.reason for item in report]}")
    return seconds, retries


def turns(queues: int, latency_ms: int, rounds: int) -> dict[str, Any]:
    """Both ways in turn, each on a namespace that is new."""
    names = [f"secondary-{number}" for number in range(2 * rounds + 1)]
    found: dict[int, list[float]] = {1: [], calls.CONCURRENCY: []}
    with emulator(PRIMARY, *names) as (_pid, namespaces):
        left = [endpoint_of(namespaces, name) for name in names]
        primary = endpoint_of(namespaces, PRIMARY)
        # What is only done once, importing and connecting among it, is nobody's.
        measure(Pair("warm", primary, left.pop(), backlog_queues=5))
        for turn in range(rounds):
            for concurrency, times in found.items():
                secondary = left.pop()
                delay(secondary, latency_ms)
                with patch.object(calls, "CONCURRENCY", concurrency):
                    times.append(measure(Pair("bench", primary, secondary, backlog_queues=queues))[0])
                sys.stderr.write(f"round {turn + 1} of {rounds}: {concurrency} at once, {times[-1]:.3f} s\n")
    sequential, concurrent = map(statistics.median, found.values())
    return {
        "queues": queues,
        "latency_ms": latency_ms,
        "rounds": rounds,
        "concurrency": calls.CONCURRENCY,
        "sequential_s": round(sequential, 3),
        "concurrent_s": round(concurrent, 3),
        "ratio": round(concurrent / sequential, 4),
        "worst_ratio": round(max(each / min(found[1]) for each in found[calls.CONCURRENCY]), 4),
    }


def metered(queues: int) -> dict[str, Any]:
    """The same on a namespace that counts credits."""
    with emulator(PRIMARY, "secondary", options=("--credits", "1000")) as (_pid, namespaces):
        ends = (endpoint_of(namespaces, name) for name in (PRIMARY, "secondary"))
        seconds, throttled = measure(Pair("metered", *ends, backlog_queues=queues))
    return {"queues": queues, "seconds": round(seconds, 3), "throttled": throttled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--latency", type=int, default=20, metavar="MS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--metered", type=int, default=300, metavar="N")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    told = {"schema": SCHEMA, "provision": turns(options.queues, options.latency, options.rounds)}
    if options.metered:
        told["metered"] = metered(options.metered)
    if options.output == "json":
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    for part in ("provision", "metered"):
        sys.stdout.write(f"{part}: {told.get(part)}\n")


if __name__ == "__main__":
    main()
