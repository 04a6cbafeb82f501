"""Small documents that a user wrote, such as a configuration: read whole, within a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from sbpair.errors import MachineLacks, UsageError

MAX_BYTES: Final = 512 * 1024
"""Four thousand entities have less. Parsed, a document takes up to 100 times its size."""

_MAX_DOTS: Final = 50_000
_MAX_DOTS_IN_LINE: Final = 1000
_NON_BLOCKING: Final[int] = getattr(os, "O_NONBLOCK", 0)
"""Without it, a pipe that has no writer would be waited for."""


def read_document(path: Path, *, option: str = "", hint: str, missing: str | None = None) -> str:
    """Return the text of a file in UTF-8; `missing`, if given, for one that does not exist.

    `option` names the file in errors, `hint` is what to do about a wrong path. Raises UsageError, MachineLacks.
    """
    place = f"{option}: {path}" if option else str(path)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NON_BLOCKING)) as file:
            # A device may be the null device, an empty document.
            if not (stat.S_ISREG(mode := os.fstat(file.fileno()).st_mode) or stat.S_ISCHR(mode)):
                raise UsageError(f"{place} cannot be read: not a regular file", hint=hint)
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            return missing
        raise UsageError(f"{place} cannot be read: {error.strerror}", hint=hint) from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{place} is larger than {MAX_BYTES} bytes", hint="split it, or name another file")
    try:
        # Editors of Windows write a byte order mark.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8", hint="save it as UTF-8") from error


def check_dotted_keys(text: str, place: str) -> None:
    """Raise UsageError for keys of very many parts: `tomllib` needs a kilobyte and more for each."""
    if text.count(".") > _MAX_DOTS or any(line.count(".") > _MAX_DOTS_IN_LINE for line in text.splitlines()):
        limits = f"{_MAX_DOTS}, or {_MAX_DOTS_IN_LINE} in a line"
        raise UsageError(f"{place} has too many dots: more than {limits}", hint="shorten its keys")
