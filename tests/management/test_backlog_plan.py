"""Plans of backlog queues: missing, drifted and unexpected ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import backlog
from sbpair.errors import Unsafe
from sbpair.management.backlog_plan import desired_queues, plan_backlog
from sbpair.management.comparison import Change, ChangeKind, Plan, check_plan
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.model.queues import Difference, QueueSpec, QueueState
from sbpair.model.tiers import PREMIUM, STANDARD, Tier


def pair(count: int = 10, primary: str = "contoso") -> Pair:
    def endpoint(name: str) -> Endpoint:
        authority = f"{name}.servicebus.windows.net"
        return Endpoint(name, authority, authority, 5671, tls=True, credential=Identity())

    return Pair("orders", endpoint(primary), endpoint("elsewhere"), backlog_queues=count)


def state(index: int | str, **changes: object) -> QueueState:
    spec = replace(backlog.queue_spec("contoso", 0), path=f"contoso/x-servicebus-transfer/{index}")
    partitioned = bool(changes.pop("partitioned", False))
    return QueueState(replace(spec, **changes), partitioned=partitioned)  # type: ignore[arg-type]


def planned(count: int, actual: list[QueueState], tier: Tier = STANDARD) -> Plan:
    return plan_backlog(desired_queues(pair(count)), actual, tier)


def applied(plan: Plan, actual: list[QueueState]) -> list[QueueState]:
    """Return the queues after every creation of the plan."""
    return [*actual, *(QueueState(create.entity) for create in plan.creates)]


def test_on_an_empty_namespace_everything_is_created_in_order() -> None:
    plan = planned(12, [])
    assert [create.index for create in plan.creates] == list(range(12))
    assert not plan.empty


def test_a_namespace_as_it_should_be_needs_nothing() -> None:
    plan = planned(3, [state(2), state(0), state(1)])
    assert plan.empty
    assert [match.index for match in plan.of(ChangeKind.UNCHANGED)] == [0, 1, 2]


def test_paths_are_compared_without_regard_to_case() -> None:
    there = QueueState(replace(backlog.queue_spec("contoso", 0), path="CONTOSO/X-Servicebus-Transfer/0"))
    plan = planned(1, [there])
    assert plan.empty


def test_drift_names_property_expected_and_actual() -> None:
    there = state(0, lock_duration="PT30S", max_delivery_count=10, requires_session=True)
    [drift] = planned(1, [there]).of(ChangeKind.DRIFTED)
    assert drift.differences == (
        Difference("LockDuration", "PT1M", "PT30S"),
        Difference("MaxDeliveryCount", 2147483647, 10),
        Difference("RequiresSession", expected=False, actual=True),
    )


@pytest.mark.parametrize(
    "duration", ["P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.477581S", "P10675199D", "P10675200D"]
)
def test_from_10675199_days_on_a_duration_is_for_ever(duration: str) -> None:
    assert planned(1, [state(0, default_message_time_to_live=duration)]).empty


def test_one_day_less_is_drift() -> None:
    [drift] = planned(1, [state(0, auto_delete_on_idle="P10675198D")]).of(ChangeKind.DRIFTED)
    assert drift.differences[0].property == "AutoDeleteOnIdle"


def test_a_duration_written_otherwise_is_the_same_duration() -> None:
    assert planned(1, [state(0, lock_duration="PT60S")]).empty


def test_a_duration_that_cannot_be_read_is_drift_and_no_failure() -> None:
    assert planned(1, [state(0, lock_duration="soon")]).of(ChangeKind.DRIFTED)


def test_a_partitioned_queue_of_standard_is_no_drift() -> None:
    there = state(0, max_size_in_megabytes=81920, partitioned=True)
    plan = planned(1, [there])
    assert plan.empty
    state_read = plan.changes[0].state
    assert state_read
    assert state_read.partitioned


@pytest.mark.parametrize("size", [5120, 16384, 20480, 81920])
def test_a_partitioned_queue_of_premium_is_not_divided(size: int) -> None:
    there = state(0, max_size_in_megabytes=size, partitioned=True)
    drifted = planned(1, [there], PREMIUM).of(ChangeKind.DRIFTED)
    told = [difference for drift in drifted for difference in drift.differences]
    assert told == ([] if size == 5120 else [Difference("MaxSizeInMegabytes", 5120, size)])


def test_partitioned_queue_drifts_by_its_chosen_size() -> None:
    there = state(0, max_size_in_megabytes=16384, partitioned=True)
    [drift] = planned(1, [there]).of(ChangeKind.DRIFTED)
    assert drift.differences == (Difference("MaxSizeInMegabytes", 5120, 1024),)


def test_81920_of_a_queue_that_is_not_partitioned_is_drift() -> None:
    assert planned(1, [state(0, max_size_in_megabytes=81920)]).of(ChangeKind.DRIFTED)


def test_unexpected_queues_exceed_the_count_or_have_no_index() -> None:
    plan = planned(1, [state("x"), state(0), state(12), state(7), state("007")])
    assert [extra.index for extra in plan.of(ChangeKind.UNEXPECTED)] == [7, 12, None, None]
    assert [extra.path.rsplit("/", 1)[1] for extra in plan.of(ChangeKind.UNEXPECTED)] == ["7", "12", "007", "x"]


def test_queues_outside_the_prefix_are_ignored() -> None:
    other = QueueState(QueueSpec("contoso-dr/x-servicebus-transfer/0"))
    assert planned(1, [state(0), other, QueueState(QueueSpec("orders"))]).empty


indexes = st.sets(st.one_of(st.integers(0, 30), st.sampled_from(["x", "00", "1x"])))


@given(st.integers(1, 20), indexes)
def test_applied_plan_leaves_nothing_to_create(count: int, there: set[int | str]) -> None:
    actual = [state(index) for index in there]
    plan = planned(count, actual)
    again = planned(count, applied(plan, actual))
    unchanged = again.of(ChangeKind.UNCHANGED)
    assert again == Plan((*unchanged, *plan.of(ChangeKind.UNEXPECTED)))
    assert [match.index for match in unchanged] == list(range(count))
    assert len(plan.creates) + len(plan.of(ChangeKind.UNCHANGED)) == count


def test_a_plan_that_creates_thousands_of_queues_is_refused() -> None:
    plan = planned(1001, [])
    with pytest.raises(Unsafe, match="1001 queues"):
        check_plan(plan)


def test_a_plan_that_creates_one_queue_twice_is_refused() -> None:
    create = Change(ChangeKind.CREATE, backlog.queue_spec("contoso", 0), 0)
    with pytest.raises(Unsafe, match="twice"):
        check_plan(Plan((create, create)))


def test_a_usual_plan_passes_the_guard() -> None:
    check_plan(planned(10, []))
