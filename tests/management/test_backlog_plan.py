"""Plans of backlog queues, and the decisions that audit and prune make by them."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import backlog
from sbpair.errors import Unsafe
from sbpair.management.audit_findings import (
    FULL_SHARE,
    Audit,
    AuditFinding,
    DestinationSummary,
    Unseen,
    audit_exit_code,
    is_full,
    own_items,
    utilisation,
    with_growth,
)
from sbpair.management.comparison import Plan, check_removable, plan_backlog
from sbpair.management.provisioning import provision
from sbpair.management.pruning import planned_removals
from sbpair.model.queues import Counts, Difference, QueueSpec, QueueState, Usage, Utilisation
from sbpair.model.report import Outcome
from sbpair.model.tiers import PREMIUM, STANDARD, Tier
from tests.kit.pairs import UNDER_CONTOSO, unconnected_pair

GIGABYTE = 1024**3


def described(path: str, counts: Counts | None = None, *, partitioned: bool = False, **changes: Any) -> QueueState:
    """Describe a queue like a backlog queue, apart from the changes."""
    return QueueState(replace(backlog.queue_spec("contoso", 0), path=path, **changes), partitioned, counts)


def state(index: int | str, counts: Counts | None = None, **changes: Any) -> QueueState:
    return described(f"{UNDER_CONTOSO}{index}", counts, **changes)


def planned(count: int, actual: list[QueueState], tier: Tier = STANDARD) -> Plan:
    return plan_backlog(unconnected_pair(count), actual, tier)


def unchanged(plan: Plan) -> bool:
    return all(change.kind is Outcome.EXISTING for change in plan.changes)


def applied(plan: Plan, actual: list[QueueState]) -> list[QueueState]:
    """Return the queues after every creation of the plan."""
    return [*actual, *(QueueState(create.entity) for create in plan.creates)]


def test_drift_names_property_expected_and_actual() -> None:
    there = state(0, lock_duration="PT30S", max_delivery_count=10, requires_session=True)
    [drift] = planned(1, [there]).of(Outcome.DRIFTED)
    assert drift.differences == (
        Difference("LockDuration", "PT1M", "PT30S"),
        Difference("MaxDeliveryCount", 2147483647, 10),
        Difference("RequiresSession", expected=False, actual=True),
    )


FOR_EVER = ("P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.477581S", "P10675199D", "P10675200D")


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(described("CONTOSO/X-Servicebus-Transfer/0"), id="case of the path"),
        *(pytest.param(state(0, default_message_time_to_live=each), id=f"for ever: {each}") for each in FOR_EVER),
        pytest.param(state(0, lock_duration="PT60S"), id="a duration written otherwise"),
        pytest.param(state(0, max_size_in_megabytes=81920, partitioned=True), id="of 16 partitions on Standard"),
    ],
)
def test_equal_properties_are_no_drift(there: QueueState) -> None:
    assert unchanged(planned(1, [there]))


@pytest.mark.parametrize(
    ("there", "name"),
    [
        pytest.param(state(0, auto_delete_on_idle="P10675198D"), "AutoDeleteOnIdle", id="one day less than for ever"),
        pytest.param(state(0, lock_duration="soon"), "LockDuration", id="an unreadable duration"),
        pytest.param(state(0, max_size_in_megabytes=81920), "MaxSizeInMegabytes", id="the size of 16 partitions"),
    ],
)
def test_other_properties_are_drift(there: QueueState, name: str) -> None:
    [drift] = planned(1, [there]).of(Outcome.DRIFTED)
    assert [each.property for each in drift.differences] == [name]


@pytest.mark.parametrize("size", [5120, 16384, 20480, 81920])
def test_a_partitioned_queue_of_premium_is_not_divided(size: int) -> None:
    there = state(0, max_size_in_megabytes=size, partitioned=True)
    drifted = planned(1, [there], PREMIUM).of(Outcome.DRIFTED)
    found = [difference for drift in drifted for difference in drift.differences]
    assert found == ([] if size == 5120 else [Difference("MaxSizeInMegabytes", 5120, size)])


def test_partitioned_queue_drifts_by_its_chosen_size() -> None:
    there = state(0, max_size_in_megabytes=16384, partitioned=True)
    [drift] = planned(1, [there]).of(Outcome.DRIFTED)
    assert drift.differences == (Difference("MaxSizeInMegabytes", 5120, 1024),)


def test_unexpected_queues_exceed_the_count_or_have_no_index() -> None:
    plan = planned(1, [state("x"), state(0), state(12), state(7), state("007")])
    assert [extra.index for extra in plan.of(Outcome.EXTRA)] == [7, 12, None, None]
    assert [extra.path.rsplit("/", 1)[1] for extra in plan.of(Outcome.EXTRA)] == ["7", "12", "007", "x"]


def test_queues_outside_the_prefix_are_ignored() -> None:
    other = QueueState(QueueSpec("contoso-dr/x-servicebus-transfer/0"))
    assert unchanged(planned(1, [state(0), other, QueueState(QueueSpec("orders"))]))


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


paths = st.one_of(
    st.integers(0, 30).map(lambda index: f"contoso/x-servicebus-transfer/{index}"),
    st.from_regex(r"[a-z0-9]{1,8}(/x-servicebus-transfer)?(/[0-9a-z]{1,3}){0,2}", fullmatch=True),
    st.text("/xX-0159cCoOnNtT", min_size=1, max_size=12).map(lambda rest: f"Contoso/X-ServiceBus-Transfer/{rest}"),
)
all_counts = st.builds(Counts, *[st.sampled_from([0, 0, 0, 1])] * len(fields(Counts)))


@given(there=st.lists(st.builds(described, paths, all_counts), max_size=12), count=st.integers(1, 20))
def test_only_empty_unexpected_queues_would_be_removed(there: list[QueueState], count: int) -> None:
    by_path = {each.spec.path: each for each in there}
    for item in planned_removals(unconnected_pair(count), list(by_path.values())):
        assert item.name.lower().startswith("contoso/x-servicebus-transfer/")
        index = backlog.index_of("contoso", item.name)
        assert index is None or index >= count
        counts = by_path[item.name].counts
        assert counts is not None
        figures = [getattr(counts, each.name) for each in fields(Counts)]
        assert item.outcome is (Outcome.KEPT if any(figures) else Outcome.WOULD_REMOVE)
        check_removable("contoso", count, item.name)


def test_uncounted_queue_is_kept() -> None:
    [item] = planned_removals(unconnected_pair(1), [state(7)])
    assert item.outcome is Outcome.KEPT
    assert item.reason.startswith("the number of its messages is unknown; ")


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


def test_a_sound_pair_has_no_findings() -> None:
    plan = plan_backlog(unconnected_pair(1), [state(0)])
    made = Audit(tuple(own_items(plan, 1, {})))
    assert (made.findings, [item.outcome for item in made]) == (frozenset(), [Outcome.OK])


@given(
    size=st.integers(0, 5 * GIGABYTE),
    later=st.one_of(st.none(), st.integers(0, 5 * GIGABYTE)),
    seconds=st.one_of(st.just(0.0), st.floats(0.1, 3600)),
)
def test_when_a_queue_is_full_follows_from_how_fast_it_grows(size: int, later: int | None, seconds: float) -> None:
    fill = with_growth(Utilisation(max_bytes=5 * GIGABYTE, size_bytes=size), later, seconds)
    if later is None or not seconds:
        assert (fill.size_bytes, fill.bytes_per_second, fill.full_in_seconds) == (size, None, None)
        return
    assert fill.size_bytes == later
    assert (fill.full_in_seconds is None) is (later <= size)
    if fill.full_in_seconds is not None and fill.bytes_per_second is not None:
        assert fill.full_in_seconds * fill.bytes_per_second == pytest.approx(5 * GIGABYTE - later)
    assert is_full(fill) or later < FULL_SHARE * 5 * GIGABYTE


def test_a_queue_was_last_used_when_it_was_made_changed_or_accessed() -> None:
    there = replace(state(0), usage=Usage(10, 100.0, 300.0, None))
    assert (utilisation(there, 1_000.0, 600.0).idle_seconds, utilisation(there, 1_000.0, 600.0).idle) == (700.0, True)
    assert not utilisation(there, 1_000.0, 701.0).idle
    assert not utilisation(there, 1_000.0, None).idle
    assert utilisation(replace(there, usage=None), 1_000.0, 1.0).idle_seconds is None
