"""Plans of backlog queues, and the decisions that audit and prune make by them."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import backlog
from sbpair.errors import Unsafe
from sbpair.management.audit_findings import (
    Audit,
    AuditFinding,
    DestinationSummary,
    Unseen,
    audit_exit_code,
    own_items,
    utilisation,
)
from sbpair.management.comparison import Plan, check_removable, plan_backlog
from sbpair.management.provisioning import provision
from sbpair.management.pruning import planned_removals
from sbpair.model.queues import Counts, Difference, QueueState, Usage
from sbpair.model.report import Outcome
from sbpair.model.tiers import PREMIUM, STANDARD, Tier
from sbpair.timespan import TIMESPAN_MAX
from tests.kit.pairs import UNDER_CONTOSO, unconnected_pair


def state(index: int | str, counts: Counts | None = None, *, partitioned: bool = False, **changes: Any) -> QueueState:
    """Describe a backlog queue, apart from the changes."""
    changed = {"path": f"{UNDER_CONTOSO}{index}", **changes}
    return QueueState(replace(backlog.queue_spec("contoso", 0), **changed), partitioned, counts)


def planned(count: int, actual: list[QueueState], tier: Tier = STANDARD) -> Plan:
    return plan_backlog(unconnected_pair(count), actual, tier)


def applied(plan: Plan, actual: list[QueueState]) -> list[QueueState]:
    """Return the queues after every creation of the plan."""
    return [*actual, *(QueueState(create.entity) for create in plan.creates)]


FOR_EVER = ("P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.477581S", "P10675199D", "P10675200D")
# What a backlog queue is, and how it differs: properties, what they should be, and what they are.
DRIFT: list[tuple[dict[str, Any], Tier, list[tuple[Any, ...]]]] = [
    ({"path": "CONTOSO/X-Servicebus-Transfer/0"}, STANDARD, []),
    *(({"default_message_time_to_live": each}, STANDARD, []) for each in FOR_EVER),
    ({"auto_delete_on_idle": "P10675198D"}, STANDARD, [("AutoDeleteOnIdle", TIMESPAN_MAX, "P10675198D", True)]),
    ({"lock_duration": "PT60S"}, STANDARD, []),
    ({"lock_duration": "soon"}, STANDARD, [("LockDuration", "PT1M", "soon")]),
    (
        {"lock_duration": "PT30S", "max_delivery_count": 10, "requires_session": True},
        STANDARD,
        [
            ("LockDuration", "PT1M", "PT30S"),
            ("MaxDeliveryCount", 2147483647, 10),
            ("RequiresSession", False, True, True),
        ],
    ),
    # The service reports the size of all 16 partitions, except in Premium.
    ({"max_size_in_megabytes": 81920}, STANDARD, [("MaxSizeInMegabytes", 5120, 81920)]),
    ({"max_size_in_megabytes": 81920, "partitioned": True}, STANDARD, []),
    ({"max_size_in_megabytes": 16384, "partitioned": True}, STANDARD, [("MaxSizeInMegabytes", 5120, 1024)]),
    ({"max_size_in_megabytes": 5120, "partitioned": True}, PREMIUM, []),
    ({"max_size_in_megabytes": 81920, "partitioned": True}, PREMIUM, [("MaxSizeInMegabytes", 5120, 81920)]),
]


@pytest.mark.parametrize(("there", "tier", "differences"), DRIFT)
def test_drift_names_each_property_as_it_should_be_and_is(there: Any, tier: Tier, differences: list[Any]) -> None:
    [change] = planned(1, [state(0, **there)], tier).changes
    assert change.kind is (Outcome.DRIFTED if differences else Outcome.EXISTING)
    assert change.differences == tuple(Difference(*each) for each in differences)


def test_unexpected_queues_exceed_the_count_or_have_no_index() -> None:
    plan = planned(1, [state("x"), state(0), state(12), state(7), state("007")])
    assert [extra.index for extra in plan.of(Outcome.EXTRA)] == [7, 12, None, None]
    assert [extra.path.rsplit("/", 1)[1] for extra in plan.of(Outcome.EXTRA)] == ["7", "12", "007", "x"]


indexes = st.sets(st.one_of(st.integers(0, 30), st.sampled_from(["x", "00", "1x"])))


@given(st.integers(1, 20), indexes)
def test_applied_plan_leaves_nothing_to_create(count: int, there: set[int | str]) -> None:
    actual = [state(index) for index in there]
    plan = planned(count, actual)
    again = planned(count, applied(plan, actual))
    same = again.of(Outcome.EXISTING)
    assert again == Plan((*same, *plan.of(Outcome.EXTRA)))
    assert [match.index for match in same] == list(range(count))
    assert [create.index for create in plan.creates] == [index for index in range(count) if index not in there]
    assert len(plan.creates) + len(plan.of(Outcome.EXISTING)) == count


async def test_provisioning_of_thousands_of_queues_is_refused() -> None:
    with pytest.raises(Unsafe, match="1001 queues"):
        await provision(unconnected_pair(1001))


@pytest.mark.parametrize("counts", [None, *(Counts(**{each.name: 1}) for each in fields(Counts))])
def test_a_queue_is_kept_unless_it_is_counted_and_empty(counts: Counts | None) -> None:
    [item] = planned_removals(unconnected_pair(1), [state(7, counts)])
    assert item.outcome is Outcome.KEPT
    assert item.reason.startswith("it holds 1 message" if counts else "the number of its messages is unknown; ")


@pytest.mark.parametrize(
    "path",
    [
        "contoso/x-servicebus-transfer/0",
        "CONTOSO/X-ServiceBus-Transfer/4",
        "contoso/x-servicebus-transfer",
        "fabrikam/x-servicebus-transfer/9",
        "contoso-2/x-servicebus-transfer/9",
        "orders",
        "",
    ],
)
def test_check_refuses_queues_that_are_not_unexpected(path: str) -> None:
    with pytest.raises(Unsafe):
        check_removable("contoso", 5, path)


@given(wanted=st.sets(st.sampled_from(AuditFinding)))
def test_audit_fails_only_on_selected_findings(wanted: set[AuditFinding]) -> None:
    plan = plan_backlog(unconnected_pair(2), [state(1, Counts(active=1, total=1))])
    made = Audit(
        tuple(own_items(plan, 2, {})),
        destinations=(DestinationSummary("orders", 1, found=True, detects_duplicates=False),),
        unseen=(Unseen("contoso", "away"),),
    )
    assert made.findings == {AuditFinding.MISSING, AuditFinding.MESSAGES, AuditFinding.DUPLICATES, AuditFinding.UNSEEN}
    assert audit_exit_code(made, wanted) == (3 if made.findings & wanted else 0)
    assert audit_exit_code(made) == 3


def test_a_queue_was_last_used_when_it_was_made_changed_or_accessed() -> None:
    there = replace(state(0), usage=Usage(10, 100.0, 300.0, None))
    assert (utilisation(there, 1_000.0, 600.0).idle_seconds, utilisation(there, 1_000.0, 600.0).idle) == (700.0, True)
    assert not utilisation(there, 1_000.0, 701.0).idle
    assert not utilisation(there, 1_000.0, None).idle
    assert utilisation(replace(there, usage=None), 1_000.0, 1.0).idle_seconds is None
