"""A disk of its own for a test: filled to the last byte, or mounted read-only, for the superuser too."""

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def own_disk(tmp_path: Path) -> Iterator[Path]:
    with ExitStack() as mounts:
        try:
            disk = mounts.enter_context(mounted(tmp_path / "disk", 2))
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("nothing can be mounted here")
        yield disk


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of a size at a new folder. Raises OSError or CalledProcessError where that is not possible."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "sbpair-test", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Fill the disk of a directory to the last byte."""
    filler = directory / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"\0" * 4_096)
            file.flush()
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    disk = next(each for each in (directory, *directory.parents) if each.is_mount())
    _mount("-o", "remount,ro", str(disk))
    try:
        yield
    finally:
        _mount("-o", "remount,rw", str(disk))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
