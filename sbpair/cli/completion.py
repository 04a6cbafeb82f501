"""Values that a shell completes: names of pairs, backlog queues and findings.

From the configuration and the package alone: a key press must not wait for a network or sign in. Errors complete
nothing; the command reports them when it runs.
"""

import os
from collections.abc import Iterable

import typer

# Typer recognises the context by its annotation, and keeps the names that begin with the typed word.


def pairs(context: typer.Context) -> list[str]:
    """Return the pairs of the configuration file."""
    from sbpair import config

    return config.pair_names(config.Flags(config=context.params.get("config")), os.environ)


def backlog_queues(context: typer.Context) -> list[str]:
    """Return the paths of the pair's expected backlog queues."""
    from sbpair import config
    from sbpair.backlog import queue_path
    from sbpair.errors import SbpairError

    given = {name: context.params.get(name) for name in ("pair", "config", "primary", "secondary")}
    try:
        pair = config.load(config.Flags(**given, backlog_queues=context.params.get("count")), os.environ).pair
        return [queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)]
    except SbpairError:
        return []


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
