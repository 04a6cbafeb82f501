"""The files of a replay's archive by directory, with checksums of those that prove what became of its messages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.replay.archive_layout import DEDUPLICATED, DOUBTFUL, EXPIRED, LEDGER, QUARANTINE, REPORT, SEGMENTS

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive

CHECKED = (LEDGER, EXPIRED, QUARANTINE, DEDUPLICATED, DOUBTFUL, REPORT)
"""Directories with a checksum. The segments have none: they may be terabytes, and their own checksums are inside."""


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The files below one directory. `sha256` is None where none is computed."""

    name: str
    files: int
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The directories of one run that hold files, below `root`."""

    root: str
    is_local: bool
    directories: tuple[DirectoryFiles, ...]


def files_of(archive: Archive) -> ArchiveFiles:
    """Read an archive's files. Raises MachineLacks if it cannot be read."""
    found = (_directory(archive, name) for name in (SEGMENTS, *CHECKED))
    return ArchiveFiles(archive.root, archive.is_local, tuple(each for each in found if each.files))


def _directory(archive: Archive, name: str) -> DirectoryFiles:
    sizes = archive.sizes(name)
    sha256 = _checksum(archive, sizes) if name in CHECKED and sizes else None
    return DirectoryFiles(name, len(sizes), sum(sizes.values()), sha256)


def _checksum(archive: Archive, paths: dict[str, int]) -> str:
    """Return the checksum of `sha256sum` of the files in the order of their names, as coreutils would."""
    lines = (f"{hashlib.sha256(archive.read(path)).hexdigest()}  {path}\n" for path in sorted(paths))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
