"""The packages of package.json, installed once for each version of it, outside of this tree."""

import fcntl
import hashlib
import os
import shutil
import subprocess
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
    place = CACHE / f"node-{hashlib.sha256(wanted).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Two installations into one folder leave packages without some of their files.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with TemporaryDirectory(dir=CACHE) as scratch:
                _install(Path(scratch), wanted)
                (Path(scratch) / "packages").rename(place)
    return place


def _install(scratch: Path, wanted: bytes) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotHere("there is no npm here to install the packages for Node.js with")
    folder = scratch / "packages"
    folder.mkdir()
    (folder / "package.json").write_bytes(wanted)
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
    try:
        subprocess.run(install, cwd=folder, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        why = "the packages for Node.js are not in the cache, and the npm registry cannot be reached"
        raise NotHere(why) from error
