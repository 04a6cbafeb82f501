"""Packages for Spark's machines: a zip of sbpair and its dependencies, and job definitions of managed platforms.

Invariant: the zip has only pure Python, since nothing else can be imported from a zip, in the versions installed here,
and is reproducible. A definition, of templates in a folder for each platform, names secrets and has none.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import sbpair
from sbpair.azure.fetched_secrets import PRINCIPAL
from sbpair.errors import MachineLacks, UsageError
from sbpair.model.connection_string import holds_secret
from sbpair.model.document import SPREAD, document
from sbpair.model.pair import Identity, Pair, pair_variables
from sbpair.replay.spark_settings import PLATFORM, SETTINGS
from sbpair.template import filled

NAME = "sbpair"
NATIVE = (".so", ".pyd", ".dylib")
WITHOUT_NATIVE = ("markupsafe", "websockets")
"""Packages that replace a missing native part with Python."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(r"[A-Za-z0-9._-]+")

JOB_NAME = "sbpair-replay"
PACKAGE, COMMANDS = "sbpair.zip", "README.md"
NEEDED = ("pandas>=2.2,<3", "pyarrow>=15")
REFUSED = {"synapse": "Synapse reads secrets through the driver's Java only, and executors need them too"}
"""Platforms where tasks cannot have the secrets that they need, with the reason; PLATFORMS.md has more."""

EXAMPLES = {"abfss": "abfss://container@account.dfs.core.windows.net/backlog"}
_VAULT = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Contents:
    """Versions by name. Packages in `native` must be installed on the executors that need them."""

    packed: Annotated[dict[str, str], "Versions of the packed packages"]
    native: Annotated[dict[str, str], "Versions of the packages with native code, not packed"]


@document("sbpair/replay-package/1")
class BuiltPackage:
    """The zip that sbpair replay package writes."""

    file: Annotated[Path, "Path of the zip"]
    bytes: Annotated[int, "Its size"]
    contents: Annotated[Contents, SPREAD]


@document("sbpair/replay-job/1")
class JobDirectory:
    """The job that sbpair replay package --for writes."""

    platform: Annotated[str, "Platform"]
    directory: Annotated[Path, "Directory"]
    files: Annotated[list[str], "Files in it"]
    secrets: Annotated[tuple[str, ...], "Variables whose values the platform has to keep"]


def build_package(path: Path) -> BuiltPackage:
    """Write the zip. Raises UsageError, MachineLacks."""
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
    return BuiltPackage(path, buffer.tell(), contents)


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


@dataclass(frozen=True, slots=True)
class Platform:
    """The archives and the names that a platform accepts, and what its jobs need besides all others.

    `run` is what a definition has in place of the name of a run: the platform's id of it, which its retries share, or
    a word that the command to submit replaces.
    """

    title: str
    schemes: tuple[str, ...]
    name: str
    name_rule: str
    run: str = "RUN_NAME"
    requirements: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    needs_vault: bool = False


_ANY_STORE = ("s3", "abfss", "gs")
_AIRFLOW_ID = "{{ run_id | replace(':', '') | replace('+', '-') | replace('~', '-') }}"  # without what no name may have

PLATFORMS = {
    "airflow": Platform(
        "Airflow", _ANY_STORE, r"[A-Za-z0-9._-]{1,250}", "letters, digits and ._-, at most 250", run=_AIRFLOW_ID
    ),
    "databricks": Platform(
        "Databricks", _ANY_STORE, r"[A-Za-z0-9_-]{1,100}", "letters, digits, _ and -, at most 100", run="{{job.run_id}}"
    ),
    "dataproc": Platform(
        "Dataproc Serverless", ("gs",), r"[a-z][a-z0-9-]{2,50}[a-z0-9]", "small letters, digits and -, 4 to 52"
    ),
    "emr-serverless": Platform(
        "EMR Serverless", ("s3",), r"[A-Za-z0-9._/#-]{1,64}", "letters, digits and ._/#-, at most 64"
    ),
    # Fabric's tokens are for Key Vault and storage, but not for Service Bus, and Python finds no identity of Azure
    # there: a service principal, itself in the vault, opens the archive, and signs in to the namespaces.
    "fabric": Platform(
        "Fabric",
        ("abfss",),
        r"[A-Za-z][A-Za-z0-9_-]{0,99}",
        "letters, digits, _ and -, at most 100",
        requirements=("pyarrow>=16", "fabric-analytics-notebook-plugin"),
        secrets=PRINCIPAL,
        needs_vault=True,
    ),
    "kubernetes": Platform(
        "Kubernetes",
        _ANY_STORE,
        r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?",
        "small letters, digits and -, at most 47",
        run="$(RUN)",
    ),
    "spark-operator": Platform(
        "Spark Operator",
        _ANY_STORE,
        r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?",
        "small letters, digits and -, at most 40",
        run="$(RUN)",
    ),
}


def define_job(
    directory: Path,
    platform: str,
    pair: Pair,
    archive: str | None,
    name: str = JOB_NAME,
    vault: str | None = None,
    *,
    to: str = "",
    renamed: Sequence[str] = (),
) -> JobDirectory:
    """Write the directory. Raises UsageError, MachineLacks.

    With `to`, the job has the name of the primary alone, and no secret of it. `renamed` are lines of --map.
    """
    delivery = (*(("--to", to) if to else ()), *(word for line in renamed for word in ("--map", line)))
    if to:
        pair = replace(pair, primary=replace(pair.primary, credential=Identity(), proxy=None))
    found = _platform(platform)
    if archive is None:
        raise UsageError("--for needs --archive", hint=f"name where the job keeps messages, such as {_example(found)}")
    _check(found, directory, archive, name)
    _check_vault(platform, found, vault)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        native = build_package(directory / PACKAGE).contents.native
        values = _values(found, pair, archive.rstrip("/"), native, delivery)
        values |= {"name": name, "identifier": re.sub(r"\W", "_", name), "vault": vault}
        texts = {file: filled("sbpair.replay", template, **values) for file, template in _templates(platform)}
        for file, text in texts.items():
            is_json = file.endswith((".json", ".yml"))
            laid_out = json.dumps(json.loads(text), indent=2) + "\n" if is_json else text
            (directory / file).write_text(laid_out, "utf-8", newline="\n")
    except OSError as error:
        raise MachineLacks(
            f"{directory} cannot be written: {error.strerror}", hint="choose a writable directory"
        ) from error
    return JobDirectory(platform, directory, sorted([PACKAGE, *texts]), values["secrets"])


def _values(
    platform: Platform, pair: Pair, archive: str, native: dict[str, str], delivery: Sequence[str]
) -> dict[str, Any]:
    environment, secrets = pair_variables(pair)
    secrets = (*platform.secrets, *secrets)
    requirements = (*NEEDED, *platform.requirements, *(f"{each}=={version}" for each, version in native.items()))
    words = ("replay", "run", "--archive", archive, "--master", PLATFORM, "--count", str(pair.backlog_queues))
    return {
        "archive": archive,
        "code": f"{archive}-job",
        "arguments": (*words, *delivery, "--output", "json", "--quiet", "--run", platform.run),
        "settings": SETTINGS,
        "environment": {**environment, "XDG_STATE_HOME": "/tmp/sbpair"},  # noqa: S108  of the driver's own container
        "secrets": secrets,
        "requirements": tuple({re.split("[<>=]", each)[0]: each for each in requirements}.values()),
    }


def _templates(platform: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a job, and their templates. A platform's own file replaces that of all."""
    yield from (("main.py", "main.py.template"), ("requirements.txt", "requirements.txt"))
    for each in (files("sbpair.replay") / "templates" / platform).iterdir():
        yield each.name.removesuffix(".template"), f"{platform}/{each.name}"


def _platform(name: str) -> Platform:
    if name in REFUSED:
        raise UsageError(
            f"--for: {REFUSED[name]}",
            hint=f"choose one of {', '.join(PLATFORMS)}, or a cluster: see --print-submit of sbpair replay run",
        )
    if name not in PLATFORMS:
        raise UsageError(f"--for: {name!r} is not a platform", hint=f"expected one of {', '.join(PLATFORMS)}")
    return PLATFORMS[name]


def _check(platform: Platform, directory: Path, archive: str, name: str) -> None:
    if not re.fullmatch(platform.name, name):
        raise UsageError(f"--name: {platform.title} does not allow {name!r}", hint=f"use {platform.name_rule}")
    if holds_secret(archive, is_setting=True) or "?" in archive:
        raise UsageError(
            "--archive has parameters or a password", hint="name the bucket and the path alone: the job has an identity"
        )
    scheme, separator, rest = archive.partition("://")
    is_directory = separator and PurePosixPath(rest.partition("/")[2]).name
    # Some definitions have the words of a command line in one text, and Spark reads braces and brackets as a pattern.
    if not is_directory or scheme not in platform.schemes or re.search(r"[\s*\[\]{}\\]", archive):
        raise UsageError(
            f"--archive: {platform.title} does not reach {archive}",
            hint=f"name a directory of a bucket, such as {_example(platform)}",
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists and is not an empty directory", hint="choose another, or remove it")


def _example(platform: Platform) -> str:
    scheme = platform.schemes[0]
    return EXAMPLES.get(scheme, f"{scheme}://bucket/backlog")


def _check_vault(name: str, platform: Platform, vault: str | None) -> None:
    if vault is None and platform.needs_vault:
        raise UsageError(f"--for {name} needs --vault", hint="name the Azure Key Vault that has the job's secrets")
    if vault is not None and not _VAULT.fullmatch(vault):
        raise UsageError(
            f"--vault: {vault!r} is not the name of a Key Vault", hint="use its name, such as orders-kv, not its URL"
        )
