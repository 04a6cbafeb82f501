"""Conversion of plain values of options.

Typer converts each value, also a default, with a library that takes a tenth of a second to load.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

MAX_DIGITS = 18


def convert_plainly(params: Iterable[Any]) -> None:
    """Let the parameters of a command convert plain values."""
    for param in params:
        param.get_runtime_param = PlainValues(param).itself


class PlainValues:
    """Converts an option's values in place of typer, which converts, or refuses, what is not plainly right."""

    def __init__(self, param: Any) -> None:
        self._kind = param.type_descriptor.annotation
        self._info = param.type_descriptor.parameter_info
        self._typer = param.get_runtime_param

    def itself(self) -> PlainValues:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the converted value. Typer calls it."""
        try:
            return self._list(value) if get_origin(self._kind) is list else self._one(self._kind, value)
        except _NotPlain:
            return self._typer().coerce(value, param=param, ctx=ctx)

    def _list(self, values: Any) -> Any:
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)):
            raise _NotPlain
        return [self._one(get_args(self._kind)[0], each) for each in values]

    def _one(self, kind: Any, value: Any) -> Any:
        if value is None or (kind is str and isinstance(value, str)):
            return value
        if kind is int and self._is_plain_number(str(value)):
            return int(value)
        if kind is Path and isinstance(value, (str, Path)) and not _is_unreadable(value):
            return Path(value)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if isinstance(kind, type) and issubclass(kind, Enum) and value in set(kind):
            return kind(value)
        raise _NotPlain

    def _is_plain_number(self, text: str) -> bool:
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
            return False
        lowest, highest = self._info.min, self._info.max
        return (lowest is None or int(text) >= lowest) and (highest is None or int(text) <= highest)


def _is_unreadable(path: str | Path) -> bool:
    return os.path.lexists(path) and not os.access(path, os.R_OK)


class _NotPlain(Exception):
    """Typer has to convert the value, or to refuse it."""
