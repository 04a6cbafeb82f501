"""The check of commit subjects that CI runs."""

import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / ".ci" / "check-commits"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("subject", "code"),
    [
        ("replay: bound memory of segment row groups", 0),
        ("runs, move: share one database", 0),
        ("Add a thing", 1),
        ("replay: Bound memory", 1),
        ("replay bounds memory", 1),
        (f"replay: {'x' * 65}", 1),
    ],
)
def test_a_subject_is_an_area_and_a_short_sentence(subject: str, code: int, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Not checked")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", subject)

    done = subprocess.run([CHECK, "HEAD~1"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert (subject in done.stderr) is bool(code)
