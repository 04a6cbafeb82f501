"""The new names of destinations that were renamed, merged, or turned from a queue into a topic: `--map`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sbpair import backlog
from sbpair.errors import NameInvalid, UsageError
from sbpair.operating_system.files import read_document

HINT = "write OLD=NEW with the paths of queues or topics, or name a file with such lines"


class Renames:
    """Gives the name that a destination has now. Service Bus ignores the case of paths.

    A name may have been changed several times. Raises UsageError for a name with two new ones, for a circle, and for
    a backlog queue as a new name.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._new: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._used: set[str] = set()
        for old, new in pairs:
            for path in (old, new):
                try:
                    backlog.check_path(path, shorten=HINT)
                except NameInvalid as error:
                    raise NameInvalid(f"--map {old}={new}: {error.message}", hint=HINT) from None
            if backlog.TRANSFER_SEGMENT in new.lower().split("/"):
                hint = "its messages would be stranded again: name the entity that applications receive from"
                raise UsageError(f"--map {old}={new}: {new} is a backlog queue", hint=hint)
            if self._new.setdefault(old.lower(), new).lower() != new.lower():
                raise UsageError(f"--map gives {old} two new names", hint="leave one of them out")
            self._written[old.lower()] = f"{old}={new}"
        for old in self._new:
            self._way_of(old)

    def __bool__(self) -> bool:
        return bool(self._new)

    def __call__(self, path: str) -> str:
        way = self._way_of(path.lower())
        self._used.update(way)
        return self._new[way[-1]] if way else path

    def lines(self) -> list[str]:
        """Return all as OLD=NEW."""
        return list(self._written.values())

    def used(self) -> list[str]:
        """Return the old names, in lower case, that destinations had."""
        return sorted(self._used)

    def unused(self) -> list[str]:
        """Return those, as OLD=NEW, whose old name no destination had."""
        return [line for old, line in self._written.items() if old not in self._used]

    def _way_of(self, old: str) -> list[str]:
        way: list[str] = []
        while old in self._new:
            if old in way:
                raise UsageError(
                    f"--map goes round in a circle: {' -> '.join([*way, old])}", hint="leave one of its lines out"
                )
            way.append(old)
            old = self._new[old].lower()
        return way


def read_renames(values: Iterable[str]) -> Renames:
    """Return those of `--map` values: each is OLD=NEW, or a file with such lines, blank ones and comments after `#`.

    Raises UsageError.
    """
    pairs = []
    for value in values:
        if "=" in value:
            pairs.append(_read_pair(value, f"--map {value!r}"))
            continue
        text = read_document(Path(value), option="--map", hint=HINT)
        for number, line in enumerate(text.splitlines(), 1):
            if written := line.partition("#")[0].strip():
                pairs.append(_read_pair(written, f"{value} line {number}"))
    return Renames(pairs)


def _read_pair(text: str, place: str) -> tuple[str, str]:
    old, _, new = (part.strip().strip("/") for part in text.partition("="))
    if not (old and new):
        raise UsageError(f"{place}: expected OLD=NEW", hint=HINT)
    return old, new
