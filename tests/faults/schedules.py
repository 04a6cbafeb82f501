"""Seeded fault schedules: the simulated ones, which a seed replays whole, and those over real sockets and processes.

python -m tests.faults.schedules --seeds 0:2000 [--real 200] [--output json]
python -m tests.faults.schedules --seeds 7 -v
"""

import argparse
import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Final, TypeVar

T = TypeVar("T")
SCHEMA: Final = "sbpair/schedules/1"


@dataclass(frozen=True)
class Outcome:
    """What came of one schedule; `wrong` is empty where all that was promised held.

    `faults` are the kinds of those that struck; of a simulated one, those that were meant to.
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
    lines: tuple[str, ...] = ()

    @property
    def replay(self) -> str:
        option = "--real-seeds" if self.kind == "real" else "--seeds"
        return f"python -m tests.faults.schedules {option} {self.seed} -v"


def simulated(seed: int, *, verbose: bool = False, move: bool = False) -> Outcome:
    """One of a syphon, or of a `move`: that is a redrive if the seed is odd."""
    from tests.faults.simulation.run import simulate, simulate_move

    # The cleanup of a killed syphon finds its files closed, and says so.
    logging.getLogger("sbpair.runs").setLevel(logging.ERROR)
    began = time.perf_counter()
    verdict = simulate_move(seed) if move else simulate(seed)
    return Outcome(
        kind=verdict.plan.mover,
        seed=seed,
        wrong=verdict.wrong,
        faults=tuple(step.kind for step in verdict.plan.steps),
        messages=verdict.messages,
        again=verdict.again,
        digest=verdict.digest,
        seconds=time.perf_counter() - began,
        lines=verdict.lines if verbose else (),
    )


def real(seed: int, *, verbose: bool = False) -> Outcome:
    from tests.faults.real import carry_out

    began = time.perf_counter()
    played = carry_out(seed)
    return Outcome(
        kind="real",
        seed=seed,
        wrong=played.wrong,
        faults=played.struck,
        messages=played.messages,
        again=played.again,
        digest="",
        seconds=time.perf_counter() - began,
        lines=played.lines if verbose else (),
    )


def outcomes(run: Callable[[int], T], seeds: Iterable[int], processes: int) -> Iterator[T]:
    if processes == 1:
        yield from map(run, seeds)
        return
    # A process for each: a schedule changes what the whole interpreter takes for the time.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, seeds, chunksize=1)


def summary(done: list[Outcome], seconds: float) -> dict[str, object]:
    kinds = sorted({each.kind for each in done})
    failed = [each for each in done if each.wrong]
    return {
        "schema": SCHEMA,
        "schedules": {kind: sum(each.kind == kind for each in done) for kind in kinds},
        "messages": sum(each.messages for each in done),
        "arrived_again": sum(each.again for each in done),
        "faults": sum(len(each.faults) for each in done),
        "faults_of_a_kind": dict(sorted(Counter(kind for each in done for kind in each.faults).items())),
        "seconds": round(seconds, 1),
        "failed": [{**asdict(each), "lines": [], "replay": each.replay} for each in failed],
    }


def show(outcome: Outcome, *, verbose: bool) -> None:
    for line in outcome.lines:
        say(line)
    if outcome.wrong:
        say(f"{outcome.kind} {outcome.seed} ({', '.join(outcome.faults)}): {outcome.replay}")
        for line in outcome.wrong[: None if verbose else 5]:
            say(f"    {line[:400]}")
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


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.schedules", description=__doc__)
    parser.add_argument("--seeds", type=seeds, help="simulated schedules: a seed, or FIRST:END; 0:2000 by default")
    parser.add_argument("--real", type=int, default=0, help="so many schedules over real sockets and processes")
    parser.add_argument("--real-seeds", type=seeds, help="those of them: a seed, or FIRST:END")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the whole history")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    real_seeds = options.real_seeds or range(options.real)
    simulated_seeds = options.seeds or (range(0) if options.real_seeds else range(2_000))
    processes = 1 if options.verbose else options.processes
    began = time.perf_counter()
    done: list[Outcome] = []
    moved = partial(simulated, move=True)
    for run, wanted in ((simulated, simulated_seeds), (moved, simulated_seeds), (real, real_seeds)):
        for outcome in outcomes(partial(run, verbose=options.verbose), wanted, processes if wanted else 1):
            done.append(outcome)
            if options.output == "text":
                show(outcome, verbose=options.verbose)
    told = summary(done, time.perf_counter() - began)
    if options.output == "json":
        say(json.dumps(told))
    else:
        failed = [each.seed for each in done if each.wrong]
        say(", ".join(f"{name}: {value}" for name, value in told.items() if name not in ("schema", "failed")))
        say(f"{len(failed)} of them with something wrong: {failed[:50]}" if failed else "nothing wrong")
    return 1 if any(each.wrong for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
