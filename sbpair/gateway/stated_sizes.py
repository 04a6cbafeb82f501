"""The sizes that namespaces state for their entities, kept in a file for a gateway that starts in an outage."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from sbpair.errors import SbpairError
from sbpair.operating_system.files import replaced_file

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

Limits = tuple[int, int]
"""(largest message, largest batch) in bytes; 0 where none is stated."""


class StatedSizes:
    """The last known limits by path, and `backlog_bytes`, the largest message of the backlog queues."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, Limits] = {}
        self.backlog_bytes: int | None = None
        self._read()

    def note(self, path: str, limits: Limits, backlog_bytes: int | None) -> None:
        """Store the limits of an entity, and of the backlog if it is known."""
        before = self._known.get(path.lower()), self.backlog_bytes
        self._known[path.lower()] = limits
        self.backlog_bytes = backlog_bytes or self.backlog_bytes
        if before != (limits, self.backlog_bytes):
            self._write()

    def get(self, path: str) -> Limits:
        return self._known.get(path.lower(), (0, 0))

    def _read(self) -> None:
        try:
            found: Any = json.loads(self._file.read_text()) if self._file is not None else {}
            self._known = {str(path): (int(size), int(batch)) for path, (size, batch) in found["entities"].items()}
            self.backlog_bytes = int(found["backlog"]) or None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # Without it, the smallest tier's limits hold until a namespace answers.
            self._known = {}

    def _write(self) -> None:
        if self._file is None:
            return
        document = {"backlog": self.backlog_bytes or 0, "entities": self._known}
        try:
            with replaced_file(str(self._file)) as temporary:
                temporary.write_text(json.dumps(document))
        except (OSError, SbpairError) as error:
            logger.warning("The limits of entities are not kept: %s", error)
