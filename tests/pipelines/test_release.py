"""`.ci/release`: the tag, the notes, checksums and the bill of materials, from a small wheel."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.kit.command import run_program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of version 1.2.3 with the script, and its wheel in `out/dist`."""
    for name in (".ci", "sbpair", "out/dist"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    (tmp_path / "sbpair" / "public_names.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.30]\nlater\n\n## [1.2.3] - 2026\n\nThe notes.\n\n## [1.2.2]\nold\n")
    with zipfile.ZipFile(tmp_path / "out" / "dist" / "sbpair-1.2.3-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sbpair-1.2.3.dist-info/sboms/sbpair.cdx.json", '{"bomFormat": "CycloneDX"}')
    (tmp_path / "out" / "dist" / "sbpair-1.2.3.tar.gz").write_bytes(b"sources")
    return tmp_path


def release(project: Path, *words: str) -> tuple[int, str]:
    done = run_program(project / ".ci" / "release", *words, cwd=project)
    return done.returncode, done.stderr


def test_the_files_of_a_release_are_checksums_contents_and_notes(project: Path) -> None:
    assert release(project, "files", "v1.2.3", "out") == (0, "")
    assert (project / "out/notes.md").read_text() == "\nThe notes.\n\n"
    assert (project / "out/files/sbpair.cdx.json").read_text() == '{"bomFormat": "CycloneDX"}'
    lines = [line.split() for line in (project / "out/files/SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {"sbpair-1.2.3-py3-none-any.whl", "sbpair-1.2.3.tar.gz"}
    assert all(hashlib.sha256((project / "out/dist" / name).read_bytes()).hexdigest() == sum_ for sum_, name in lines)


def test_a_tag_of_another_version_is_refused(project: Path) -> None:
    for words in (("files", "v1.2.4", "out"), ("build", "1.2.3", "out"), ("build", "v1.2.3; true", "out")):
        code, error = release(project, *words)
        assert (code, "is not v1.2.3\nhint: " in error) == (1, True)


def test_a_version_without_notes_is_refused(project: Path) -> None:
    (project / "CHANGELOG.md").write_text("## [Unreleased]\n\nText.\n")
    code, error = release(project, "files", "v1.2.3", "out")
    assert (code, error.splitlines()[0]) == (1, "error: CHANGELOG.md has no section [1.2.3]")


def test_two_wheels_or_none_are_refused(project: Path) -> None:
    wheel = project / "out/dist/sbpair-1.2.3-py3-none-any.whl"
    shutil.copy(wheel, wheel.with_name("sbpair-1.2.2-py3-none-any.whl"))
    assert "has not one wheel" in release(project, "files", "v1.2.3", "out")[1]
    for each in wheel.parent.glob("*.whl"):
        each.unlink()
    assert "has not one wheel" in release(project, "files", "v1.2.3", "out")[1]


def test_a_wheel_that_was_altered_is_not_tested(project: Path) -> None:
    assert release(project, "files", "v1.2.3", "out")[0] == 0
    (project / "out/dist/sbpair-1.2.3.tar.gz").write_bytes(b"others")
    code, error = release(project, "test", "out")
    assert (code, "did NOT match" in error) == (1, True)


@pytest.mark.parametrize("words", [(), ("build",), ("test",), ("publish", "v1.2.3", "out")])
def test_other_words_are_refused(words: tuple[str, ...], project: Path) -> None:
    code, error = release(project, *words)
    assert (code, error.startswith("error: expected build TAG DIRECTORY")) == (1, True)
