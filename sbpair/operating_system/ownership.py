"""The owners of state that a process relies on: its own user, and no other one may change it.

A file of root counts as its own where its group is one of this process: so orchestrators prepare volumes. On Windows
and on mounts without modes, nothing is checked.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from sbpair.errors import StateRefused
from sbpair.operating_system.files import MOUNTS, is_link_of_another_user, mount_at

WITHOUT_MODES: Final = frozenset(
    {"cifs", "smb3", "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "drvfs", "vboxsf", "fuse.vmhgfs-fuse"}
)
"""Filesystems of Linux that give each file the mode and the owner of the mount."""

_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""The suffixes of a SQLite file, and of the ones that SQLite reads beside it."""


def is_foreign_to_root(path: Path) -> bool:
    """Return whether this process is root, and an existing path belongs to another user."""
    return sys.platform != "win32" and os.geteuid() == 0 and path.stat().st_uid != 0


def check_owner(path: Path, *, writes: bool = True) -> None:
    """Raise StateRefused for a file or directory that is another user's, or that all users may write to.

    One that does not exist is left alone. Root may read the state of any user. Raises OSError.
    """
    if is_link_of_another_user(path):
        raise StateRefused(f"{path} is a symbolic link of another user", hint="remove it, or name another")
    try:
        check_found(path, path.stat(), writes=writes)
    except (FileNotFoundError, NotADirectoryError):
        return


def check_sqlite_file(path: Path, *, writes: bool = True) -> None:
    """Do the same for a file and those beside it, where they exist, and for a directory where all users may make them.

    Raises StateRefused, OSError.
    """
    check_not_shared(path.parent, path.parent.stat())
    for suffix in BESIDE:
        check_owner(Path(f"{path}{suffix}"), writes=writes)


def check_new(directory: Path) -> None:
    """Raise StateRefused where root would create a directory below one of another user, who could not use it."""
    above = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if is_foreign_to_root(above) and not has_no_modes(above):
        owner = user_name(above.stat().st_uid)
        raise StateRefused(f"{above} belongs to {owner}, and root does not write there", hint=_as_user(above, owner))


def obstacle(path: Path) -> str:
    """Return how to get a path that another user keeps from this one, as root may have made it; "" without any."""
    if sys.platform == "win32":
        return ""
    for each in (path, *path.absolute().parents):
        with suppress(OSError):
            owner, user = each.stat().st_uid, os.geteuid()
            foreign = user not in (0, owner)
            return f"{each} belongs to {user_name(owner)}: chown -R {user_name(user)} {each}" if foreign else ""
    return ""


def check_lock_file(path: Path, descriptor: int) -> None:
    """Do the same for an open file, whose content is about to be replaced. Raises StateRefused, OSError."""
    found = os.fstat(descriptor)
    check_found(path, found)
    if found.st_nlink > 1 and sys.platform != "win32":
        raise StateRefused(f"{path} is another name of a file elsewhere", hint="remove that name: another user made it")


def check_found(path: Path, found: os.stat_result, *, writes: bool = True) -> None:
    """Raise StateRefused for a file or directory, described by `found`, that others could have written."""
    check_not_shared(path, found)
    if sys.platform == "win32":
        return
    user = os.geteuid()
    is_trusted_volume = found.st_uid == 0 and found.st_gid in {os.getegid(), *os.getgroups()}
    if found.st_uid == user or is_trusted_volume or (user == 0 and not writes) or has_no_modes(path):
        return
    owner = user_name(found.st_uid)
    if user == 0:
        raise StateRefused(f"{path} belongs to {owner}, and root does not write there", hint=_as_user(path, owner))
    if found.st_uid == 0:
        hint = f"name a directory of your own; of a volume, root changes the owner: chown {user_name(user)} {path}"
        raise StateRefused(f"{path} belongs to root, and to no group of this user", hint=hint)
    hint = f"name another directory, or let root change the owner: chown -R {user_name(user)} {path}"
    raise StateRefused(f"{path} belongs to {owner}, not to {user_name(user)}", hint=hint)


def check_secret(path: Path, descriptor: int) -> None:
    """Raise StateRefused for an open file of a secret that another user owns, or can read or change.

    One that root made for a group is trusted: so orchestrators hand secrets over.
    """
    found = os.fstat(descriptor)
    if is_link_of_another_user(path):
        raise StateRefused(f"{path} is a symbolic link of another user", hint="remove it, or name another")
    if sys.platform == "win32" or has_no_modes(path):
        return
    user = os.geteuid()
    if found.st_uid not in (0, user):
        owner, own = user_name(found.st_uid), user_name(user)
        raise StateRefused(f"{path} belongs to {owner}, not to {own}", hint="name a file of your own")
    if found.st_mode & (_OF_OTHERS if found.st_uid == user else _OF_OTHERS & ~stat.S_IRGRP):
        raise StateRefused(f"other users can use the key in {path}", hint=f"chmod 600 {path}, and replace the key")


def check_not_shared(path: Path, found: os.stat_result) -> None:
    """Raise StateRefused for a file or directory, described by `found`, that all users may write to."""
    if sys.platform == "win32" or not found.st_mode & stat.S_IWOTH or has_no_modes(path):
        return
    hint = f"chmod o-w {path} if what it holds is right, or name another directory"
    if found.st_mode & stat.S_ISVTX:  # such as /tmp
        hint = f"name a directory of your own, such as {path}/{user_name(os.geteuid())} with mode 700"
    raise StateRefused(f"all users of this machine may write to {path}", hint=hint)


def shared_above(path: Path) -> Path | None:
    """Return a directory above a path in which all users may rename the files of others; None without one."""
    if sys.platform == "win32":
        return None
    modes = ((each, each.stat().st_mode) for each in path.resolve().parents)
    return next((each for each, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), None)


def has_no_modes(path: Path) -> bool:
    """Return whether a path is on a mount without modes, as far as Linux shows."""
    try:
        kind, options = mount_at(path.resolve(), MOUNTS.read_text(errors="replace"))
    except OSError:  # not Linux
        return False
    return kind in WITHOUT_MODES or (kind == "9p" and "aname=drvfs" in options)  # WSL's second form of drvfs


def user_name(user: int) -> str:
    """Return the name of a user, or its number."""
    if sys.platform != "win32":
        import pwd

        try:
            return pwd.getpwuid(user).pw_name
        except KeyError:
            pass
    return str(user)


def _as_user(path: Path, owner: str) -> str:
    if "/var/lib/private/" in f"{path.resolve()}/":  # which only the processes of that unit can enter
        return "run it as a unit of the same user: see sbpair help service"
    name = f"'#{owner}'" if owner.isdigit() else owner
    return f"run it as that user: sudo -u {name} sbpair …"
