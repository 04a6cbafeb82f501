"""What the hostile trial counts: its judge sees each kind of damage, and its table goes on from its file."""

from dataclasses import replace
from pathlib import Path
from random import Random

from sbpair.amqp.message import data_body
from tests.faults.trial.figures import Figures, Table
from tests.faults.trial.stage import Stage
from tests.kit.moves import stored
from tests.kit.stranded import put


async def test_the_judge_counts_lost_altered_doubled_and_late_messages(tmp_path: Path) -> None:
    stage = Stage("move", tmp_path, Random(1), Figures())
    await stage.fill(8)
    ids = list(stage.stranded)
    assert stage.ordered
    async with stage.opened() as (primary, secondary):
        found = stored(primary.queue("source"))
        primary.delete_queue("source")
        altered = replace(found[1], body=data_body(b"other"))
        for each in (found[2], altered, found[3], found[4], found[4]):
            put(secondary.queue("target"), each.join())
    await stage.judge()

    figures = stage.figures
    lost = len(ids) - 4
    assert (figures.messages, figures.lost, figures.altered) == (len(ids), lost, 1)
    assert (figures.unnamed, figures.late, figures.wrong) == (1, 1, lost + 2)
    stage.figures, stage.named = Figures(), {ids[4]}
    await stage.judge()
    assert stage.figures.unnamed == 0


def test_a_table_goes_on_from_its_file(tmp_path: Path) -> None:
    first = Table(tmp_path / "table.json")
    first.add("kills", Figures(rounds=1, messages=10, peak_mb=40.0, findings=["one"]))
    again = Table(tmp_path / "table.json")
    again.add("kills", Figures(rounds=1, messages=5, lost=1, peak_mb=30.0, findings=["two"]))

    figures = Table(tmp_path / "table.json").of("kills")
    assert (figures.rounds, figures.messages, figures.lost, figures.peak_mb) == (2, 15, 1, 40.0)
    assert figures.findings == ["one", "two"]
    assert str(again).splitlines()[-1].split()[:4] == ["all", "2", "15", "1"]
