"""Values that a shell completes: names of pairs, backlog queues and findings.

From the configuration and the package alone: a key press must not wait for a network or sign in. Errors complete
nothing; the command reports them when it runs.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

# Typer recognises the context by its annotation, and keeps the names that begin with the typed word.


def pairs(context: typer.Context) -> list[str]:
    """Return the pairs of the configuration file."""
    from sbpair.config.file import pair_names
    from sbpair.config.setting import Flags

    return pair_names(Flags(config=context.params.get("config")), os.environ)


def backlog_queues(context: typer.Context) -> list[str]:
    """Return the paths of the pair's expected backlog queues."""
    from sbpair import config
    from sbpair.backlog import queue_path
    from sbpair.config.setting import Flags
    from sbpair.errors import SbpairError

    try:
        pair = config.load(Flags(**_given(context), backlog_queues=context.params.get("count")), os.environ).pair
        return [queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)]
    except SbpairError:
        return []


def runs(context: typer.Context) -> list[str]:
    """Return the runs of the pair that this machine has recorded."""
    from sbpair import config
    from sbpair.config.setting import Flags
    from sbpair.errors import SbpairError
    from sbpair.runs.database import state_if_any
    from sbpair.runs.run_log import all_runs

    try:
        found = config.load(Flags(**_given(context), state=context.params.get("state")), os.environ)
        state = state_if_any(Path(found.state_directory), found.pair)
        if state is None:
            return []
        with state:
            return [run.id for run in all_runs(state)]
    except SbpairError:
        return []


def replay_runs(context: typer.Context) -> list[str]:
    """Return the runs in the directory of --archive; a URL would need a network."""
    archive = Path(context.params.get("archive") or "/nowhere")
    return sorted((file.parent.name for file in archive.glob("*/run.json")), reverse=True)


def _given(context: typer.Context) -> dict[str, Any]:
    return {name: context.params.get(name) for name in ("pair", "config", "primary", "secondary")}


def findings(incomplete: str) -> list[str]:
    """Return the kinds of findings that may follow the typed ones."""
    from sbpair.management.audit_findings import AuditFinding

    return _after(incomplete, AuditFinding)


def status_findings(incomplete: str) -> list[str]:
    """Return those of them that status knows."""
    from sbpair.status import FINDINGS

    return _after(incomplete, FINDINGS)


def _after(incomplete: str, known: Iterable[str]) -> list[str]:
    before = incomplete[: incomplete.rfind(",") + 1]
    kinds = [kind for kind in known if kind not in before.split(",")]
    return [before + kind for kind in (*kinds, *([] if before else ["all", "none"]))]
