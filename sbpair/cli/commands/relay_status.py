"""`sbpair relay status`: the listeners of both sides, with --watch again and again."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.completion import relays
from sbpair.cli.logs import utc
from sbpair.cli.options.common import CONFIG, argument, flag, option
from sbpair.cli.options.values import seconds_of, selected_relay
from sbpair.cli.progress.reporting import watch_interval, watch_readings
from sbpair.cli.render.screen import Screen, rounded
from sbpair.cli.render.table import columns
from sbpair.errors import AccessError, ExitCode, Unavailable

if TYPE_CHECKING:
    from sbpair.relay.listener_counts import SideListeners

SCHEMA = "sbpair/relay-status/1"


def status(
    *,
    name: str | None = argument("[NAME]", "Relay in the configuration file", default=None, complete=relays),
    timeout: str = option("--timeout DURATION", "Time limit of each answer", default="10s"),
    fail_on: Literal["any", "both", "none"] | None = option(
        "--fail-on SIDES", "Exit 6 if any side, both or none have no listeners [default: any]"
    ),
    watch: bool = flag("--watch", "Read it again and again, until Ctrl-C"),
    interval: str | None = option("--interval DURATION", "With --watch: time between two readings [default: 5s]"),
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Show how many listeners each side of a relay has.

    Needs Manage on both hybrid connections. --watch refreshes a terminal in place; elsewhere it prints one line for
    each reading, of JSON with -o json or jsonl.

    Examples:
      sbpair relay status service
      sbpair relay status service --watch --interval 30s

    Exit codes: 6 a side has no listeners or cannot be reached; 5 access denied; 2 a hybrid connection does not exist.
    --watch exits 0 after Ctrl-C
    """
    seconds = seconds_of("--timeout", timeout, minimum=1, limit=600)
    every = watch_interval(interval, fail_on, watch=watch)
    relay = selected_relay(name, config, screen)
    from sbpair.relay.listener_counts import read_listeners

    async def read() -> "list[SideListeners]":
        return await read_listeners(relay, seconds)

    if watch:
        return watch_readings(
            screen,
            SCHEMA,
            every,
            read,
            table=_table,
            show_line=lambda found: screen.write(_line(found)),
            document=lambda found: _document(relay.name, found),
        )
    found = run(read())
    screen.result(SCHEMA, _document(relay.name, found), _table(found))
    screen.hints(each.error for each in found if each.error)
    return exit_code(found, fail_on or "any")


def exit_code(found: "list[SideListeners]", fail_on: str) -> int:
    """Return the exit code: errors other than an absent namespace come first."""
    for each in found:
        if each.error is not None and not isinstance(each.error, (AccessError, Unavailable)):
            return each.error.exit_code
    if any(isinstance(each.error, AccessError) for each in found):
        return ExitCode.ACCESS
    without = sum(not each.serves for each in found)
    limits = {"any": 1, "both": len(found), "none": len(found) + 1}
    return ExitCode.UNAVAILABLE if without >= limits[fail_on] else ExitCode.DONE


def _document(name: str, found: "list[SideListeners]") -> dict[str, object]:
    sides = [
        {
            "side": each.side,
            "namespace": each.namespace,
            "path": each.path,
            "listeners": each.listeners,
            "requires_authorization": each.requires_authorization,
            "seconds": rounded(each.seconds),
            "reason": each.error.message if each.error else "",
            "hint": each.error.hint if each.error else "",
        }
        for each in found
    ]
    return {"time": utc(None), "relay": name, "sides": sides}


def _table(found: "list[SideListeners]") -> list[str]:
    rows = [
        (
            each.side,
            f"{each.path} in {each.namespace}",
            "?" if each.listeners is None else each.listeners,
            each.error.message if each.error else "" if each.listeners else "no listeners",
        )
        for each in found
    ]
    return columns([("SIDE", "ENDPOINT", "LISTENERS", "WHY"), *rows])


def _line(found: "list[SideListeners]") -> str:
    sides = ", ".join(f"{each.side} {'?' if each.listeners is None else each.listeners}" for each in found)
    return f"{utc(None)} listeners: {sides}"
