"""What a shell is told while somebody types: names of pairs, of backlog queues, and of findings.

From the configuration alone: nothing is connected to, for a key that is pressed must not wait for a network, nor sign
in to anything. Whatever is wrong there completes nothing, and is told when the command is run.
"""

import os

import typer

# Typer goes by the annotation, and takes those of the names that begin as the word does.


def pairs(context: typer.Context) -> list[str]:
    """Names of the configuration file."""
    from sbpair import config

    return config.pair_names(config.Flags(config=context.params.get("config")), os.environ)


def backlog_queues(context: typer.Context) -> list[str]:
    """Paths of the pair's backlog queues, as many as it should have."""
    from sbpair import config
    from sbpair.backlog import queue_path
    from sbpair.errors import SbpairError

    said = {name: context.params.get(name) for name in ("pair", "config", "primary", "secondary")}
    try:
        pair = config.load(config.Flags(**said, backlog_queues=context.params.get("count")), os.environ).pair
        return [queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)]
    except SbpairError:
        return []


def findings(incomplete: str) -> list[str]:
    """Kinds of findings, behind those that are there already and a comma."""
    from sbpair.management.audit_findings import AuditFinding

    before = incomplete[: incomplete.rfind(",") + 1]
    kinds = [kind for kind in AuditFinding if kind not in before.split(",")]
    return [before + kind for kind in (*kinds, *([] if before else ["all", "none"]))]
