"""Packages for Python that only tests need, installed once for each list of them and kept outside of this tree."""

import hashlib
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.integration.node.install import NotHere, kept

PROTON = "python-qpid-proton==0.40.0"
"""No index has it in binary form: it is built from its source, with a C compiler."""

INSTALL_SECONDS = 300


def folder(*wanted: str) -> Path:
    """Return where the packages are, installed by the first process that asks. Raises NotHere."""
    listed = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    return kept(f"python-{listed}-{sys.implementation.cache_tag}", partial(_install, wanted))


def _install(wanted: tuple[str, ...], target: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=0", "--target", str(target), *wanted]
    try:
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = "it takes too long"
        if isinstance(error, subprocess.CalledProcessError):
            reason = error.stderr.decode(errors="replace").strip().splitlines()[-1]
        raise NotHere(f"{' '.join(wanted)} cannot be installed here: {reason}") from error
