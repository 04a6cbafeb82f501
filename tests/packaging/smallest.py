"""The smallest versions that pyproject.toml allows, as constraints of pip.

`python -m tests.packaging.smallest` writes them again.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
CONSTRAINTS = Path(__file__).with_name("smallest.txt")
TOOLS = "dev"
"""The extra whose packages no user needs."""


def smallest() -> str:
    """Return a line `name==version` for each requirement, and each of an extra that users install."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *(need for name in extras if name != TOOLS for need in extras[name])]
    found = {}
    for requirement in map(Requirement, needs):
        [least] = [each.version for each in requirement.specifier if each.operator == ">="]
        found[requirement.name] = least
    return "".join(f"{name}=={found[name]}\n" for name in sorted(found))


if __name__ == "__main__":
    CONSTRAINTS.write_text(smallest())
