"""A benchmark run by a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def benchmark(name: str, *words: str) -> dict[str, Any]:
    """Return the document of a benchmark, which names its schema and the Python build."""
    command = (sys.executable, "-m", f"tests.benchmarks.{name}", *words, "--output", "json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document.pop("schema") == "sbpair/benchmark/1"
    assert set(document.pop("python")) == {"version", "pgo", "lto"}
    return document
