"""The installed package: the commit it was built from, its dependencies, and whether its modules are compiled."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

BUILD_FILE = "build.json"
"""The file in the package of an sdist and a wheel: the commit and its date."""

GIT_SECONDS = 5.0
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?[^;]*(;.*)?")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's id, with `-dirty` after it if files were changed since, and its date."""

    id: str
    date: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that sbpair requires on every system, or else for an extra or on some, and its installed version.

    `minimum` is the smallest version, "" if there is none.
    """

    name: str
    everywhere: bool
    installed: str | None
    minimum: str


@cache
def built_from() -> Commit | None:
    """Return the commit that the build noted, or else that of the checkout; None if neither is known."""
    noted = files("sbpair") / BUILD_FILE
    if noted.is_file():
        document = json.loads(noted.read_text("utf-8"))
        return Commit(document["commit"], document["date"])
    return commit_of(Path(__file__).parents[2])


def commit_of(root: Path) -> Commit | None:
    """Ask git for the commit of the checkout at `root`; None if it is not one, or git does not answer."""
    if not (root / ".git").exists():
        return None
    try:
        commit, date = _git(root, "log", "-1", "--format=%H %cs").split()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Commit(f"{commit}-dirty" if changed else commit, date)


def _git(root: Path, *words: str) -> str:
    # A hook of git sets variables that name another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    return subprocess.run(  # noqa: S603  # the words are constants
        command, env=environ, capture_output=True, text=True, timeout=GIT_SECONDS, check=True
    ).stdout.strip()


def requirements() -> list[Requirement]:
    """Return the packages that sbpair and its extras require, by name; none if sbpair is not installed."""
    try:
        declared = importlib.metadata.requires("sbpair") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [match.groups("") for each in declared if (match := _REQUIREMENT.match(each))]
    return [Requirement(name, not condition, _version(name), minimum) for name, minimum, condition in found]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_compiled() -> bool:
    """Return whether modules of the package are native code."""
    return any(path.suffix in (".so", ".pyd") for path in Path(__file__).parents[1].rglob("*"))
