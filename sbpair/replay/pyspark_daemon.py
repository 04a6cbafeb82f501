"""PySpark's worker daemon for a local master, imported from installed files instead of from a zip.

Python caches no bytecode of a zip, which would cost a second at each start. Modules that every worker needs are
imported once, before the fork, except those that start a thread, as Arrow does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def files_first(places: list[str]) -> list[str]:
    """Return sys.path with PySpark's zip behind the directory where the same PySpark is installed."""
    zips = [place for place in places if _is_within(place, places)]
    return [place for place in places if place not in zips] + zips


def _is_within(place: str, places: list[str]) -> bool:
    path = Path(place)  # …/site-packages/pyspark/python/lib/pyspark.zip
    return path.name == "pyspark.zip" and len(path.parents) > 3 and str(path.parents[3]) in places


def preload() -> tuple[ModuleType, ...]:
    """Import and return the modules that every worker needs."""
    from sbpair.azure import credentials
    from sbpair.move import mover, raw_destination, raw_source

    return credentials, mover, raw_destination, raw_source


class WithoutPandas:
    """An import hook that hides pandas: Arrow would import it in every worker, for half a second, and not need it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden in workers", name=fullname)


if __name__ == "__main__":
    sys.path[:] = files_first(sys.path)
    sys.meta_path.insert(0, WithoutPandas())
    preload()
    from pyspark.daemon import manager

    manager()
