"""The benchmark of starts measures each command; its figures are not judged here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.benchmarks.startup import COMMANDS
from tests.kit.command import run_program


def test_the_benchmark_measures_the_start_of_each_command() -> None:
    words = ("-m", "tests.benchmarks.startup", "--rounds", "1", "--output", "json")
    done = run_program(sys.executable, *words, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["python"].startswith("CPython 3")
    assert set(document["cpu_s"]) == {"python", *COMMANDS, "emulator"}
    assert all(0 < each["min"] <= each["median"] <= each["max"] for each in document["cpu_s"].values())
