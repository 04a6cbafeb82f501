"""The package as users install it: its wheel, in an environment of its own, from the registry."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this environment and these variables, without the path that leads to this checkout."""
    return {name: value for name, value in {**os.environ, **environment}.items() if name != "PYTHONPATH"}


def install(folder: Path, *packages: str) -> Path:
    """Install sbpair and these packages. Return the environment's Python."""
    python = folder / "venv/bin/python"
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [str(python), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        [str(python), "-m", "pip", "install", "--quiet", "--find-links", str(folder), "sbpair", *packages],
    ):
        done = subprocess.run(command, env=outside({}), cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return python
