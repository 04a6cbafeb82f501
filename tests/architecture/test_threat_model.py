"""The threat model: each defence names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = (ROOT / "sbpair" / "SECURITY.md").read_text()


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
