"""Job definitions of managed platforms: files to submit a replay there, with commands to watch and stop it.

Invariant: a definition names secrets, and has none. A platform whose executors cannot have them is refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sbpair.errors import MachineLacks, UsageError
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair_variables import pair_variables
from sbpair.replay.package import build_package
from sbpair.replay.platforms import databricks, dataproc, emr_serverless, fabric, kubernetes
from sbpair.replay.platforms.job import MAIN, NAME, PACKAGE, REQUIREMENTS, Files, Job, Platform

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.replay.package import Contents

NEEDED = ("pandas>=2.2,<3", "pyarrow>=15")

MAIN_TEXT = '''"""The file that Spark starts: `main.py replay run ...`, in the words of sbpair's command line."""

import runpy
import sys

if __name__ == "__main__":
    if "--package" in sys.argv:
        sys.path.insert(0, sys.argv[sys.argv.index("--package") + 1])
    runpy.run_module("sbpair", run_name="__main__")
'''

REFUSED = {"synapse": "Synapse reads secrets through the driver's Java only, and executors need them too"}
"""Platforms where tasks cannot have the secrets that they need, with the reason; PLATFORMS.md has more."""

EXAMPLES = {"abfss": "abfss://container@account.dfs.core.windows.net/backlog"}
_VAULT = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]")

PLATFORMS = {
    "databricks": databricks.PLATFORM,
    "dataproc": dataproc.PLATFORM,
    "emr-serverless": emr_serverless.PLATFORM,
    "fabric": fabric.PLATFORM,
    "kubernetes": kubernetes.PLATFORM,
}


def define_job(
    directory: Path, platform: str, pair: Pair, archive: str | None, name: str = NAME, vault: str | None = None
) -> tuple[list[str], tuple[str, ...]]:
    """Write the directory. Returns its files, and the secrets to store. Raises UsageError, MachineLacks."""
    found = _platform(platform)
    if archive is None:
        raise UsageError("--for needs --archive", hint=f"name where the job keeps messages, such as {_example(found)}")
    _check(found, directory, archive, name)
    _check_vault(platform, found, vault)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        contents, _ = build_package(directory / PACKAGE)
        job = _job(found, pair, archive.rstrip("/"), name, contents, vault or "")
        texts: Files = {
            MAIN: MAIN_TEXT,
            REQUIREMENTS: "".join(f"{each}\n" for each in job.requirements),
            **found.files(job),
        }
        for file, content in texts.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
            (directory / file).write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise MachineLacks(
            f"{directory} cannot be written: {error.strerror}", hint="choose a writable directory"
        ) from error
    return sorted([PACKAGE, *texts]), job.secrets


def _platform(name: str) -> Platform:
    if name in REFUSED:
        raise UsageError(
            f"--for: {REFUSED[name]}",
            hint=f"choose one of {', '.join(PLATFORMS)}, or a cluster with sbpair replay run --print-submit",
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
    if not separator or scheme not in platform.schemes or not PurePosixPath(rest.partition("/")[2]).name:
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
    if vault is not None and not platform.needs_vault:
        raise UsageError(
            f"--vault goes with --for fabric: {platform.title} keeps secrets itself", hint="leave --vault out"
        )
    if vault is not None and not _VAULT.fullmatch(vault):
        raise UsageError(
            f"--vault: {vault!r} is not the name of a Key Vault", hint="use its name, such as orders-kv, not its URL"
        )


def _job(platform: Platform, pair: Pair, archive: str, name: str, contents: Contents, vault: str) -> Job:
    environment, secrets = pair_variables(pair)
    environment["XDG_STATE_HOME"] = "/tmp/sbpair"  # noqa: S108  of the driver's own container
    native = [f"{each}=={version}" for each, version in contents.native.items()]
    own = {re.split("[<>=]", each)[0]: each for each in (*NEEDED, *platform.requirements, *native)}
    return Job(
        name, archive, environment, (*platform.secrets, *secrets), tuple(own.values()), pair.backlog_queues, vault
    )
