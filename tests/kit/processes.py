"""Processes as Linux lists them: their descendants and files."""

from collections import defaultdict
from pathlib import Path


def offspring(pid: int) -> list[int]:
    """Return the descendants of a process, parents first."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        if fields := read(path).rpartition(")")[2].split():
            children[int(fields[1])].append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found[1:]


def read(path: Path) -> str:
    """Return the content of a file, or "" if it is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
