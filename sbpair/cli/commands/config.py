"""`sbpair config`: the merged configuration and where each value came from, into output."""

import os
from pathlib import Path
from typing import Annotated

import typer

from sbpair import config
from sbpair.cli.options.common import Count, Display, PairSelection, StateDirectory, options
from sbpair.cli.options.pairs import flags_of
from sbpair.cli.render.screen import Screen, columns
from sbpair.config.effective import effective
from sbpair.errors import UsageError

SCHEMA = "sbpair/config/1"
EXAMPLE = """\
# Pairs of namespaces for sbpair: choose one with --pair NAME or SBPAIR_PAIR, unless there is only one.
# No secrets belong here: connection_string_env is the NAME of an environment variable.

[pairs.orders]
backlog_queues = 10

[pairs.orders.primary]
namespace = "contoso.servicebus.windows.net"      # signs in as az login did, or as a managed identity

[pairs.orders.secondary]
connection_string_env = "CONTOSO_DR"              # export CONTOSO_DR='Endpoint=sb://contoso-dr…'
"""


@options
def command(
    *,
    path: Annotated[
        bool, typer.Option("--path", help="Print the path of the configuration file, which need not be there yet")
    ] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a configuration file to fill in")] = False,
    count: Count = None,
    state: StateDirectory = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Show the configuration that is in force, and where each value came from.

    Flags win over the environment, the environment wins over the file. Nothing is connected to, and of a secret nothing
    is shown. To begin: sbpair config --example > "$(sbpair config --path)"

    JSON; the origin is "flag", "environment", "file", "default" or "derived", which is from the setting that the source
    names; intervals are in seconds. Under --path and --example "path", "exists" and "example" are there instead:

      {"schema": "sbpair/config/1", "settings": [{"key": "", "value": "", "source": "", "origin": ""}]}

    Exit codes: 0 shown; 2 it is wrong, or there is none.
    """
    screen = Screen(display)
    flags = flags_of(connection, count=count, state=state)
    file = Path(str(config.file_setting(flags, os.environ).value))
    if path or example:
        shown = {"path": str(file), "exists": file.exists()} if path else {"example": EXAMPLE}
        document = {"schema": SCHEMA, **shown}
        screen.result(document, [document], [str(file)] if path else [EXAMPLE.rstrip()])
        return 0
    _refuse_nothing(flags, file)
    found = effective(config.load(flags, os.environ))
    entries = [
        {"key": key, "value": setting.value, "source": setting.source, "origin": str(setting.origin)}
        for key, setting in found.items()
    ]
    rows = [(key, _shown(setting.value), _from(setting)) for key, setting in found.items()]
    lines = [{"schema": SCHEMA, **entry} for entry in entries]
    screen.result({"schema": SCHEMA, "settings": entries}, lines, columns([("SETTING", "VALUE", "FROM"), *rows]))
    return 0


def _refuse_nothing(flags: config.Flags, file: Path) -> None:
    said = [each for each in (flags.pair, flags.config, flags.primary, flags.secondary) if each]
    if not said and not file.exists() and not any(os.environ.get(each) for each in config.VARIABLES):
        raise UsageError(
            f"nothing is configured: there is no {file}, and no SBPAIR_ variable",
            hint="sbpair config --example shows a file to begin with; or export SBPAIR_PRIMARY_CONNECTION_STRING and"
            " SBPAIR_SECONDARY_CONNECTION_STRING",
        )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g} s" if isinstance(value, float) else str(value)


def _from(setting: config.Setting) -> str:
    if setting.origin is config.Origin.DERIVED:
        return f"follows from {setting.source}"
    return setting.source or "default"
