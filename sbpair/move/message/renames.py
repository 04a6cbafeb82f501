"""The new names of destinations that were renamed, merged, or turned from a queue into a topic: `--map`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from sbpair import backlog
from sbpair.errors import NameInvalid, UsageError, noting, raise_all
from sbpair.operating_system.files import read_document

HINT = "write OLD=NEW with the paths of queues or topics, or name a file with such lines"


class Renames:
    """Gives the name that a destination has now. Service Bus ignores the case of paths.

    A name may have been changed several times. Raises UsageError for a name with two new ones, for a circle, and for
    a backlog queue as a new name.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = (), places: Iterable[str] = ()) -> None:
        """Take pairs of names, and the place of each for errors, if it is not `--map` itself."""
        self._new: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._used: set[str] = set()
        wrong: list[UsageError] = []
        for (old, new), place in zip_longest(pairs, places):
            with noting(wrong):
                self._add(old, new, place or f"--map {old}={new}")
        raise_all(wrong)
        for old in self._new:
            self._way_of(old)

    def _add(self, old: str, new: str, place: str) -> None:
        for path in (old, new):
            try:
                backlog.check_path(path, shorten=HINT)
            except NameInvalid as error:
                raise NameInvalid(f"{place}: {error.message}", hint=HINT) from None
        if backlog.TRANSFER_SEGMENT in new.lower().split("/"):
            hint = "its messages would be stranded again: name the entity that applications receive from"
            raise UsageError(f"{place}: {new} is a backlog queue", hint=hint)
        if self._new.setdefault(old.lower(), new).lower() != new.lower():
            raise UsageError(f"{place}: {old} has two new names", hint="leave one of them out")
        self._written[old.lower()] = f"{old}={new}"

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

    Raises UsageError for each wrong one, with its line.
    """
    written: list[tuple[str, str]] = []
    for value in values:
        if "=" in value:
            written.append((value, f"--map {value}"))
            continue
        lines = read_document(Path(value), option="--map", hint=HINT).splitlines()
        written += [(line.partition("#")[0].strip(), f"{value}:{number}") for number, line in enumerate(lines, 1)]
    pairs: dict[str, tuple[str, str]] = {}
    wrong: list[UsageError] = []
    for text, place in written:
        old, _, new = (part.strip().strip("/") for part in text.partition("="))
        if old and new:
            pairs[place] = old, new
        elif text:
            wrong.append(UsageError(f"{place}: expected OLD=NEW", hint=HINT))
    with noting(wrong):
        found = Renames(pairs.values(), pairs)
    raise_all(wrong)
    return found
