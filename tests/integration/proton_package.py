"""Qpid Proton for Python, built from its source once and kept outside of this tree: no index has it in binary form."""

import fcntl
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.integration.node.install import CACHE, NotHere

WANTED = "python-qpid-proton==0.40.0"
INSTALL_SECONDS = 300


def folder() -> Path:
    """Return where the package is, installed by the first process that asks. Raises NotHere."""
    place = CACHE / f"{WANTED.replace('==', '-')}-{sys.implementation.cache_tag}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "proton-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with TemporaryDirectory(dir=CACHE) as scratch:
                _install(Path(scratch) / "packages")
                (Path(scratch) / "packages").rename(place)
    return place


def _install(target: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=0", "--target", str(target), WANTED]
    try:
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotHere(f"{WANTED} can be neither downloaded nor built here") from error
