"""From options to a pair: the command line's side of the configuration."""

import os
from pathlib import Path

from sbpair import config
from sbpair.cli.options import Connection
from sbpair.cli.output import Screen
from sbpair.model import Pair


def chosen(connection: Connection, screen: Screen, *, count: int | None = None) -> Pair:
    """The pair that the options, the environment and the file mean together."""
    return profile(connection, screen, count=count).pair


def profile(
    connection: Connection, screen: Screen, *, count: int | None = None, state: Path | None = None
) -> config.Profile:
    """The same, and where its state is kept; -v tells where each value came from."""
    flags = config.Flags(
        pair=connection.pair,
        config=connection.config,
        state=state,
        primary=connection.primary,
        secondary=connection.secondary,
        backlog_queues=count,
    )
    found = config.load(flags, os.environ)
    for key, source in found.sources.items():
        screen.detail(f"{key} from {source}")
    return found
