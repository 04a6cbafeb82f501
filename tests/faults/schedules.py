"""Seeded fault schedules: the simulated ones, which a seed replays whole, and those over real sockets and processes.

python -m tests.faults.schedules --seeds 0:2000 [--real 200]
python -m tests.faults.schedules --kinds relay --seeds 7 -v

A simulated one that fails is shrunk, and told as a story: the messages, the faults, and what was not in plain order.
"""

import argparse
import gc
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pkgutil import resolve_name
from typing import Any, Final, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What came of one schedule; `wrong` is empty where all that was promised held.

    `faults` are the kinds of those that were meant to strike.
    `again` is how often a message has arrived that was there already: how much the faults have made of themselves.
    """

    kind: str
    seed: int
    wrong: tuple[str, ...]
    faults: tuple[str, ...]
    messages: int
    again: int
    digest: str
    seconds: float
    deviations: int = 0
    lines: tuple[str, ...] = ()
    story: tuple[str, ...] = ()

    @property
    def replay(self) -> str:
        option = "--real-seeds" if self.kind == "real" else f"--kinds {self.kind} --seeds"
        return f"python -m tests.faults.schedules {option} {self.seed} -v"


KINDS: Final = {
    "syphon": ("tests.faults.simulation.plan:plan", "tests.faults.simulation.run:SyphonSimulation"),
    "move": ("tests.faults.simulation.plan:move_plan", "tests.faults.simulation.run:SyphonSimulation"),
    "replay": (
        "tests.replay.simulation.replay_run:replay_plan",
        "tests.replay.simulation.replay_run:ReplaySimulation",
    ),
    "failover": (
        "tests.failover.simulation.failover_plan:failover_plan",
        "tests.failover.simulation.failover_run:FailoverSimulation",
    ),
    "relay": ("tests.relay.simulation.relay_plan:relay_plan", "tests.relay.simulation.relay_run:RelaySimulation"),
}
"""What can be simulated: how the plan of a seed is made, and what carries it out.

A move is a redrive if the seed is odd. A process imports its own kind only.
"""


def simulated(seed: int, *, kind: str, thorough: bool = False, verbose: bool = False) -> Outcome:
    from tests.faults.simulation.harness import carry_out
    from tests.faults.simulation.shrinking import shrunk

    began = time.perf_counter()
    drawn, simulation = map(resolve_name, KINDS[kind])
    run = partial(carry_out, kind=simulation, thorough=thorough)
    plan = drawn(seed)
    verdict = run(plan)
    story = tuple(shrunk(run, plan, verdict).story) if verdict.wrong else ()
    return outcome_of(kind, seed, verdict, began, verbose=verbose, story=story)


def outcome_of(
    kind: str, seed: int, verdict: Any, began: float, *, verbose: bool, story: tuple[str, ...] = ()
) -> Outcome:
    return Outcome(
        kind=kind,
        seed=seed,
        wrong=verdict.wrong,
        faults=tuple(step.kind for step in verdict.plan.steps),
        messages=verdict.messages,
        again=verdict.again,
        digest=verdict.digest,
        seconds=time.perf_counter() - began,
        deviations=len(verdict.deviations),
        lines=verdict.lines if verbose else (),
        story=story,
    )


def simulated_apart(seed: int, *, kind: str, verbose: bool = False) -> Outcome:
    """Simulate a schedule in a process that does nothing else."""
    # The relay reports each failure; the cleanup of a killed syphon finds its files closed, and says so.
    logging.disable(logging.ERROR)
    # The modules need not be searched for what has remained.
    gc.collect()
    gc.freeze()
    return simulated(seed, kind=kind, thorough=True, verbose=verbose)


def failure(kind: str, seeds: Iterable[int]) -> list[str]:
    """Return what is wrong with the first of these schedules that fails, and its story; [] if none does."""
    for seed in seeds:
        outcome = simulated(seed, kind=kind)
        if outcome.wrong:
            return [outcome.replay, *outcome.wrong, *outcome.story]
    return []


def real(seed: int, *, verbose: bool = False) -> Outcome:
    from tests.faults.real import carry_out

    began = time.perf_counter()
    return outcome_of("real", seed, carry_out(seed), began, verbose=verbose)


def outcomes(run: Callable[[int], T], seeds: Iterable[int], processes: int) -> Iterator[T]:
    if processes == 1:
        yield from map(run, seeds)
        return
    # A process for each: a schedule changes what the whole interpreter takes for the time.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, seeds, chunksize=1)


def summary(done: list[Outcome], seconds: float) -> dict[str, object]:
    kinds = sorted({each.kind for each in done})
    return {
        "schedules": {kind: sum(each.kind == kind for each in done) for kind in kinds},
        "messages": sum(each.messages for each in done),
        "arrived_again": sum(each.again for each in done),
        "faults": sum(len(each.faults) for each in done),
        "faults_of_a_kind": dict(sorted(Counter(kind for each in done for kind in each.faults).items())),
        "deviations_from_plain_order": sum(each.deviations for each in done),
        "plain_order": sum(not each.deviations for each in done),
        "seconds": round(seconds, 1),
    }


def show(outcome: Outcome, *, verbose: bool) -> None:
    for line in outcome.lines:
        say(line)
    if outcome.wrong:
        say(f"{outcome.kind} {outcome.seed} ({', '.join(outcome.faults)}): {outcome.replay}")
        for line in outcome.wrong[: None if verbose else 5]:
            say(f"    {line[:400]}")
        for line in outcome.story:
            say(f"  {line[:400]}")
    elif verbose:
        say(f"{outcome.kind} {outcome.seed}: nothing wrong; {outcome.digest}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def seeds(text: str) -> range:
    """Return the seeds of `7` or `0:2000`. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a seed or FIRST:END, such as 7 or 0:2000, got '{text}'")
    first, end = int(found[1]), int(found[2] or int(found[1]) + 1)
    if first >= end:
        raise argparse.ArgumentTypeError(f"'{text}' has no seeds: END must be greater than FIRST")
    return range(first, end)


def kinds_of(text: str) -> tuple[str, ...]:
    """Return the kinds of `move,relay`. Raises ArgumentTypeError."""
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(KINDS)}, got '{kind}'")
    return kinds


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.schedules", description=__doc__)
    parser.add_argument("--seeds", type=seeds, help="simulated schedules: a seed, or FIRST:END; 0:2000 by default")
    kinds = f"of these kinds, with commas; {','.join(KINDS)} by default"
    parser.add_argument("--kinds", type=kinds_of, default=tuple(KINDS), help=kinds)
    parser.add_argument("--real", type=int, default=0, help="so many schedules over real sockets and processes")
    parser.add_argument("--real-seeds", type=seeds, help="those of them: a seed, or FIRST:END")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the whole history")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    real_seeds = options.real_seeds or range(options.real)
    simulated_seeds = options.seeds or (range(0) if options.real_seeds else range(2_000))
    processes = 1 if options.verbose else options.processes
    began = time.perf_counter()
    done: list[Outcome] = []
    runs = [(partial(simulated_apart, kind=kind), simulated_seeds) for kind in options.kinds]
    for run, wanted in (*runs, (real, real_seeds)):
        for outcome in outcomes(partial(run, verbose=options.verbose), wanted, processes if wanted else 1):
            done.append(outcome)
            show(outcome, verbose=options.verbose)
    failed = [f"{each.kind} {each.seed}" for each in done if each.wrong]
    told = summary(done, time.perf_counter() - began)
    say(", ".join(f"{name}: {value}" for name, value in told.items()))
    say(f"{len(failed)} of them with something wrong: {failed[:50]}" if failed else "nothing wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
