"""Replays to topics that discard: messages that no subscription takes stay in the archive, or in the backlog."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.replay import driver, queue_task
from sbpair.replay.archive import Archive
from sbpair.replay.queue_task import DirectMove
from sbpair.replay.run_description import ReplayMode, ReplayOptions, load_run
from sbpair.replay.verify import verify
from sbpair.rules.filters import SqlRuleFilter
from tests.replay.tasks import job_of
from tests.replay.world import HOUR_TICKS, World

ODD = SqlRuleFilter("sys.MessageId LIKE '%1'")
UNKNOWN = SqlRuleFilter("sys.SequenceNumber > 0")
NONE = SqlRuleFilter("1 = 0")
DIRECT = replace(ReplayOptions(), mode=ReplayMode.DIRECT)


def strand(place: World, numbers: range, *destinations: str) -> None:
    for number in numbers:
        for destination in destinations:
            place.strand(number % 2, f"{destination}-{number}", Aliases(destination, None, HOUR_TICKS))


def topic(place: World, name: str, *filters: Any) -> Any:
    def create() -> Any:
        made = place.running.namespace.create_topic(name)
        if filters:
            rules = [SubscriptionRule(f"r{at}", each) for at, each in enumerate(filters)]
            made.create_subscription("s").set_rules(rules)
        return made

    return place.running.do(create)


def kept(place: World, topic: Any) -> int:
    return place.running.do(lambda: sum(each.counts().active for each in topic.subscriptions))


@pytest.mark.usefixtures("local_tasks")
def test_nothing_is_sent_that_topics_would_discard_unless_permitted(place: World, tmp_path: Path) -> None:
    empty, odd = topic(place, "empty"), topic(place, "odd", ODD)
    unknown = topic(place, "unknown", UNKNOWN)
    strand(place, range(10), "empty", "odd", "orders", "unknown")
    request = place.request(tmp_path)
    with pytest.raises(errors.WouldDiscard, match="empty: a topic without a subscription") as raised:
        driver.start_run(request, ReplayOptions(empty_seconds=0.1), place.queues, lambda _event: None)
    assert raised.value.exit_code == errors.ExitCode.PARTIAL_OR_FINDINGS
    assert "--allow-discard" in raised.value.hint
    assert (place.ids(), place.left()) == ([], 0)

    place.running.do(lambda: empty.create_subscription("s"))
    [run_id] = [path.name for path in (tmp_path / "archive").iterdir()]
    with pytest.raises(errors.WouldDiscard, match="9 of 10 for odd match no subscription") as raised:
        driver.resume_run(request, run_id, lambda _event: None)
    assert "--max-discard 9" in raised.value.hint
    assert place.ids() == []

    result = driver.resume_run(request, run_id, lambda _event: None, max_discard=9)
    assert (result.proof.acknowledged, result.proof.unsent, result.exit_code) == (40, 0, 0)
    assert [kept(place, each) for each in (empty, odd, unknown)] == [10, 1, 10]
    assert result.document()["notes"] == [
        "9 of 10 for odd match no subscription",
        "whether subscriptions of unknown take 10 is not known",
    ]
    # The permission is that resume's alone.
    assert load_run(Archive(str(tmp_path / "archive"), run_id)).options.max_discard == 0


@pytest.mark.parametrize(
    ("filters", "limit", "sent", "notes"),
    [
        pytest.param((), 0, 0, ["it is a topic without a subscription"], id="no subscription"),
        pytest.param((NONE,), 0, 0, ["no subscription of it takes"], id="none is taken"),
        pytest.param((NONE,), 6, 6, ["after 3 others", "3 sent to events matched"], id="half of it in each queue"),
        pytest.param((NONE,), None, 10, ["5 sent to events matched no subscription"], id="all may be discarded"),
        pytest.param((UNKNOWN,), 0, 10, ["whether events kept 5"], id="not known"),
    ],
)
def test_a_direct_task_leaves_in_its_queue_what_a_topic_would_discard(
    place: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    filters: Any,
    limit: int | None,
    sent: int,
    notes: list[str],
) -> None:
    monkeypatch.setattr(queue_task, "MAX_DESTINATION_FAILURES", 1)
    topic(place, "events", *filters)
    strand(place, range(10), "events", "orders")
    made = job_of(place, tmp_path, mode=ReplayMode.DIRECT, max_discard=limit)
    found = [asyncio.run(DirectMove(made, queue).run()) for queue in place.queues]
    assert (len(place.ids()), place.left()) == (10, 10 - sent)
    assert all(note in (each.note or "") for each in found for note in notes)
    assert verify(made.open(), made.run).destinations == {"orders": 10, **({"events": sent} if sent else {})}


def test_tasks_of_one_queue_share_what_may_be_discarded(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_task, "MAX_DESTINATION_FAILURES", 1)
    topic(place, "events", NONE)
    strand(place, range(10), "events")
    made = job_of(place, tmp_path, tasks=4, mode=ReplayMode.DIRECT, max_discard=4, ordered=False)
    for queue in (queues := queue_task.task_queues(made, {})):
        asyncio.run(DirectMove(made, queue).run())
    assert (len(queues), place.left()) == (4, 10 - 4)


def test_without_manage_a_direct_task_says_that_topics_are_unchecked(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(place, "events")
    strand(place, range(4), "events")
    place.without_manage(monkeypatch)
    made = job_of(place, tmp_path, mode=ReplayMode.DIRECT)
    found = asyncio.run(DirectMove(made, place.queues[0]).run())
    assert "subscriptions of topics were not checked" in str(found.note)
    assert verify(made.open(), made.run).acknowledged == 2
