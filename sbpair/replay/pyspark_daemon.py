"""What starts a local master's Python workers: PySpark's own daemon, out of files instead of out of a zip.

Python keeps nothing of what it compiles out of a zip, so that a second would pass at each start before a task runs.
What every worker needs is imported once, before they are forked; but nothing that starts a thread, as Arrow does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def files_first(places: list[str]) -> list[str]:
    """The same places, with a zip of PySpark behind the directory in which the same PySpark is installed."""
    zips = [place for place in places if _is_within(place, places)]
    return [place for place in places if place not in zips] + zips


def _is_within(place: str, places: list[str]) -> bool:
    path = Path(place)  # …/site-packages/pyspark/python/lib/pyspark.zip
    return path.name == "pyspark.zip" and len(path.parents) > 3 and str(path.parents[3]) in places


def shared() -> tuple[ModuleType, ...]:
    """What every worker needs."""
    from sbpair.azure import credentials
    from sbpair.move import mover, raw_primary, raw_source

    return credentials, mover, raw_primary, raw_source


class WithoutPandas:
    """Arrow would import it in every worker, for half a second, at the first list that it is given, and not need it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("not in a worker", name=fullname)


if __name__ == "__main__":
    sys.path[:] = files_first(sys.path)
    sys.meta_path.insert(0, WithoutPandas())
    shared()
    from pyspark.daemon import manager

    manager()
