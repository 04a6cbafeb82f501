"""Checks the models completely, and follows their traces with the code.

python -m tests.model [NAME ...]
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from tests.model.failover_model import FailoverModel
from tests.model.move_code import follow_all
from tests.model.move_model import Budget, MoveModel
from tests.model.relay_model import RelayModel
from tests.model.replay_model import Budget as ReplayBudget
from tests.model.replay_model import ReplayModel
from tests.model.search import Found, Model, search

SEARCHED: dict[str, Callable[[], Model]] = {
    "failover: each state of an entity, a backlog queue and the outbox": FailoverModel,
    "relay: GET and POST": partial(RelayModel, 0, 1),
    "relay: two POST, one of which may be repeated": partial(RelayModel, 1, 2),
    "replay: 1 message, 2 deaths, each other fault": partial(ReplayModel, "A", ReplayBudget(2, 1, 1, 1)),
    "replay: 2 destinations, a task and a driver die": partial(ReplayModel, "AB", ReplayBudget(1, 1)),
    "move: 3 messages, 2 crashes, lost lock, lost answer": partial(MoveModel, "ABA", Budget(2, 1, 1)),
    "move: 3 messages, 2 crashes, lost connection": partial(MoveModel, "ABA", Budget(crashes=2, backlog=1)),
    "move: 3 messages, crash, lost connection, stop, pause": partial(MoveModel, "ABA", Budget(1, 0, 0, 1, 1, 1)),
    "move: 3 messages, duplicate detection": partial(MoveModel, "ABA", Budget(2, 0, 1), detects_duplicates=True),
    "move: 2 messages, each fault": partial(MoveModel, "AA", Budget(1, 1, 1, 1, 0, 1)),
    "move: 1 message, each fault twice": partial(MoveModel, "A", Budget(2, 2, 2, 2, 1, 1)),
    "move: 1 message, delivery limit": partial(MoveModel, "A", Budget(2, 2, 2, 1, 1, 0), limit=2),
}
"""The most faults of each kind that are searched. Of the move: crashes, lost locks, answers of the primary, connections
to the backlog, stops and pauses; of the replay: tasks and drivers that die, answers of the primary, full disks.
"""

FOLLOWED: dict[str, Callable[[], MoveModel]] = {
    "move: 1 message, each fault": partial(MoveModel, "A", Budget(1, 1, 1, 1, 0, 0)),
    "move: 1 message, stop and pause": partial(MoveModel, "A", Budget(0, 1, 1, 1, 1, 1)),
    "move: 1 message, delivery limit": partial(MoveModel, "A", Budget(1, 1, 1), limit=1),
    "move: 2 messages, lost lock, stop": partial(MoveModel, "AA", Budget(expiries=1, stops=1)),
    "move: 2 messages, crash": partial(MoveModel, "AA", Budget(crashes=1)),
    "move: 2 messages, lost lock, lost answer": partial(MoveModel, "AA", Budget(expiries=1, primary=1)),
    "move: 2 destinations, lost answer": partial(MoveModel, "ABA", Budget(primary=1)),
}


def search_named(name: str) -> Found:
    logging.disable(logging.WARNING)
    return search(SEARCHED[name]())


def follow_named(name: str) -> tuple[int, int, float]:
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    return *follow_all(FOLLOWED[name]()), time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    """Print a line for each model. Return 1 if a property does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("name", nargs="*", help="only models whose names begin so")
    wanted = tuple(parser.parse_args(arguments).name) or ("",)
    code = 0
    with ProcessPoolExecutor(2) as pool:
        jobs = {pool.submit(search_named, name): name for name in SEARCHED if name.startswith(wanted)}
        jobs |= {pool.submit(follow_named, name): name for name in FOLLOWED if name.startswith(wanted)}
        for job in as_completed(jobs):
            name, found = jobs[job], job.result()
            if isinstance(found, Found):
                line = f"{found.states} states, {found.transitions} transitions, {found.seconds:.1f} s"
                if found.wrong:
                    code = 1
                    line = "\n  ".join([line, f"wrong: {found.wrong}, after", *map(str, found.trace)])
            else:
                traces, events, seconds = found
                line = f"the code followed {traces} traces of {events} events, {seconds:.1f} s"
            sys.stdout.write(f"{name}: {line}\n")
            sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
