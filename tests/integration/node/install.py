"""The packages of package.json, installed once for each version of it, outside of this tree."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

WANTED = Path(__file__).with_name("package.json")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbpair-tests"
INSTALL_SECONDS = 120


class NotHere(Exception):
    """This machine cannot run it, and the text says why."""


def node() -> str:
    found = shutil.which("node")
    if found is None:
        raise NotHere("there is no Node.js here")
    return found


def modules(packages: Path = WANTED) -> Path:
    """Return where the packages are, installed by the first process that asks. Raises NotHere."""
    wanted = packages.read_bytes()
    return kept(f"node-{hashlib.sha256(wanted).hexdigest()[:12]}", partial(_install, wanted))


def kept(name: str, install: Callable[[Path], None]) -> Path:
    """Return a folder of that name, which the first process that asks has filled."""
    place = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        # Two installations into one folder leave packages without some of their files.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with TemporaryDirectory(dir=CACHE) as scratch:
                folder = Path(scratch) / "packages"
                folder.mkdir()
                install(folder)
                folder.rename(place)
    return place


def _install(wanted: bytes, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotHere("there is no npm here to install the packages for Node.js with")
    (folder / "package.json").write_bytes(wanted)
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
    try:
        subprocess.run(install, cwd=folder, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        why = "the packages for Node.js are not in the cache, and the npm registry cannot be reached"
        raise NotHere(why) from error
