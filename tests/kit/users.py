"""Other users of this machine: only root can act as them, so tests by another user run what needs one user only."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.cli.schemas import all_schemas

IS_ROOT = os.geteuid() == 0
USER, OTHER, GROUP = (65_501, 65_502, 65_511) if IS_ROOT else (os.getuid(), -1, os.getgid())
"""The user of a test, another one, and a group that only `as_user` with that group has. They have no names."""

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can act as another user")


@contextmanager
def as_user(user: int, groups: tuple[int, ...] = ()) -> Iterator[None]:
    """Act as a user in these further groups: the kernel checks permissions for it, and files become its own."""
    if not IS_ROOT:
        assert user == os.geteuid()
        yield
        return
    all_schemas()  # the user may be unable to load modules, such as those of a Python in /root
    former = os.getgroups()
    os.setgroups(groups)
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(former)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user can enter, as pytest's are not."""
    path = Path(tempfile.mkdtemp(prefix="sbpair-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def make_directory(path: Path, owner: int, group: int, mode: int) -> Path:
    path.mkdir()
    if IS_ROOT:
        os.chown(path, owner, group)
    path.chmod(mode)
    return path
