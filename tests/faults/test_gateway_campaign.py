"""A short campaign on a gateway, and what its judgement counts."""

import json
from collections import Counter
from pathlib import Path

from tests.faults.gateway.campaign import Campaign, Plan


async def test_a_campaign_on_a_gateway_finds_nothing_wrong(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, Plan(seed=3, faults=4, kills=1, languages=("py",), longest=0.8))
    await campaign.play()

    assert not campaign.figures.findings
    assert campaign.counts.kills == 1
    assert campaign.counts.faults.total() == 4
    assert campaign.counts.received >= campaign.counts.sent > 0


def test_a_campaign_counts_what_is_lost_and_what_no_one_accounts_for(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, Plan(seed=1, faults=0, kills=0, languages=("py",)))
    (tmp_path / "taken").write_text("retried\nretried\nonce\nnamed\nunnamed\n")
    (tmp_path / "events").write_text(json.dumps({"kind": "SendInDoubt", "ids": ["named"], "text": ""}) + "\n")
    campaign._judge_counts({"lost", "once"}, Counter(once=1, retried=2, named=2, unnamed=2))
    campaign._judge_order({("q", "s", ""): ["1", "3", "2", "4"]}, Counter("1234"))

    figures, counts = campaign.figures, campaign.counts
    assert (figures.lost, figures.unnamed, figures.late) == (1, 1, 1), figures.findings
    assert (counts.named, counts.retried) == (1, 1)
