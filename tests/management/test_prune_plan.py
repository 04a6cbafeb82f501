"""The plan of a prune and the findings of an audit: pure decisions over any queues."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import backlog
from sbpair.errors import Unsafe
from sbpair.management import backlog_plan
from sbpair.management.audit_findings import FULL_SHARE, is_full, own_items, utilisation, with_growth
from sbpair.management.auditing import Audit, AuditFinding, DestinationSummary, Unseen, audit_exit_code
from sbpair.management.pruning import prune_candidates
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.model.queues import Counts, QueueState, Usage, Utilisation
from sbpair.model.report import Outcome

GIGABYTE = 1024**3


def pair(count: int) -> Pair:
    ends = (
        Endpoint(name, f"{name}.servicebus.windows.net", name, 5671, tls=True, credential=Identity())
        for name in ("contoso", "elsewhere")
    )
    return Pair("orders", *ends, backlog_queues=count)


def state(path: str, counts: Counts | None = None, **changed: str) -> QueueState:
    spec = replace(backlog.queue_spec("contoso", 0), path=path, **changed)
    return QueueState(spec, counts=Counts() if counts is None else counts)


paths = st.one_of(
    st.integers(0, 30).map(lambda index: f"contoso/x-servicebus-transfer/{index}"),
    st.from_regex(r"[a-z0-9]{1,8}(/x-servicebus-transfer)?(/[0-9a-z]{1,3}){0,2}", fullmatch=True),
    st.text("/xX-0159cCoOnNtT", min_size=1, max_size=12).map(lambda rest: f"Contoso/X-ServiceBus-Transfer/{rest}"),
)
all_counts = st.builds(Counts, *[st.sampled_from([0, 0, 0, 1])] * len(fields(Counts)))


@given(there=st.lists(st.builds(state, paths, all_counts), max_size=12), count=st.integers(1, 20))
def test_only_empty_unexpected_queues_would_be_removed(there: list[QueueState], count: int) -> None:
    by_path = {each.spec.path: each for each in there}
    for candidate in prune_candidates(pair(count), list(by_path.values())):
        assert candidate.path.lower().startswith("contoso/x-servicebus-transfer/")
        index = backlog.index_of("contoso", candidate.path)
        assert index is None or index >= count
        counts = by_path[candidate.path].counts
        assert counts is not None
        figures = [getattr(counts, each.name) for each in fields(Counts)]
        assert bool(candidate.keep) is any(figures)
        backlog_plan.check_removable("contoso", count, candidate.path)


def test_uncounted_queue_is_kept() -> None:
    there = QueueState(replace(backlog.queue_spec("contoso", 0), path="contoso/x-servicebus-transfer/7"))
    [candidate] = prune_candidates(pair(1), [there])
    assert candidate.keep == "the number of its messages is unknown"


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
        backlog_plan.check_removable("contoso", 5, path)


# What an audit fails on


@given(wanted=st.sets(st.sampled_from(AuditFinding)))
def test_audit_fails_only_on_selected_findings(wanted: set[AuditFinding]) -> None:
    plan = backlog_plan.plan_backlog(
        backlog_plan.desired_queues(pair(2)), [state("contoso/x-servicebus-transfer/1", Counts(active=1, total=1))]
    )
    made = Audit(
        tuple(own_items(plan, 2, {})),
        destinations=(DestinationSummary("orders", 1, found=True, detects_duplicates=False),),
        unseen=(Unseen("contoso", "away"),),
    )
    assert made.findings == {AuditFinding.MISSING, AuditFinding.MESSAGES, AuditFinding.DUPLICATES, AuditFinding.UNSEEN}
    assert audit_exit_code(made, wanted) == (3 if made.findings & wanted else 0)
    assert audit_exit_code(made) == 3


def test_a_sound_pair_has_no_findings() -> None:
    plan = backlog_plan.plan_backlog(backlog_plan.desired_queues(pair(1)), [state("contoso/x-servicebus-transfer/0")])
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
    there = replace(state("contoso/x-servicebus-transfer/0"), usage=Usage(10, 100.0, 300.0, None))
    assert (utilisation(there, 1_000.0, 600.0).idle_seconds, utilisation(there, 1_000.0, 600.0).idle) == (700.0, True)
    assert not utilisation(there, 1_000.0, 701.0).idle
    assert not utilisation(there, 1_000.0, None).idle
    assert utilisation(replace(there, usage=None), 1_000.0, 1.0).idle_seconds is None
