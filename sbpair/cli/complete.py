"""What a shell is told while somebody types: names of pairs, and of backlog queues.

From the configuration alone: nothing is connected to, for a key that is pressed must not wait for a network, nor sign
in to anything. Whatever is wrong there completes nothing, and is told when the command is run.
"""

import os
from typing import Any

import typer

# Typer goes by the annotations: it is the context that it gives, and the word that was begun.


def pairs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the configuration file."""
    from sbpair import config

    return _beginning(incomplete, config.pair_names(config.Flags(config=context.params.get("config")), os.environ))


def backlog_queues(context: typer.Context, incomplete: str) -> list[str]:
    """Paths of the pair's backlog queues, as many as it should have."""
    from sbpair import config
    from sbpair.backlog import queue_path
    from sbpair.errors import SbpairError

    try:
        pair = config.load(_flags(context.params), os.environ).pair
        paths = [queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)]
    except SbpairError:
        return []
    return _beginning(incomplete, paths)


def _flags(params: dict[str, Any]) -> Any:
    from sbpair import config

    said = {name: params.get(name) for name in ("pair", "config", "primary", "secondary")}
    return config.Flags(**said, backlog_queues=params.get("count"))


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    """Paths know no case."""
    return [name for name in names if name.lower().startswith(incomplete.lower())]
