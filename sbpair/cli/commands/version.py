"""`sbpair version`: prints the versions that a bug report needs."""

import platform

from sbpair import __version__
from sbpair.cli.app import PROGRAM
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.model.installation import built_from, is_compiled, requirements


def command(*, screen: Screen) -> int:
    """Print the versions of sbpair, Python and required packages.

    The commit is that of the build, or of the checkout; -dirty after it means changed files. A package that is not
    installed has no version; those of extras, and of other systems, are shown only if they are installed.

    Examples:
      sbpair version
      sbpair version -o json
    """
    commit, compiled = built_from(), is_compiled()
    needed = {each.name: each.installed for each in requirements() if each.everywhere or each.installed}
    document = {
        "version": __version__,
        "commit": commit and commit.id,
        "commit_date": commit and commit.date,
        "compiled": compiled,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "dependencies": dict(sorted(needed.items())),
    }
    rows = [("PACKAGE", "VERSION"), *((name, version or "-") for name, version in sorted(needed.items()))]
    source = f"commit {commit.id} of {commit.date}" if commit else "unknown commit"
    lines = [f"{PROGRAM} {__version__}", source + (", compiled" if compiled else ""), f"Python {document['python']}"]
    screen.result("sbpair/version/1", document, [*lines, platform.platform(), *columns(rows)][: None if needed else 4])
    return 0
