"""Seeded fault schedules of the relay in virtual time, which a seed replays whole.

python -m tests.relay.schedules --seeds 0:500 [--output json]
python -m tests.relay.schedules --seeds 7 -v
"""

import argparse
import gc
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.faults.schedules import outcomes, say, seeds
from tests.relay.simulation.relay_run import RelayVerdict, simulate_relay

SCHEMA = "sbpair/relay-schedules/1"


def simulated(seed: int) -> RelayVerdict:
    # The clients and services report each failure.
    logging.disable(logging.ERROR)
    # The modules need not be searched for what has remained.
    gc.collect()
    gc.freeze()
    return simulate_relay(seed, counts_objects=True)


def summary(done: list[RelayVerdict], seconds: float) -> dict[str, Any]:
    ends = sum((Counter(each.counts) for each in done), Counter())
    faults = Counter(step.kind for each in done for step in each.plan.steps)
    return {
        "schema": SCHEMA,
        "schedules": len(done),
        "requests": sum(len(each.plan.requests) for each in done),
        "ends": dict(sorted(ends.items())),
        "faults": dict(sorted(faults.items())),
        "seconds": round(seconds, 1),
        "failed": {each.plan.seed: each.wrong for each in done if each.wrong},
    }


def show(verdict: RelayVerdict, *, verbose: bool) -> None:
    for line in verdict.lines if verbose else ():
        say(line)
    for line in verdict.wrong[: None if verbose else 5]:
        say(f"{verdict.plan.seed}: {line[:400]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.relay.schedules", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=range(500), help="a seed, or FIRST:END; 0:500 by default")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the whole history")
    options = parser.parse_args(arguments)
    began, done = time.perf_counter(), []
    for verdict in outcomes(simulated, options.seeds, 1 if options.verbose else options.processes):
        done.append(verdict)
        if options.output == "text":
            show(verdict, verbose=options.verbose)
    told = summary(done, time.perf_counter() - began)
    say(json.dumps(told) if options.output == "json" else ", ".join(f"{name}: {value}" for name, value in told.items()))
    return 1 if told["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
