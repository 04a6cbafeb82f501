"""A process that has no file left to open."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from sbpair.cli.schemas import all_schemas

FIRST = 3
"""The lowest number of a file beside the standard streams."""


@contextmanager
def no_file_left() -> Iterator[None]:
    """Let every call in this process fail that would open a file or a socket; those that are open stay so."""
    all_schemas()  # loads what tests check documents with
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FIRST, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
