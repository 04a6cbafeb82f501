"""What starts a local master's Python workers: PySpark's own daemon, out of files instead of out of a zip.

Python keeps nothing of what it compiles out of a zip, so that a second would pass at each start before a task runs.
"""

from __future__ import annotations

import sys
from pathlib import Path


def files_first(places: list[str]) -> list[str]:
    """The same places, with a zip of PySpark behind the directory in which the same PySpark is installed."""
    zips = [place for place in places if _is_within(place, places)]
    return [place for place in places if place not in zips] + zips


def _is_within(place: str, places: list[str]) -> bool:
    path = Path(place)  # …/site-packages/pyspark/python/lib/pyspark.zip
    return path.name == "pyspark.zip" and len(path.parents) > 3 and str(path.parents[3]) in places


if __name__ == "__main__":
    sys.path[:] = files_first(sys.path)
    from pyspark.daemon import manager

    manager()
