"""A zip of sbpair and its dependencies, for executors without them.

Invariant: only pure Python, since nothing else can be imported from a zip; the versions installed here; reproducible.
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
WITHOUT_NATIVE = ("markupsafe", "websockets")
"""Packages that replace a missing native part with Python."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Contents:
    """Versions by name. Packages in `native` must be installed on the executors that need them."""

    packed: dict[str, str]
    native: dict[str, str]


def build_package(path: Path) -> tuple[Contents, int]:
    """Write the zip. Returns its contents and its size in bytes. Raises UsageError, MachineLacks."""
    if path.suffix != ".zip":
        raise UsageError(f"expected a file name that ends in .zip, got {path}", hint="use a name such as sbpair.zip")
    contents, files = _collect()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        # Python finds a namespace package, such as azure, by its directory.
        parents = (parent for name in files for parent in PurePosixPath(name).parents if str(parent) != ".")
        for name in sorted({*files, *(f"{parent}/" for parent in parents)}):
            source = files.get(name)
            data = b"" if source is None else source.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise MachineLacks(f"{path} cannot be written: {error.strerror}", hint="choose a writable path") from error
    return contents, buffer.tell()


def check_package(path: str) -> None:
    """Raise UsageError unless the file is a zip that contains sbpair."""
    try:
        with zipfile.ZipFile(path) as archive:
            archive.getinfo(f"{NAME}/__init__.py")
    except (OSError, KeyError, zipfile.BadZipFile):
        raise UsageError(
            f"--package {path} is not a zip of sbpair", hint=f"create one: sbpair replay package {NAME}.zip"
        ) from None


def _collect() -> tuple[Contents, dict[str, Path]]:
    root = Path(sbpair.__file__).parent
    files = {f"{NAME}/{path.relative_to(root).as_posix()}": path for path in root.rglob("*") if _belongs(path)}
    # Spark finds the data source by this top-level module. A wheel has it beside sbpair, a checkout in it.
    in_checkout = root / "spark" / "pyspark_sbpair.py"
    files["pyspark_sbpair.py"] = in_checkout if in_checkout.exists() else root.parent / "pyspark_sbpair.py"
    contents = Contents({NAME: sbpair.__version__}, {})
    for name, found in sorted(_dependencies().items()):
        listed = [(str(path), Path(str(found.locate_file(path)))) for path in found.files or []]
        if name in WITHOUT_NATIVE:
            listed = [(each, path) for each, path in listed if not each.endswith(NATIVE)]
        if any(each.endswith(NATIVE) for each, _ in listed):
            contents.native[name] = found.version
            continue
        contents.packed[name] = found.version
        files.update((each, path) for each, path in listed if _belongs(path) and not each.startswith(".."))
    return contents, files


def _dependencies() -> dict[str, importlib.metadata.Distribution]:
    """Return the installed dependencies of sbpair, direct and indirect, without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = _requirements(importlib.metadata.distribution(NAME))
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on other systems or Python versions
        wanted += _requirements(found[name])
    return found


def _requirements(distribution: importlib.metadata.Distribution) -> list[str]:
    requirements = [each for each in distribution.requires or [] if "extra ==" not in each]
    return [re.sub(r"[-_.]+", "-", match[0]).lower() for match in map(_NAME.match, requirements) if match]


def _belongs(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"
