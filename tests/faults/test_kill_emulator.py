"""Kills of an emulator that keeps its messages in a file."""

import json
import subprocess
import sys

import pytest


def kill(cycles: int, seed: int) -> dict[str, int]:
    """Return how many operations of each kind were acknowledged, once all of them are found again."""
    words = ("-m", "tests.faults.killed_emulator", "--cycles", str(cycles), "--seed", str(seed))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=1_200)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_killed_durable_emulator_has_all_it_acknowledged() -> None:
    assert kill(cycles=2, seed=1)["active"]


@pytest.mark.slow
def test_twenty_kills_lose_nothing_that_was_acknowledged() -> None:
    acknowledged = kill(cycles=20, seed=7)
    assert min(acknowledged[place] for place in ("active", "scheduled", "dead letter", "deferred", "gone")) > 10
