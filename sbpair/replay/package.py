"""sbpair and what it needs in one zip, for executors that have none of it.

The law: pure Python, for nothing else can be imported from a zip; the versions that run here; the same zip each time.
"""

from __future__ import annotations

import importlib.metadata
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import sbpair
from sbpair.errors import MachineLacks, UsageError

NAME = "sbpair"
NATIVE = (".so", ".pyd", ".dylib")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Contents:
    """Versions by name. `native` are those that have to be installed, or be in an image, where they are needed."""

    packed: dict[str, str]
    native: dict[str, str]


def build(path: Path) -> tuple[Contents, int]:
    """Write the zip. Answers what is in it and how many bytes it has. Raises UsageError, MachineLacks."""
    if path.suffix != ".zip":
        raise UsageError(f"{path} is no .zip", hint="Spark takes Python files from a .zip: name it so")
    contents, files = _collect()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in sorted({*files, *_directories(files)}):
            source = files.get(name)
            data = b"" if source is None else source.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    try:
        path.write_bytes(made.getvalue())
    except OSError as error:
        raise MachineLacks(f"{path} cannot be written: {error.strerror}", hint="name a place with room") from error
    return contents, made.tell()


def check(path: str) -> None:
    """Raise UsageError for what is no zip with sbpair in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            archive.getinfo(f"{NAME}/__init__.py")
    except (OSError, KeyError, zipfile.BadZipFile):
        raise UsageError(
            f"--package {path} is no zip with sbpair in it", hint=f"make one: sbpair replay package {NAME}.zip"
        ) from None


def _collect() -> tuple[Contents, dict[str, Path]]:
    root = Path(sbpair.__file__).parent
    files = {f"{NAME}/{path.relative_to(root).as_posix()}": path for path in root.rglob("*") if _belongs(path)}
    contents = Contents({NAME: sbpair.__version__}, {})
    for name, found in sorted(_needed().items()):
        listed = [(str(path), Path(str(found.locate_file(path)))) for path in found.files or []]
        if any(each.endswith(NATIVE) for each, _ in listed):
            contents.native[name] = found.version
            continue
        contents.packed[name] = found.version
        files.update((each, path) for each, path in listed if _belongs(path) and not each.startswith(".."))
    return contents, files


def _needed() -> dict[str, importlib.metadata.Distribution]:
    """What sbpair needs, and what that needs, as far as it is installed; without what is optional."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = _wanted(importlib.metadata.distribution(NAME))
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # it is for other systems, or other Pythons
        wanted += _wanted(found[name])
    return found


def _wanted(distribution: importlib.metadata.Distribution) -> list[str]:
    """Names, by the ways in which they may be written; what is for an extra is left out."""
    said = [each for each in distribution.requires or [] if "extra ==" not in each]
    return [re.sub(r"[-_.]+", "-", match[0]).lower() for match in map(_NAME.match, said) if match]


def _belongs(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def _directories(files: dict[str, Path]) -> set[str]:
    """Python finds a package without __init__, such as azure, by its directory alone."""
    return {f"{parent}/" for name in files for parent in PurePosixPath(name).parents if str(parent) != "."}
