"""Manual pages in roff, section 1: one for each command, from the same texts as its help."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sbpair import __version__
from sbpair.cli.app import COMMANDS, PROGRAM, app, find_command
from sbpair.cli.help import LAST_PARAGRAPHS, Row

SECTION = "1"
FOLDER = f"man{SECTION}"
WIDTH = 66
"""Characters of a line before they are escaped."""

# These would be printed as typographic quotes, accents and hyphens.
_PLAIN = {"\\": r"\e", "-": r"\-", "'": r"\(aq", '"': r"\(dq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}


def page_paths() -> Iterator[tuple[str, ...]]:
    """Yield the path of each command, such as `("replay", "run")`; the program itself has none."""
    yield ()
    for name in COMMANDS:
        yield (name,)
        for below in getattr(find_command([name]), "commands", {}):
            yield name, below


def page_name(path: Sequence[str]) -> str:
    """Return the name of a page: `sbpair-replay-run`."""
    return "-".join([PROGRAM, *path])


def write_pages(folder: Path, date: str) -> list[Path]:
    """Write the page of each command to a folder that exists; return the files."""
    pages = {folder / f"{page_name(path)}.{SECTION}": man_page(path, date) for path in page_paths()}
    for file, text in pages.items():
        file.write_text(text, "ascii")
    return list(pages)


def man_page(path: Sequence[str], date: str) -> str:
    """Return the page of the command at `path`, which exists; `date` is YYYY-MM-DD."""
    command = _command(path)
    context = command.context_class(command, info_name=" ".join([PROGRAM, *path]))
    paragraphs = [each for each in (command.help or "").split("\n\n") if each.strip()]
    summary, *text = paragraphs
    examples, last = ([each for each in text if each.startswith(start)] for start in ("Examples:", LAST_PARAGRAPHS))
    codes, hints = ([_after_colon(each) for each in last if each.startswith(start)] for start in LAST_PARAGRAPHS)
    body = [each for each in text if each not in (*examples, *last)]
    header = (page_name(path).upper(), SECTION, date, f"{PROGRAM} {__version__}", "User Commands")
    lines = [
        ".TH " + " ".join(f'"{each}"' for each in header),
        ".nh",
        ".ad l",
        *_section("NAME", _filled(f"{page_name(path)} - {_lower(summary)}")),
        *_section("SYNOPSIS", [f".B {_escaped(command.usage(context))}"]),
        *_section("DESCRIPTION", _paragraphs([summary, *body])),
    ]
    for title, rows in command.rows(context).items():
        lines += _section(title.upper(), _table(rows))
    lines += _section("EXAMPLES", [line for each in examples for line in _verbatim(each)])
    lines += _section("EXIT STATUS", _paragraphs(codes))
    lines += _section("SEE ALSO", _filled(_see_also(path, command, hints)))
    return "\n".join(lines) + "\n"


def _command(path: Sequence[str]) -> Any:
    from typer.main import get_command

    return find_command(path) if path else get_command(app)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f".SH {_escaped(title)}", *lines] if lines else []


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in (".PP", *_filled(text))][1:]


def _table(rows: Sequence[Row]) -> list[str]:
    return [line for name, text in rows for line in (".TP", f".B {_escaped(name)}", *_filled(text))]


def _filled(text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)
    return list(map(_escaped, lines)) or [r"\&"]


def _verbatim(paragraph: str) -> list[str]:
    return [".nf", *(_escaped(line.strip()) for line in paragraph.splitlines()[1:]), ".fi"]


def _after_colon(paragraph: str) -> str:
    return " ".join(paragraph.partition(":")[2].split())


def _lower(summary: str) -> str:
    return summary[:1].lower() + summary[1:].rstrip(".")


def _see_also(path: Sequence[str], command: Any, hints: Sequence[str]) -> str:
    below = COMMANDS if not path else getattr(command, "commands", {})
    names = [page_name(path[:length]) for length in range(len(path))] + [page_name((*path, each)) for each in below]
    pages = [f"{name}({SECTION})" for name in names]
    return ", ".join([*pages, *hints])


def _escaped(text: str) -> str:
    """Return text whose every character is printed as it is, in ASCII."""
    plain = "".join(_PLAIN.get(each) or (each if each.isascii() else f"\\[u{ord(each):04X}]") for each in text)
    return rf"\&{plain}" if plain.startswith(".") else plain
