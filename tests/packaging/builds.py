"""Builds of the package with the packages of this environment, without a network."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Built(NamedTuple):
    sdist: Path
    wheel: Path


def build(source: Path, folder: Path, *, umask: int = -1, **variables: str) -> Built:
    """Build the sources in `source` into `folder`: an sdist, and a wheel from the same sources."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SOURCE_DATE"))}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=source, env={**kept, **variables}, umask=umask, capture_output=True, check=True)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)
