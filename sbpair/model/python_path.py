"""Modules of child processes: from the working directory only if this process imports from there, too.

`python -m` puts the working directory first, in which others may have placed a module of any name.
"""

from __future__ import annotations

import sys
from pathlib import Path


def is_working_directory_trusted() -> bool:
    """Return whether this process imports modules from its working directory."""
    try:
        return bool({"", str(Path.cwd())} & set(sys.path))
    except FileNotFoundError:  # it was removed
        return False
