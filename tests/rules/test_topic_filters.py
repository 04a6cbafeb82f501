"""The filters of a topic: whether a subscription takes a message."""

from typing import Any

import pytest

from sbpair.emulator.entities.rules import StoredView
from sbpair.rules.filters import FalseRuleFilter, SqlRuleFilter, SubscriptionFilters, TopicFilters, TrueRuleFilter
from tests.emulator.test_rules import a_message

FAILING = SqlRuleFilter("n = 'x'")


@pytest.mark.parametrize(
    ("filters", "unread", "takes", "takes_all"),
    [
        ([], 0, False, False),
        ([], 1, None, False),
        ([SqlRuleFilter("n = 6")], 0, False, False),
        ([SqlRuleFilter("n = 6"), None], 0, None, False),
        ([None, SqlRuleFilter("n = 5")], 1, True, False),
        ([FalseRuleFilter(), TrueRuleFilter()], 0, True, True),
        ([SqlRuleFilter("missing = 1")], 0, False, False),
        ([FAILING], 0, True, False),
    ],
)
def test_a_topic_takes_what_a_subscription_takes(filters: Any, unread: int, takes: Any, takes_all: bool) -> None:
    topic = TopicFilters((SubscriptionFilters("s", tuple(filters)),), unread)
    assert topic.take(StoredView(a_message())) is takes
    assert topic.take_all is takes_all
    assert topic.count == len(filters) + unread


def test_a_failing_filter_takes_nothing_if_failures_are_dropped() -> None:
    assert (
        TopicFilters((SubscriptionFilters("s", (FAILING,), keeps_failures=False),)).take(StoredView(a_message()))
        is False
    )
