"""Builds of the package without a network, with those packages of this environment that a build requires."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


class Built(NamedTuple):
    sdist: Path
    wheel: Path


def build(source: Path, folder: Path, *, umask: int = -1, **variables: str) -> Built:
    """Build the sources in `source` into `folder`: an sdist, and a wheel from the same sources."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SOURCE_DATE"))}
    command = [sys.executable, "-S", "-m", "hatchling", "build", "--directory", str(folder)]
    with TemporaryDirectory() as packages:
        link_required(Path(packages))
        own = {**kept, **variables, "PYTHONPATH": packages}
        subprocess.run(command, cwd=source, env=own, umask=umask, capture_output=True, check=True)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


def link_required(folder: Path) -> None:
    """Fill `folder` with links to what pip would install in order to build, so that nothing else can be imported."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    waiting, found = list(map(Requirement, required)), set()
    while waiting:
        wanted = waiting.pop()
        if wanted.name in found or not (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(wanted.name)
        package = distribution(wanted.name)
        waiting += map(Requirement, package.requires or ())
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (folder / name).symlink_to(Path(str(package.locate_file(name))))
