"""The sdist and the wheel: the same bytes from the same sources, and what they contain."""

import importlib.resources
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from referencing import Registry
from referencing.jsonschema import DRAFT7

from sbpair import __version__
from sbpair.cli.commands.documents import SCRIPTS
from sbpair.cli.man_page import man_page, page_name, page_paths
from sbpair.model.installation import BUILD_FILE, Commit, commit_of
from tests.packaging.builds import ROOT, Built, build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INFO, DATA = f"sbpair-{__version__}.dist-info", f"sbpair-{__version__}.data/data/share"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built: Built) -> dict[str, bytes]:
    """Return the files of the wheel."""
    with zipfile.ZipFile(built.wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_builds_the_same_bytes_elsewhere_without_git(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    assert not (source / ".git").exists()
    again = build(source, tmp_path / "again", umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.sdist.read_bytes() == built.sdist.read_bytes()


def test_the_index_accepts_both(built: Built) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout.count("PASSED")) == (0, 2), checked.stdout + checked.stderr


def test_the_wheel_has_types_documents_and_the_license(wheel: dict[str, bytes]) -> None:
    sources = [path.relative_to(ROOT) for path in (ROOT / "sbpair").rglob("*") if path.is_file()]
    missing = {path.as_posix() for path in sources if "__pycache__" not in path.parts} - wheel.keys()
    assert missing == {"sbpair/spark/pyspark_sbpair.py"}
    assert {"pyspark_sbpair.py", "sbpair/py.typed", f"{INFO}/licenses/LICENSE"} <= wheel.keys()
    metadata = HeaderParser().parsestr(wheel[f"{INFO}/METADATA"].decode())
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")


def test_the_wheel_has_the_completions_twice(wheel: dict[str, bytes]) -> None:
    shipped = {shell: (ROOT / "completions" / name).read_bytes() for shell, name in SCRIPTS.items()}
    assert {shell: wheel[f"sbpair/cli/completions/{name}"] for shell, name in SCRIPTS.items()} == shipped
    shared = {
        "bash": "bash-completion/completions/sbpair",
        "zsh": "zsh/site-functions/_sbpair",
        "fish": "fish/vendor_completions.d/sbpair.fish",
    }
    assert {shell: wheel[f"{DATA}/{place}"] for shell, place in shared.items()} == {
        shell: shipped[shell] for shell in shared
    }


def test_the_wheel_has_a_manual_page_for_each_command(wheel: dict[str, bytes]) -> None:
    pages = {name.removeprefix(f"{DATA}/man/man1/"): text for name, text in wheel.items() if "/man/man1/" in name}
    assert pages.keys() == {f"{page_name(path)}.1" for path in page_paths()}
    date = json.loads(wheel[f"sbpair/{BUILD_FILE}"])["date"]
    assert pages["sbpair-syphon.1"].decode() == man_page(["syphon"], date)


def test_a_build_notes_the_commit(wheel: dict[str, bytes]) -> None:
    noted = json.loads(wheel[f"sbpair/{BUILD_FILE}"])
    assert Commit(noted["commit"], noted["date"]) == commit_of(ROOT)


def test_the_bill_of_materials_follows_its_published_schema(wheel: dict[str, bytes]) -> None:
    published = importlib.resources.files("cyclonedx.schema._res")
    schemas = {path.name: json.loads(path.read_text()) for path in published.iterdir() if path.name.endswith(".json")}
    registry = Registry().with_resources(
        [(f"http://cyclonedx.org/schema/{name}", DRAFT7.create_resource(each)) for name, each in schemas.items()]
    )
    bill = json.loads(wheel[f"{INFO}/sboms/sbpair.cdx.json"])
    Draft7Validator(schemas["bom-1.6.SNAPSHOT.schema.json"], registry=registry).validate(bill)


def test_the_bill_of_materials_has_each_declared_dependency(wheel: dict[str, bytes]) -> None:
    bill = json.loads(wheel[f"{INFO}/sboms/sbpair.cdx.json"])
    stated = {
        (part["scope"], part["name"], str(Requirement(stated["value"])))
        for part in bill["components"]
        for stated in part["properties"]
    }
    extras = [need for needs in PROJECT["optional-dependencies"].values() for need in needs]
    declared = {
        (scope, need.name, str(need))
        for scope, needs in (("optional", extras), ("required", PROJECT["dependencies"]))
        for need in map(Requirement, needs)
    }
    assert stated == declared
    assert bill["metadata"]["component"]["version"] == __version__
    assert not {"serialNumber", "timestamp"} & (bill.keys() | bill["metadata"].keys())


def test_the_sdist_has_the_sources_and_the_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "LICENSE", ".build/hook.py", "completions/_sbpair", "tests/packaging/test_build.py"}
    assert wanted | {"sbpair/py.typed", f"sbpair/{BUILD_FILE}", "CHANGELOG.md", "README.md"} <= names
    assert [name for name in names if re.search(r"__pycache__|\.git/|\.venv|\.mypy_cache", name)] == []
