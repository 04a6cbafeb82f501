"""Help texts, the same on every machine: plain text, options in sections, 40 to 100 columns wide.

Typer's own renderings change between its versions, and its panels cost the loading of rich.
"""

import shutil
import textwrap
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

from typer.core import TyperCommand, TyperGroup

from sbpair.cli.options.rules import apply_rules, convert_plainly, name_of, needs_of
from sbpair.errors import ExitCode, TimedOut

MAX_WIDTH = 100
MIN_WIDTH = 40
MAX_NAME = 28
"""A longer name of an option has a line of its own."""

HELP_OPTIONS = ["-h", "--help"]
TITLES = ("Arguments", "Options", "Management", "Pair", "Output")
OPTIONS = "[OPTIONS]"
LAST_PARAGRAPHS = ("Exit codes:", "See also:")

Row = tuple[str, str]


class _Documented:
    """A command with a name for help, a summary that is never cut, and plain values that typer does not convert."""

    help: str | None

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        convert_plainly(self.get_params(ctx))  # type: ignore[attr-defined]  # of typer's class
        rest = super().parse_args(ctx, args)  # type: ignore[misc]
        if not ctx.resilient_parsing:
            apply_rules(ctx)
        return rest

    def get_help_option_names(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return HELP_OPTIONS

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002
        return (self.help or "").split("\n\n")[0]

    def usage(self, ctx: Any) -> str:
        """Return the command's name, and what may follow it."""
        raise NotImplementedError

    def rows(self, ctx: Any) -> dict[str, list[Row]]:
        """Return commands, arguments and options with their texts, under titles."""
        raise NotImplementedError

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self.usage(ctx), self.help or "", self.rows(ctx)))


class Command(_Documented, TyperCommand):
    """A command whose help is written here."""

    def usage(self, ctx: Any) -> str:
        params = self.get_params(ctx)
        arguments = [str(param.metavar) for param in params if _is_argument(param)]
        required = [f"{param.opts[0]} {param.metavar}" for param in params if _is_required_option(param)]
        return " ".join([ctx.command_path, *arguments, *required, self.options_metavar or OPTIONS])

    def rows(self, ctx: Any) -> dict[str, list[Row]]:
        return sections(self.get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        from sbpair.cli.next_command import invocation

        with invocation(ctx):
            seconds = ctx.params.get("deadline")
            return super().invoke(ctx) if seconds is None else self._within(seconds, ctx)

    def _within(self, seconds: float, ctx: Any) -> Any:
        """Run the command; after so many seconds, let it stop as at a signal. Raises TimedOut if that cut it short."""
        from sbpair.operating_system.signals import CommandDeadline

        deadline = CommandDeadline(seconds)
        try:
            with deadline:
                code = super().invoke(ctx)
        except KeyboardInterrupt:
            if not deadline.has_passed:
                raise
            code = ExitCode.INTERRUPTED
        if deadline.has_passed and code in (ExitCode.INTERRUPTED, ExitCode.UNAVAILABLE):
            raise TimedOut(deadline.reason, hint="continue as printed above, else run it again")
        return code


class CommandGroup(_Documented, TyperGroup):
    """A group of commands, whose help lists them."""

    def usage(self, ctx: Any) -> str:
        return f"{ctx.command_path} COMMAND [OPTIONS]"

    def rows(self, ctx: Any) -> dict[str, list[Row]]:
        return {**self.listed(ctx), **sections(self.get_params(ctx))}

    def listed(self, ctx: Any) -> dict[str, list[Row]]:
        """Return the commands with their summaries, under titles."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return {"Commands": [(name, command.get_short_help_str()) for name, command in commands if command]}


def page(usage: str, text: str, listed: dict[str, list[Row]]) -> str:
    """Return a whole help text. Paragraphs are filled, indented lines stay as they are, and exit codes come last."""
    width = max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]
    last = [paragraph for paragraph in paragraphs if paragraph.startswith(LAST_PARAGRAPHS)]
    first = [paragraph for paragraph in paragraphs if paragraph not in last]
    blocks = [f"Usage: {usage}", *(_filled(paragraph, width) for paragraph in first)]
    blocks += [_section(title, rows, width) for title, rows in listed.items() if rows]
    blocks += ["\n".join(_filled(paragraph, width) for paragraph in last)] if last else []
    return "\n\n".join(blocks) + "\n"


def sections(params: Collection[Any]) -> dict[str, list[Row]]:
    """Return rows of options by their title, which is each option's `rich_help_panel`."""
    listed: dict[str, list[Row]] = {title: [] for title in TITLES}
    known = {name_of(param) for param in params}
    for param in params:
        if not getattr(param, "hidden", False):
            title = getattr(param, "rich_help_panel", None) or ("Arguments" if _is_argument(param) else "Options")
            listed.setdefault(title, []).append(_row(param, known))
    return listed


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _is_required_option(param: Any) -> bool:
    return bool(param.required) and not _is_argument(param)


def _row(param: Any, known: Collection[str]) -> Row:
    text = " ".join(filter(None, ((param.help or "").rstrip("."), _remark(param, known))))
    if param.opts == HELP_OPTIONS:
        text = "Show this help"
    if _is_argument(param):
        return param.metavar, text
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=len))
    return f"{names} {param.metavar}" if param.metavar else names, text


def _remark(param: Any, known: Collection[str]) -> str:
    """Return `[required]`, or the `known` options that it needs, and the default where a user could write it."""
    if _is_required_option(param):
        return "[required]"
    needs = " and ".join(needs_of(param, known))
    default = param.default.value if isinstance(param.default, Enum) else param.default
    has_default = not (default in (None, "") or isinstance(default, bool) or getattr(param, "count", False))
    return " ".join([*([f"[with {needs}]"] if needs else []), *([f"[default: {default}]"] if has_default else [])])


def _filled(paragraph: str, width: int) -> str:
    if any(line.startswith(" ") for line in paragraph.splitlines()):
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)


def _section(title: str, rows: list[Row], width: int) -> str:
    names = {len(name) for name, _text in rows if len(name) <= MAX_NAME} or {MAX_NAME}
    # A long name may have a line of its own: the column that takes the fewest lines is best.
    tables = {
        longest: [line for name, text in rows for line in _lines(name, text, longest, width)]
        for longest in sorted(names, reverse=True)
    }
    best = min(tables, key=lambda longest: len(tables[longest]))
    return "\n".join([f"{title}:", *(line for row in rows for line in _together(*row, best, width))])


def _together(name: str, text: str, longest: int, width: int) -> Iterator[str]:
    """Yield the lines of a row; one line for a long name whose text fits behind it."""
    line = f"  {name}  {text}"
    return iter([line]) if len(name) > longest and len(line) <= width else _lines(name, text, longest, width)


def _lines(name: str, text: str, longest: int, width: int) -> Iterator[str]:
    described = textwrap.wrap(text, width - longest - 4, break_on_hyphens=False) or [""]
    if len(name) > longest:
        yield f"  {name}"
        name = ""
    for line in described:
        yield f"  {name:<{longest}}  {line}".rstrip()
        name = ""
