"""`sbpair cost`: the table of its README. JSON and other tables are in `sessions/config.txt`."""

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
