"""From options to a pair: the command line's side of the configuration."""

import os
from pathlib import Path

from sbpair import config
from sbpair.cli.options.common import PairSelection
from sbpair.cli.render.screen import Screen
from sbpair.model.pair import Pair


def chosen(connection: PairSelection, screen: Screen, *, count: int | None = None) -> Pair:
    """The pair that the options, the environment and the file mean together."""
    return profile(connection, screen, count=count).pair


def profile(
    connection: PairSelection, screen: Screen, *, count: int | None = None, state: Path | None = None
) -> config.Profile:
    """The same, and where its state is kept; -v tells where each value came from."""
    found = config.load(flags_of(connection, count=count, state=state), os.environ)
    for key, setting in sorted(found.settings.items()):
        screen.detail(f"{key} from {setting.source or 'default'}")
    return found


def flags_of(connection: PairSelection, *, count: int | None = None, state: Path | None = None) -> config.Flags:
    """What the command line said of the pair, as the configuration takes it."""
    return config.Flags(
        pair=connection.pair,
        config=connection.config,
        state=state,
        primary=connection.primary,
        secondary=connection.secondary,
        backlog_queues=count,
    )
