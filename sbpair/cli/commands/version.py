"""`sbpair version`: prints the versions that a bug report needs."""

import platform

from sbpair import __version__
from sbpair.cli.app import PROGRAM
from sbpair.cli.render.screen import Screen


def command(*, screen: Screen) -> int:
    """Print the versions of sbpair, Python and the operating system.

    Examples:
      sbpair version
      sbpair version -o json
    """
    found = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    lines = [f"{PROGRAM} {__version__}", f"Python {found['python']}", found["platform"]]
    screen.result("sbpair/version/1", found, lines)
    return 0
