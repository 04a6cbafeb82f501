"""The pytest plugin as an installation of sbpair has it: named by an entry point."""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install_plugin(folder: Path) -> dict[str, str]:
    """Write the entry points of pyproject.toml as an installer does; return the environment that finds them."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = folder / "sbpair-9.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sbpair\nVersion: 9.9\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
