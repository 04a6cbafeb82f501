"""Tables and long lines of results, which fit the terminal.

On a terminal the path that backlog queues share is printed once, notes wrap between words, and only then long names
are cut in the middle. Elsewhere everything is printed in full, without colours.
"""

import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sbpair.cli.render.screen import clean

GREEN, YELLOW, RED = 32, 33, 31
MIN_NOTE, MIN_NAME = 24, 10
GAP = "  "
BACKLOG = "/x-servicebus-transfer/"
LEGEND = "~ is at least so many: not all messages were peeked"
PARTIAL = f"{LEGEND}, and there may be other destinations; --peek all counts all"

# The columns whose words have a colour, and those whose numbers have one unless they are 0.
OUTCOMES = frozenset({"OUTCOME", "STATE", "HEALTH", "FOUND", "DUPLICATES"})
PROBLEMS = frozenset({"DEAD", "IN DOUBT"})
COLOURS = {
    **dict.fromkeys(
        ("ok", "up", "done", "created", "existing", "removed", "yes", "topic", "detected", "confirmed"), GREEN
    ),
    **dict.fromkeys(
        ("drifted", "extra", "kept", "note", "unknown", "stopped", "waiting", "not", "gone", "?", "could"), YELLOW
    ),
    **dict.fromkeys(("failed", "missing", "down", "broken", "crashed", "no"), RED),
}

UNCUT = frozenset({"RUN", "STARTED", "ENQUEUED", *OUTCOMES})
"""Columns whose cells are never cut."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The width of a terminal, None for no limit, and whether it has colours."""

    width: int | None = None
    colour: bool = False


def stdout_layout() -> Layout:
    """Return the layout of stdout."""
    forced = os.environ.get("CLICOLOR_FORCE", "0") != "0" and not os.environ.get("NO_COLOR")
    if sys.stdout is None or not sys.stdout.isatty():
        return Layout(colour=forced)
    plain = not forced and (os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"))
    return Layout(shutil.get_terminal_size().columns, not plain)


def columns(
    rows: Sequence[Sequence[object]],
    *,
    hints: Sequence[str] = (),
    optional: Sequence[str] = (),
    layout: Layout | None = None,
) -> list[str]:
    """Return rows as aligned text, the first one a heading; numbers are right-aligned.

    `hints` are printed below the rows. `optional` columns are left out of a terminal that is too narrow for them.
    """
    layout = layout or stdout_layout()
    texts = [[clean(cell) for cell in row] for row in rows]
    # A gap in a column of numbers, such as the counts of a missing queue, does not make it one of text.
    filled = [[row[at] for row in rows[1:] if row[at] != ""] for at in range(len(rows[0]))]
    right = [bool(cells) and all(map(_is_number, cells)) for cells in filled]
    title, table = [], _Table(texts, right)
    if layout.width is not None:
        title = table.shorten_backlog()
        table.fit(layout.width, optional)
    return title + list(table.lines(hints, layout))


def filled_columns(
    rows: Sequence[Mapping[str, object]], *, varying: str, always: Collection[str] = (), optional: Sequence[str] = ()
) -> list[str]:
    """Return rows by heading as `columns` does, without empty ones, and without `varying` if it is the same in all."""
    values = {name: {row[name] for row in rows} for name in (rows[0] if rows else ())}
    headings = [
        name
        for name, found in values.items()
        if name in always or (len(found) > 1 if name == varying else found != {""})
    ]
    return columns([headings, *([row[name] for name in headings] for row in rows)], optional=optional) if rows else []


def limited(rows: Sequence[Sequence[object]], shown: int, what: str = "more") -> Iterator[str]:
    """Yield the heading and the first rows as `columns` does, and the number of the others."""
    yield from columns(rows[: shown + 1])
    if len(rows) > shown + 1:
        yield f"… and {len(rows) - shown - 1} {what}: --output json has all of them"


def wrapped(text: str, *, layout: Layout | None = None) -> list[str]:
    """Return a line in as many lines as the terminal needs, the following ones indented."""
    width = (layout or stdout_layout()).width
    return [text] if width is None else _wrap(text, width, GAP) or [""]


def coloured(text: str, colour: int | None, layout: Layout | None = None) -> str:
    """Return `text` in a colour, where there are colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and (layout or stdout_layout()).colour else text


class _Table:
    """Cells as text, and the widths of their columns. `below`: cells of the last one that do not fit are below it."""

    def __init__(self, texts: list[list[str]], right: list[bool]) -> None:
        self.texts, self.right = texts, right
        self.below = False
        self._measure()

    def shorten_backlog(self) -> list[str]:
        """Shorten the backlog paths that most rows have in common. Return the title that names this path."""
        paths = [cell for row in self.texts[1:] for cell in row if BACKLOG in cell.lower() and " " not in cell]
        found = Counter(path[: path.rindex("/") + 1] for path in paths).most_common(1)
        if not found or found[0][1] < 2:
            return []
        prefix = found[0][0]
        self.texts = [
            [f"…/{cell[len(prefix) :]}" if cell in paths and cell.startswith(prefix) else cell for cell in row]
            for row in self.texts
        ]
        self._measure()
        return [f"backlog queues {prefix}…"]

    def fit(self, width: int, optional: Sequence[str]) -> None:
        """Make the columns fit: leave some out, wrap the notes, cut the names."""
        for heading in optional:
            if self._excess(width) > 0 and heading in self.texts[0]:
                self._remove(self.texts[0].index(heading))
        if (excess := self._excess(width)) <= 0:
            return
        last = [row[-1] for row in self.texts]
        if not self.right[-1] and self.widths[-1] > MIN_NOTE:
            longest = max(len(word) for text in last for word in (*text.split(), ""))
            if self.widths[-1] - excess >= max(MIN_NOTE, longest):
                self.widths[-1] -= excess
                return
            self.below = True
        for _ in range(self._excess(width)):
            at = max(self._cuttable(), key=lambda each: self.widths[each], default=None)
            if at is not None:
                self.widths[at] -= 1
        if self.below:
            self.widths[-1] = max(0, -self._excess(width) - len(GAP))

    def lines(self, hints: Sequence[str], layout: Layout) -> Iterator[str]:
        heading = self.texts[0]
        for number, row in enumerate(self.texts):
            hint = hints[number - 1] if number and hints else ""
            below = self.below and len(row[-1]) > self.widths[-1]
            first, *more = [""] if below else _wrap(row[-1], self.widths[-1])
            yield GAP.join(
                self._padded(at, cell, heading[at] if number else "", layout)
                for at, cell in enumerate([*row[:-1], first])
            ).rstrip()
            indent = " " * (sum(self.widths[:-1]) + len(GAP) * (len(self.widths) - 1))
            yield from (indent + line for line in more)
            if below and number:
                yield from _indented(row[-1], layout)
            if hint:
                # A command that is to be pasted stays on one line.
                yield from _indented(f"-> {clean(hint)}", Layout() if "sbpair " in hint else layout)

    def _measure(self) -> None:
        self.widths = [max(map(len, column)) for column in zip(*self.texts, strict=True)]

    def _excess(self, width: int) -> int:
        widths = self.widths[:-1] if self.below else self.widths
        return sum(widths) + len(GAP) * (len(widths) - 1) - width

    def _remove(self, at: int) -> None:
        for row in (*self.texts, self.right):
            del row[at]  # type: ignore[attr-defined]  # both are lists
        self._measure()

    def _cuttable(self) -> list[int]:
        """Return the columns whose cells can be cut further."""
        return [
            at
            for at, width in enumerate(self.widths[: -1 if self.below else None])
            if not self.right[at] and self.texts[0][at] not in UNCUT and width > max(MIN_NAME, len(self.texts[0][at]))
        ]

    def _padded(self, at: int, cell: str, heading: str, layout: Layout) -> str:
        width = self.widths[at]
        text = cut(cell, width)
        pad = " " * (width - len(text))
        colour = YELLOW if heading in PROBLEMS and cell not in ("", "0") else None
        if heading in OUTCOMES:
            colour = YELLOW if "dead-lettered" in cell else COLOURS.get(cell.partition(" ")[0].rstrip(","))
        text = coloured(text, colour, layout)
        return pad + text if self.right[at] else text + pad


def sampled(number: int, *, exact: bool) -> int | str:
    """Return a number for a cell, with a `~` if it is that of a sample."""
    return number if exact else f"~{number}"


def cut(text: str, width: int) -> str:
    """Return at most `width` characters of a text, without its middle: beginnings and ends tell names apart."""
    tail = width // 2
    return text if len(text) <= width else f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"


def _is_number(cell: object) -> bool:
    """Return whether a cell is a count, that of a sample such as `~250`, or an unknown one."""
    return type(cell) is int or cell == "?" or bool(re.fullmatch(r"~[\d ]{1,15}", str(cell)))


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return `text` in lines, broken between words; a word that is too long for a line is cut in the middle."""
    if len(text) <= width:
        return [text]
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": indent}
    return [cut(line, width) for line in textwrap.wrap(text, width, **options)]  # type: ignore[arg-type]


def _indented(text: str, layout: Layout) -> list[str]:
    narrower = replace(layout, width=layout.width and layout.width - len(GAP))
    return [GAP + line for line in wrapped(text, layout=narrower)]
