"""The user's directories, files that only this user can read, and small documents that a user wrote.

On Windows a mode has no effect: a file inherits the access control list of its directory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Literal

from sbpair.errors import MachineLacks, UsageError
from sbpair.operating_system.shortages import no_room

NAME = "sbpair"

_XDG = {"config": ("XDG_CONFIG_HOME", ".config"), "state": ("XDG_STATE_HOME", ".local/state")}
PRIVATE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
MAX_SPOOLED: Final = 16 * 1024 * 1024
MOUNTS: Final = Path("/proc/self/mounts")
_BINARY: int = getattr(os, "O_BINARY", 0)
"""Without it, Windows changes line ends and stops at Ctrl-Z."""


def user_directory(kind: Literal["config", "state"], environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return a directory of this package, and the XDG variable that it follows, else "".

    Raises RuntimeError for a user without a home.
    """
    variable, fallback = _XDG[kind]
    given = Path(environ.get(variable, ""))
    # By the XDG specification, relative paths are ignored.
    if given.is_absolute():
        return given / NAME, variable
    if sys.platform == "win32" or sys.platform == "darwin":
        from platformdirs import user_config_path, user_state_path

        return (user_config_path if kind == "config" else user_state_path)(NAME, appauthor=False), ""
    return Path(environ.get("HOME") or Path.home()) / fallback / NAME, ""


_COMPLETIONS = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/sbpair"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/sbpair.fish"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_sbpair"),
}


def completion_file(shell: str, environ: Mapping[str, str]) -> Path | None:
    """Return where a user's own completions of this package are for a shell; None if it has no place for them."""
    variable, fallback, name = _COMPLETIONS.get(shell, ("", "", ""))
    folder = Path(environ.get(variable) or Path(environ.get("HOME") or Path.home()) / fallback)
    return folder / name if name else None


def open_new(path: Path, mode: int = PRIVATE) -> int:
    """Create a file with this mode, whatever the umask. Returns its descriptor. Raises FileExistsError, OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    if sys.platform != "win32" and stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        with suppress(OSError):  # of a mount without modes
            os.fchmod(descriptor, mode)
    return descriptor


def make_directories(directory: Path) -> list[Path]:
    """Create a directory, and those above it, for this user only, whatever the umask. Returns those that were created.

    An existing one keeps its mode. Raises OSError.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        _set_mode(each)
    if not directory.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
    return missing


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Create a directory for this user only, whatever the umask, and remove it at the end. Raises MachineLacks."""
    import tempfile

    with ExitStack() as stack:
        try:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            _set_mode(directory)
        except OSError as error:
            hint = "make room, or name a directory of another disk in TMPDIR"
            raise MachineLacks(f"no temporary directory can be made: {error.strerror}", hint=hint) from error
        yield directory


@contextmanager
def spooled_file() -> Iterator[IO[bytes]]:
    """Open a file that is in memory while it is small, then on a disk: in TMPDIR, beside the user's state, or in /tmp.

    It has no name there, so that no kill leaves it. Raises MachineLacks if the disk is full.
    """
    import tempfile

    directory = None
    with suppress(RuntimeError):  # a user without a home
        if "TMPDIR" not in os.environ and os.access(state := user_directory("state", os.environ)[0], os.W_OK):
            directory = str(state)
    try:
        with tempfile.SpooledTemporaryFile(MAX_SPOOLED, dir=directory) as file:
            yield file
    except OSError as error:
        raise no_room(error) or error from error


def _set_mode(directory: Path) -> None:
    if sys.platform != "win32" and stat.S_IMODE(directory.stat().st_mode) & 0o777 != PRIVATE_DIRECTORY:
        with suppress(OSError):  # of a mount without modes
            directory.chmod(PRIVATE_DIRECTORY)


def open_bytes(path: Path) -> int:
    """Open a file to read its bytes as they are. Returns its descriptor. Raises OSError."""
    return os.open(path, os.O_RDONLY | _BINARY)


def open_to_append(path: Path) -> int:
    """Open an existing file to read it and append to it. Returns its descriptor. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_APPEND | _BINARY)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable. No-op on Windows, which cannot sync a directory. Raises OSError."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_of_another_user(found: os.stat_result) -> bool:
    """Return whether a file belongs to another user than root; False on Windows."""
    return sys.platform != "win32" and found.st_uid not in (0, os.getuid())


def is_writable_by_others(found: os.stat_result) -> bool:
    """Return whether the mode lets other users than the owner write; False on Windows."""
    return sys.platform != "win32" and bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_readable_by_others(found: os.stat_result) -> bool:
    """Return whether the mode lets users outside of the group read; False on Windows."""
    return sys.platform != "win32" and bool(found.st_mode & stat.S_IROTH)


def is_link_of_another_user(path: Path) -> bool:
    """Return whether the path is a link that another user made, as in /tmp. Linux follows none of these either."""
    if sys.platform == "win32" or not path.is_symlink():
        return False
    return path.lstat().st_uid not in (os.geteuid(), path.parent.stat().st_uid)


def mount_at(path: Path, mounts: str) -> tuple[str, str]:
    """Return filesystem type and options of an absolute path, from the text of MOUNTS; "" if unknown."""
    found, depth = ("", ""), 0
    for line in mounts.splitlines():
        _device, place, kind, options, *_ = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        # A later mount at the same place hides the earlier one.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = (kind, options), len(point.parts)
    return found


MAX_BYTES: Final = 512 * 1024
"""Four thousand entities have less. Parsed, a document takes up to 100 times its size."""

_MAX_DOTS: Final = 50_000
_MAX_DOTS_IN_LINE: Final = 1000
_NON_BLOCKING: Final[int] = getattr(os, "O_NONBLOCK", 0)
"""Without it, a pipe that has no writer would be waited for."""


@contextmanager
def replaced_file(file: str, mode: int | None = None) -> Iterator[Path]:
    """Yield a new file beside `file` that replaces it in the end. Raises MachineLacks before any work if it cannot.

    Without a `mode`, it is that of a file of this user that is replaced, else only this user can read it.
    """
    path = Path(file).resolve()
    try:
        if is_link_of_another_user(Path(file)):
            raise PermissionError(errno.EACCES, "it is a symbolic link of another user")
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():  # a device or a pipe
            yield path
            return
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        beside = path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}")
        descriptor = open_new(beside, mode or _mode_of(path))
        os.close(descriptor)
        try:
            yield beside
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise MachineLacks(f"{file} cannot be written: {error.strerror}", hint="choose a writable path") from error


@contextmanager
def ready_file(path: Path | None) -> Iterator[Callable[[object], None]]:
    """Yield a function that writes a JSON document for the programs that wait for this one. Only this user can read it.

    A reader sees all of it or none. An old file is removed at the start, and this one at the end. Raises MachineLacks.
    """

    def write(document: object) -> None:
        if path is not None:
            with replaced_file(str(path), PRIVATE) as file:
                file.write_text(json.dumps(document) + "\n", encoding="utf-8")

    _remove_ready_file(path)
    try:
        yield write
    finally:
        _remove_ready_file(path)


def _remove_ready_file(path: Path | None) -> None:
    try:
        if path is not None:
            path.unlink(missing_ok=True)
    except OSError as error:
        what = f"cannot remove the old ready file {path}: {error.strerror}"
        raise MachineLacks(what, hint="remove it, or name another") from error


def _mode_of(path: Path) -> int:
    is_own = path.exists() and (sys.platform == "win32" or path.stat().st_uid == os.geteuid())
    return stat.S_IMODE(path.stat().st_mode) if is_own else PRIVATE


def read_document(
    path: Path, *, option: str = "", hint: str, missing: str | None = None, max_bytes: int = MAX_BYTES
) -> str:
    """Return the text of a file in UTF-8, of stdin for `-`; `missing`, if given, for one that does not exist.

    `option` names the file in errors, `hint` is what to do about a wrong path. Raises UsageError, MachineLacks.
    """
    place = f"{option}: {path}" if option else str(path)
    try:
        if str(path) == "-":
            check_stdin()
            data = sys.stdin.buffer.read(max_bytes + 1)
        else:
            data = _read(path, max_bytes, f"{place} cannot be read: not a regular file", hint)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            return missing
        raise UsageError(f"{place} cannot be read: {error.strerror}", hint=hint) from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    if len(data) > max_bytes:
        raise UsageError(f"{place} is larger than {max_bytes} bytes", hint="split it, or name another file")
    try:
        # Editors of Windows write a byte order mark.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8", hint="save it as UTF-8") from error


def check_stdin() -> None:
    """Raise MachineLacks where this process was started with a closed stdin."""
    if sys.stdin is None:
        raise MachineLacks("stdin is closed", hint="name a file")


def _read(path: Path, max_bytes: int, refusal: str, hint: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NON_BLOCKING)) as file:
        # A device may be the null device, an empty document.
        if not (stat.S_ISREG(mode := os.fstat(file.fileno()).st_mode) or stat.S_ISCHR(mode)):
            raise UsageError(refusal, hint=hint)
        return file.read(max_bytes + 1)


def check_dotted_keys(text: str, place: str) -> None:
    """Raise UsageError for keys of very many parts: `tomllib` needs a kilobyte and more for each."""
    if text.count(".") > _MAX_DOTS or any(line.count(".") > _MAX_DOTS_IN_LINE for line in text.splitlines()):
        limits = f"{_MAX_DOTS}, or {_MAX_DOTS_IN_LINE} in a line"
        raise UsageError(f"{place} has too many dots: more than {limits}", hint="shorten its keys")
