"""CPU seconds, of user and system together, of commands that have next to nothing to do: the cost of a start.

python -m tests.benchmarks.startup [--rounds N] [--output json]

The commands take turns against one emulated pair with empty queues; the bytecode is cached before the first round.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.benchmarks.figures import emit, parser, spread
from tests.benchmarks.processes import cpu_seconds, emulated_environment, emulator, spent_by

SBPAIR = (sys.executable, "-m", "sbpair")
COUNT = ("--count", "2")
COMMANDS = {
    "help": ("--help",),
    "syphon": ("syphon", "--once", *COUNT),
    "status": ("status", *COUNT),
    "audit": ("audit", *COUNT),
    "provision": ("provision", "--dry-run", *COUNT),
}
PYTHON = (sys.executable, "-c", "pass")


def emulator_cpu_s() -> float:
    """Return the CPU that an emulator of one namespace has spent when it is ready."""
    with emulator("contoso") as (pid, _):
        return cpu_seconds(pid)


@contextmanager
def cached_bytecode() -> Iterator[None]:
    """Let all processes cache bytecode, whatever the environment wants, in a directory of their own."""
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", cache)
        yield


def measured(rounds: int) -> dict[str, list[float]]:
    with (
        tempfile.TemporaryDirectory() as state,
        cached_bytecode(),
        emulator("contoso", "contoso-dr") as (_, namespaces),
    ):
        env = emulated_environment(namespaces, state)
        subprocess.run([*SBPAIR, "provision", *COUNT], env=env, check=True, stdout=subprocess.DEVNULL)
        commands = {"python": PYTHON, **{name: (*SBPAIR, *words) for name, words in COMMANDS.items()}}
        taken: dict[str, list[float]] = {name: [] for name in (*commands, "emulator")}
        # The first round compiles.
        for _ in range(rounds + 1):
            for name, command in commands.items():
                taken[name].append(spent_by(list(command), env).cpu_s)
            taken["emulator"].append(emulator_cpu_s())
    return {name: each[1:] for name, each in taken.items()}


def main() -> None:
    options = parser(__doc__, rounds=7).parse_args()
    found = {name: spread(each) for name, each in measured(options.rounds).items()}
    emit(options, {"rounds": options.rounds, "cpu_s": found})


if __name__ == "__main__":
    main()
