"""Errors that a check expects. Without pytest: the checks run from the command line too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def raising(kind: type[Exception]) -> AsyncIterator[list[Exception]]:
    """Fail unless the block raises this error; the list that it yields holds it then."""
    caught: list[Exception] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
