"""A campaign counts what is lost, altered and doubled, and draws its samples."""

from argparse import Namespace
from pathlib import Path

import pytest

from tests.benchmarks.stranded import Stranded
from tests.faults import states
from tests.faults.campaign import Campaign, plot, samples
from tests.faults.figures import Figures

message = Stranded.message


def faulty(stranded: Stranded, number: int) -> bytes:
    """Strand message 2 in place of 1, and 3 with another body."""
    found = message(stranded, 2 if number == 1 else number)
    return found.replace(b"xx", b"xy", 1) if number == 3 else found


async def test_a_campaign_compares_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stranded, "message", faulty)
    campaign = Campaign(Namespace(kind="syphon", folder=tmp_path, round=40, seed=1, kills=0))
    await campaign.play(1)

    found = campaign.table.of("syphon")
    assert (found.rounds, found.messages) == (1, 40)
    assert (found.lost, found.altered, found.unnamed, found.other) == (2, 1, 1, 0), found.findings
    assert samples(tmp_path / "samples.csv")
    plot(tmp_path)
    assert (tmp_path / "campaign.svg").stat().st_size


async def play_states(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, **options: int) -> Figures:
    """Play a round of each of these commands."""
    rounds = [next(each for each in states.ROUNDS if each[0] == name) for name in names]
    monkeypatch.setattr(states, "ROUNDS", rounds)
    monkeypatch.setattr(states, "RUN_SECONDS", 4.0)
    campaign = Campaign(Namespace(kind="states", folder=folder, seed=1, **options))
    await campaign.play(len(rounds))
    return campaign.table.of("states")


async def test_a_campaign_of_states_compares_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = states.StateRound._fill

    def faulty(played: states.StateRound) -> None:
        fill(played)
        list(played._source.send([0], scheduled=False))
        played._sent[1] = ()
        played._numbers = range(21)

    monkeypatch.setattr(states.StateRound, "_fill", faulty)
    found = await play_states(tmp_path, monkeypatch, "active", round=20, kills=0)
    assert (found.lost, found.altered, found.unnamed, found.other) == (1, 1, 1, 0), found.findings


@pytest.mark.slow
@pytest.mark.timeout_seconds(600)
async def test_killed_commands_keep_messages_of_each_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await play_states(tmp_path, monkeypatch, "scheduled", "receive", "copy", round=40, kills=1)
    assert not found.findings
