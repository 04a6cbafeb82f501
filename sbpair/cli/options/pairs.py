"""The pair that options, environment and configuration file select together."""

import os
from pathlib import Path

from sbpair import config
from sbpair.cli.options.common import PairSelection
from sbpair.cli.render.screen import Screen
from sbpair.model.pair import Pair


def selected_pair(connection: PairSelection, screen: Screen, *, count: int | None = None) -> Pair:
    """Return the selected pair. Raises UsageError if the configuration is wrong."""
    return selected_profile(connection, screen, count=count).pair


def selected_profile(
    connection: PairSelection, screen: Screen, *, count: int | None = None, state: Path | None = None
) -> config.Profile:
    """Return the selected pair with its state directory; with -v, print the source of each value."""
    found = config.load(flags_of(connection, count=count, state=state), os.environ)
    for key, setting in sorted(found.settings.items()):
        screen.detail(f"{key} from {setting.source or 'default'}")
    return found


def flags_of(connection: PairSelection, *, count: int | None = None, state: Path | None = None) -> config.Flags:
    """Return the options of the command line as the configuration takes them."""
    return config.Flags(
        pair=connection.pair,
        config=connection.config,
        state=state,
        primary=connection.primary,
        secondary=connection.secondary,
        backlog_queues=count,
    )
