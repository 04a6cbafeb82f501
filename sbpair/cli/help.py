"""Help texts, the same on every machine: plain text, options in sections, at most 100 columns.

Typer's own renderings change from one of its versions to the next, and its panels cost the loading of rich.
"""

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDEST = 100
NARROWEST = 50
LONGEST_NAME = 30

Row = tuple[str, str]


class Command(TyperCommand):
    """A command whose help is written here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        params = self.get_params(ctx)
        arguments = [str(param.metavar) for param in params if _is_argument(param)]
        usage = " ".join([ctx.command_path, *arguments, "[OPTIONS]"])
        formatter.write(page(usage, self.help or "", sections(params)))


class CommandGroup(TyperGroup):
    """The root: its help lists the commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (command.help or "").split("\n\n")[0]) for name, command in commands if command]
        listed = {"Commands": rows, **sections(self.get_params(ctx))}
        formatter.write(page(f"{ctx.command_path} COMMAND [OPTIONS]", self.help or "", listed))


def page(usage: str, text: str, listed: dict[str, list[Row]]) -> str:
    """A whole help text; paragraphs are filled, and indented lines stay as they are."""
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    blocks = [f"Usage: {usage}", *(_filled(paragraph, width) for paragraph in text.split("\n\n"))]
    blocks += [_section(title, rows, width) for title, rows in listed.items() if rows]
    return "\n\n".join(blocks) + "\n"


def sections(params: Iterable[Any]) -> dict[str, list[Row]]:
    """Rows of options under the title that each option's `rich_help_panel` gives; a command's own come first."""
    listed: dict[str, list[Row]] = {"Arguments": [], "Options": []}
    for param in params:
        if not getattr(param, "hidden", False):
            title = getattr(param, "rich_help_panel", None) or ("Arguments" if _is_argument(param) else "Options")
            listed.setdefault(title, []).append(_row(param))
    # Typer appends --help, which is no concern of the command's.
    asked = [row for row in listed["Options"] if row[0] == "--help"]
    listed["Options"] = [row for row in listed["Options"] if row not in asked]
    last = list(listed)[-1]
    listed[last] += asked
    return listed


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _row(param: Any) -> Row:
    if _is_argument(param):
        return param.metavar, param.help.rstrip(".")
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=len))
    metavar = f" {param.metavar}" if param.metavar else ""
    return f"{names}{metavar}", (param.help or "").rstrip(".")


def _filled(paragraph: str, width: int) -> str:
    if any(line.startswith(" ") for line in paragraph.splitlines()):
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)


def _section(title: str, rows: list[Row], width: int) -> str:
    longest = min(LONGEST_NAME, max(len(name) for name, _text in rows))
    lines = [line for name, text in rows for line in _lines(name, text, longest, width)]
    return "\n".join([f"{title}:", *lines])


def _lines(name: str, text: str, longest: int, width: int) -> Iterator[str]:
    described = textwrap.wrap(text, width - longest - 4, break_on_hyphens=False) or [""]
    if len(name) > longest:
        yield f"  {name}"
        name = ""
    for line in described:
        yield f"  {name:<{longest}}  {line}".rstrip()
        name = ""
