"""Results to stdout, everything else to stderr.

Text from messages or from a service is stripped of control characters.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from sbpair.cli.next_command import PAIR, not_confirmed, with_options
from sbpair.cli.options.common import Display, LogFormat, Output
from sbpair.cli.render.query import Query, tab_separated
from sbpair.errors import MachineLacks, SbpairError
from sbpair.model.document import encode_lines, encoded
from sbpair.operating_system import can_be_redrawn, discard

if TYPE_CHECKING:
    from decimal import Decimal

Document = Mapping[str, object]
CLEAR, NO_WRAP, WRAP = "\x1b[H\x1b[2J", "\x1b[?7l", "\x1b[?7h"


def clean(text: object) -> str:
    """Return `text` on one line, without control characters or marks of writing direction."""
    return "".join(each if each.isprintable() else "\ufffd" for each in str(text))


class Screen:
    """The output of a command. `detailed`: -v was given. `eventful`: events are written as JSON lines."""

    def __init__(self, display: Display) -> None:
        # Logging takes longer to load than a usage error takes to print.
        from sbpair.cli.logs import start

        self.output, self.quiet, self.detailed = display.output, display.quiet, display.verbose > 0
        self.query: Query | None = display.query
        if self.query is not None and self.output is Output.TABLE:
            self.output = Output.JSON
        self.eventful = display.log_format is LogFormat.JSON
        start(display)

    @property
    def animated(self) -> bool:
        """Whether stderr may be animated: a terminal, without --quiet or JSON logs."""
        return not self.quiet and not self.eventful and can_be_redrawn(sys.stderr)

    def redrawing(self) -> "Redrawing | None":
        """Return lines on stdout that later ones replace; None for JSON, and off a terminal."""
        on_terminal = self.output is Output.TABLE and sys.stdout is not None and can_be_redrawn(sys.stdout)
        return Redrawing(self) if on_terminal else None

    @property
    def _whole(self) -> bool:
        """Whether a document is printed, or asked, as a whole."""
        return self.output is Output.JSON or (self.output is Output.TSV and self.query is not None)

    def show(self, result: object, table: Iterable[str] = ()) -> None:
        """Print a result in the selected form: its JSON document, its JSON Lines, or text."""
        if self._whole:
            self.write_value(encoded(result), indent=2)
        elif self.output in (Output.JSONL, Output.TSV):
            for line in encode_lines(result):
                self.write_value(line)
        else:
            for text in table:
                self.write(text)

    def show_line(self, result: object) -> None:
        """Print a document as one line of JSON, or as one of values."""
        self.write_value(encoded(result))

    def write_value(self, document: Document, *, indent: int | None = None) -> None:
        """Print a document, or what the query finds there."""
        value: Any = document if self.query is None else self.query.found(document)
        rows = value if indent and isinstance(value, list) else [value]
        for line in tab_separated(rows) if self.output is Output.TSV else [json.dumps(value, indent=indent)]:
            self.write(line)

    def write(self, line: str) -> None:
        """Print one line to stdout and flush it."""
        self._write(lambda: sys.stdout.write(line + "\n"))

    def write_bytes(self, data: bytes) -> None:
        """Write bytes to stdout as they are, and flush them."""
        self._write(lambda: sys.stdout.buffer.write(data))

    def _write(self, write: Callable[[], object]) -> None:
        if sys.stdout is None:
            raise MachineLacks(
                "stdout is closed: the results cannot be written", hint="redirect it to /dev/null instead"
            )
        try:
            write()
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(sys.stdout)
            raise MachineLacks(
                f"the results cannot be written: {error.strerror}", hint="the command has run; free some space"
            ) from error

    def event(self, document: Document) -> None:
        """Write one line of JSON to stderr, with the pair that it is about."""
        if pair := PAIR.get():
            document = {**document, "pair": pair}
        sys.stderr.write(json.dumps(document) + "\n")
        sys.stderr.flush()

    def say(self, text: str, *, always: bool = False) -> None:
        """Print information to stderr, unless --quiet; `always` prints it with --quiet, too."""
        if always or not self.quiet:
            self._print("info", text)

    def detail(self, text: str) -> None:
        """Print information to stderr with -v."""
        if self.detailed:
            self.say(text)

    def warn(self, text: str) -> None:
        self._print("warning", text)

    def error(self, text: str, hint: str = "") -> None:
        """Print an error of a command that still has a result to print."""
        self._print("error", text, hint)

    def hints(self, errors: Iterable[SbpairError]) -> None:
        """Print what to do about failures that a table names without their hints. JSON documents have them."""
        if self.output is Output.TABLE:
            for hint in dict.fromkeys(with_options(each.hint) for each in errors if each.hint):
                self._print("hint", hint)

    def asks(self, question: str, *, after_table: bool = True) -> bool:
        """Ask a user at a terminal; only `y` or `yes` is a yes. Blocks, so call it outside an event loop.

        A question that comes `after_table` is not asked where JSON is printed instead.
        """
        if (after_table and self.output is not Output.TABLE) or not all(map(_is_terminal, (sys.stdin, sys.stderr))):
            return False
        try:
            sys.stderr.write(f"{clean(question)} [y/N] ")
            sys.stderr.flush()
            return sys.stdin.buffer.readline().strip().lower() in (b"y", b"yes")
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise

    def confirm(self, option: str, plan: str, command: str, *, yes: bool) -> None:
        """Print the plan and ask for confirmation, unless `yes`. Raises Unsafe without it; `command` would confirm."""
        self.warn(f"{option} {plan}")
        if not yes and not self.asks("Continue?", after_table=False):
            raise not_confirmed("created", command)

    def _print(self, level: str, text: str, hint: str = "") -> None:
        from sbpair.cli import logs

        text = f"{PAIR.get()}: {text}" if PAIR.get() and not self.eventful and level != "hint" else text
        line = clean(text) if level == "info" else f"{level}: {clean(text)}"
        if self.eventful:
            level = "info" if level == "hint" else level
            more: dict[str, Any] = {"hint": clean(hint)} if hint else {}
            line = logs.line(level, "sbpair", clean(text), **more)
        elif level == "error":
            line += f"\nhint: {clean(hint)}" if hint else ""
        elif level == "warning" or (level == "info" and not sys.stderr.isatty()):
            line = f"{logs.stamp()} {line}"
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            raise
        except OSError:  # the terminal is gone: the command goes on, and stops in order
            discard(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class Redrawing:
    """Lines on stdout, drawn in place of those drawn before."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines = 0
        self._size = shutil.get_terminal_size()

    def draw(self, lines: Sequence[str], foot: str) -> None:
        """Print lines above a foot, as many as the terminal has room for."""
        size = shutil.get_terminal_size()
        shown = [*shortened(lines, size.lines - 2), foot]
        # After a resize, the terminal has rewrapped the old lines onto an unknown number of lines.
        start = CLEAR if size != self._size else f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
        self._screen.write(f"{start}{NO_WRAP}" + "\n".join(shown) + WRAP)
        self._lines, self._size = len(shown), size


def shortened(lines: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` lines: the first ones, how many are left out, and the last one."""
    if len(lines) <= limit:
        return list(lines)
    first = lines[: max(0, limit - 2)]
    return [*first, f"… {len(lines) - len(first) - 1} more lines", lines[-1]]


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def grouped(number: int) -> str:
    """Return a number with its digits in groups of three."""
    return f"{number:,}".replace(",", " ")


def some(names: Sequence[object], shown: int = 3, *, more: bool = False) -> str:
    """Return the first names, with an ellipsis if there are `more`."""
    return ", ".join(map(str, names[:shown])) + (", …" if more or len(names) > shown else "")


def spoken(seconds: float) -> str:
    """Return a duration in its two largest units: `3d 4h`, `5m 10s`, `0s`. Of 100 days and more, only the days."""
    left = round(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[: 1 if seconds >= 100 * 86_400 else 2])


def size(number: float) -> str:
    """Return bytes with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def share(ratio: float | None) -> str:
    """Return a ratio as a percentage; a small one is not 0, and an unknown one is empty."""
    return "" if ratio is None else "<1%" if 0 < ratio < 0.01 else f"{ratio:.0%}"


def amount(money: "Decimal") -> str:
    """Return an amount with two decimals; a small amount is not 0."""
    return "under 0.01" if 0 < 100 * money < 1 else f"{money:.2f}"
