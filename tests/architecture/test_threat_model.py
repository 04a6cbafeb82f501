"""The threat model: each defence names a test that exists; the documents of the repository link to files that do."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = (ROOT / "sbpair" / "SECURITY.md").read_text()
DOCUMENTS = sorted((ROOT / ".github").rglob("*.md"))


def attacks() -> list[list[str]]:
    """Return the rows of the tables of attacks: attack, defence, tests."""
    tables = re.findall(r"\| attack \| defence \| test \|\n\|[-|]+\n((?:\|.*\n)+)", MODEL)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for table in tables for row in table.splitlines()]


def test_each_attack_has_a_defence_and_a_test() -> None:
    rows = attacks()
    assert len(rows) > 30
    assert [row for row in rows if len(row) != 3 or not row[1] or "`test_" not in row[2]] == []


def test_the_named_tests_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", MODEL))
    files = (ROOT / "tests").rglob("test_*.py")
    found = {
        name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named - found == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_a_document_of_the_repository_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target
