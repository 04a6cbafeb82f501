"""A campaign counts what is lost, altered and doubled, and draws its samples."""

from argparse import Namespace
from pathlib import Path

import pytest

from tests.benchmarks.stranded import Stranded
from tests.faults.campaign import Campaign, plot, samples

message = Stranded.message


def faulty(stranded: Stranded, number: int) -> bytes:
    """Strand message 2 in place of 1, and 3 with another body."""
    found = message(stranded, 2 if number == 1 else number)
    return found.replace(b"xx", b"xy", 1) if number == 3 else found


async def test_a_campaign_compares_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stranded, "message", faulty)
    campaign = Campaign(Namespace(kind="syphon", folder=tmp_path, round=40, seed=1, kills=0))
    await campaign.play(40)

    found = campaign.table.of("syphon")
    assert (found.rounds, found.messages) == (1, 40)
    assert (found.lost, found.altered, found.unnamed, found.other) == (2, 1, 1, 0), found.findings
    assert samples(tmp_path / "samples.csv")
    plot(tmp_path)
    assert (tmp_path / "campaign.svg").stat().st_size
