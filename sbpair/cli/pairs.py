"""From options to a pair: the command line's side of the configuration."""

import os

from sbpair import config
from sbpair.cli.options import Connection
from sbpair.cli.output import Screen
from sbpair.model import Pair


def chosen(connection: Connection, screen: Screen, *, count: int | None = None) -> Pair:
    """The pair that the options, the environment and the file mean together; -v tells where each value came from."""
    flags = config.Flags(
        pair=connection.pair,
        config=connection.config,
        primary=connection.primary,
        secondary=connection.secondary,
        backlog_queues=count,
    )
    profile = config.load(flags, os.environ)
    for key, source in profile.sources.items():
        screen.detail(f"{key} from {source}")
    return profile.pair
