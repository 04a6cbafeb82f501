"""Errors of content that is not that of a data file: which row, and what is wrong with it, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Final

from sbpair.errors import SbpairError


class RowUnreadable(ValueError):
    """A row that cannot be read. The text names it."""


UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError, SbpairError)
"""The errors of reading a row whose content is not the expected one."""


@contextmanager
def row(name: str) -> Iterator[None]:
    """Raise RowUnreadable with this name if the block cannot read the row."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(name, error) from error


def unreadable(name: str, error: Exception) -> RowUnreadable:
    return RowUnreadable(f"{name}: {reason(error)}")


def reason(error: Exception) -> str:
    """Return what is wrong, in words. Python's own texts are about code, not about the file."""
    if isinstance(error, RowUnreadable):
        return str(error)
    if isinstance(error, SbpairError):
        return error.message
    if isinstance(error, JSONDecodeError):
        return "not JSON"
    if isinstance(error, KeyError) and isinstance(error.args[0], str):
        return f"'{error.args[0][:100]}' is missing"
    return "a value is of another type or form than expected"
