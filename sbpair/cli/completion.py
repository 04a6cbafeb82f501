"""Values that a shell completes, such as names of pairs, and their form for each shell.

The values come from the configuration and the package alone: a key press must not wait for a network or sign in.
Errors complete nothing; the command reports them when it runs.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import _completion_classes as typers

if TYPE_CHECKING:
    from sbpair.runs.run_record import RunRecord

# Typer recognises the context by its annotation, and keeps the names that begin with the typed word.


def pairs(context: typer.Context) -> list[str]:
    """Return the pairs of the configuration file."""
    from sbpair.config.file import pair_names
    from sbpair.config.setting import Flags

    return pair_names(Flags(config=context.params.get("config")), os.environ)


def relays(context: typer.Context) -> list[str]:
    """Return the relays of the configuration file and the environment."""
    from sbpair.config.setting import Flags
    from sbpair.relay.relay_settings import relay_names

    return relay_names(Flags(config=context.params.get("config")), os.environ)


def backlog_queues(context: typer.Context) -> list[str]:
    """Return the paths of the pair's expected backlog queues."""
    from sbpair import config
    from sbpair.backlog import queue_path
    from sbpair.config.setting import Flags

    pair = config.load(Flags(**_given(context), backlog_queues=context.params.get("count")), os.environ).pair
    return [queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)]


def _runs(*outcomes: str) -> Callable[[typer.Context], list[str]]:
    """Return a completion of recorded runs of the pair, or of --namespace, that have one of these outcomes."""

    def complete(context: typer.Context) -> list[str]:
        return [run.id for run in _recorded_runs(context) if not outcomes or run.outcome in outcomes]

    return complete


runs, live_runs, unpaused_runs, paused_runs = _runs(), _runs("running", "paused"), _runs("running"), _runs("paused")


def _recorded_runs(context: typer.Context) -> "list[RunRecord]":
    from sbpair import config
    from sbpair.config.file import load_namespace
    from sbpair.config.setting import Flags
    from sbpair.runs.database import state_if_any
    from sbpair.runs.run_log import all_runs

    flags = Flags(**_given(context), state=context.params.get("state"))
    name = context.params.get("namespace")
    if name is None:
        found = config.load(flags, os.environ)
        opened = state_if_any(found.state_directory, found.pair.ends)
    else:
        directory = Path(str(config.state_setting(name, flags, os.environ).value))
        opened = state_if_any(directory, load_namespace(name, flags, os.environ).ends)
    with opened or nullcontext() as state:
        return all_runs(state) if state else []


def replay_runs(context: typer.Context) -> list[str]:
    """Return the runs in the directory of --archive; a URL would need a network."""
    archive = Path(context.params.get("archive") or "/nowhere")
    names = (file.parent.name for file in archive.glob("*/run.json"))
    # Others may have named the directories: bash inserts a name as it is, and would execute a part of it.
    return sorted(filter(re.compile(r"[\w.-]+").fullmatch, names), reverse=True)


def _given(context: typer.Context) -> dict[str, Any]:
    return {name: context.params.get(name) for name in ("pair", "config", "primary", "secondary")}


def findings(incomplete: str) -> list[str]:
    """Return the kinds of findings that may follow the typed ones."""
    from sbpair.model.report import AuditFinding

    return _after(incomplete, AuditFinding)


def status_findings(incomplete: str) -> list[str]:
    """Return those of them that status knows."""
    from sbpair.status import FINDINGS

    return _after(incomplete, FINDINGS)


def _after(incomplete: str, known: Iterable[str]) -> list[str]:
    before = incomplete[: incomplete.rfind(",") + 1]
    kinds = [kind for kind in known if kind not in before.split(",")]
    return [before + kind for kind in (*kinds, *([] if before else ["all", "none"]))]


class _WholeWords:
    """Shells that replace the whole word: the values of `--option=v` have the option, too."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        items: list[Any] = super().get_completions(args, incomplete)  # type: ignore[misc]
        option, equals, _ = incomplete.partition("=")
        for item in items if equals and option.startswith("--") else ():
            item.value = f"{option}={item.value}"
        return items


class _Bash(typers.BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words, without the `=` that bash makes a word of its own in `--option=value`."""
        args, incomplete = super().get_completion_args()
        joins = ["=" if before.startswith("--") else None for before in ["", *args]]
        return [word for word, join in zip(args, joins, strict=False) if word != join], incomplete


class _Zsh(_WholeWords, typers.ZshComplete):
    def format_completion(self, item: Any) -> str:
        def quoted(text: str) -> str:
            # Zsh evaluates it within single quotes, and then reads it within double quotes.
            for old, new in (('"', '""'), ("'", "'\\''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
                text = text.replace(old, new)
            return f'"{text}"'

        return ":".join(map(quoted, filter(None, (item.value, item.help))))


class _Fish(_WholeWords, typers.FishComplete):
    def format_completion(self, item: Any) -> str:
        return f"{item.value}\t{' '.join(item.help.split())}" if item.help else str(item.value)


class _PowerShell(_WholeWords, typers.PowerShellComplete):
    def format_completion(self, item: Any) -> str:
        return f"{item.value}:::{item.help or ' '}"


def register_shells() -> None:
    """Let typer complete by these classes, with whole descriptions."""
    classes = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish, "powershell": _PowerShell, "pwsh": _PowerShell}
    for name, kind in classes.items():
        typers.add_completion_class(kind, name)  # type: ignore[attr-defined]
