"""`sbpair cost`: the table of the document, and its JSON."""

import json
import re
from pathlib import Path

from tests.cli.test_golden import sbpair

README = Path(__file__).parents[2] / "sbpair/planning/README.md"
OUTAGE = ("cost", "--outage", "4h", "--rate", "50", "--size", "2KB")


def test_the_table_is_that_of_the_document() -> None:
    example = re.findall(r"```\n(4h at .*?)```", README.read_text(), flags=re.DOTALL)[0]
    done = sbpair(*OUTAGE)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in example.splitlines() if line not in done.stdout.splitlines()] == []
    assert (
        "full: 10 backlog queues of 50.0 GB in all are full after 6d 1h (partitioned in Standard: 97d 2h)"
        in done.stdout
    )


def test_a_full_backlog_and_its_consequence_are_named() -> None:
    out = sbpair(
        "cost", "--outage", "1d", "--rate", "500", "--size", "100KB", "--tier", "premium", "--count", "1"
    ).stdout
    assert "full: 1 backlog queue of 5.0 GB is full after 1m 45s; 43 147 572 messages do not fit" in out
    assert "partitioned" not in out


def test_the_document_has_every_tier_and_the_date_of_its_prices() -> None:
    found = json.loads(sbpair(*OUTAGE, "-o", "json").stdout)
    sides = [(each["secondary"], each["primary"]) for each in found["tiers"]]
    assert [(one["tier"], one["units"]) for one, _ in sides] == [
        ("Standard", None),
        *(("Premium", units) for units in (1, 2, 4, 8, 16)),
    ]
    assert all(one == other for one, other in sides)
    assert (found["dated"], found["currency"], found["live"]) == ("2026-10", "USD", False)
    assert found["polling"] == {"an_hour": 40, "in_30_days": 28_800}
