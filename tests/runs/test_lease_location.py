"""What the lease across machines decides without asking anybody: names, who holds it, and for how long it is sure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import NameInvalid, UsageError
from sbpair.model.pair import Endpoint, Pair, SasKey
from sbpair.runs.session_lease import (
    VALID_SECONDS,
    ClockReading,
    LeaseHolder,
    check_queue,
    lease_session_id,
    valid_seconds,
)


def pair(primary: str, name: str = "p") -> Pair:
    primary_end, secondary = [
        Endpoint(each, f"{each}:5671", each, 5671, tls=True, credential=SasKey("k", "v")) for each in (primary, "dr")
    ]
    return Pair(name, primary_end, secondary)


def test_the_session_id_is_the_name_of_the_primary() -> None:
    assert lease_session_id(pair("Contoso", "orders")) == lease_session_id(pair("contoso", "default")) == "contoso"


def test_a_primary_with_a_name_too_long_for_a_session_is_refused() -> None:
    with pytest.raises(NameInvalid):
        lease_session_id(pair("a" * 129))


@pytest.mark.parametrize("queue", ["leases", "movers/leases", "x-servicebus-transfer-leases", "a.b_c-d/0"])
def test_any_other_queue_can_carry_a_lease(queue: str) -> None:
    check_queue(queue)


@pytest.mark.parametrize(
    "queue",
    [
        "",
        "/",
        "leases/",
        "/leases",
        "a//b",
        "leases/$deadletterqueue",
        "leases/$management",
        "a lease",
        "leases?",
        "..",
        "läse",
        "a" * 261,
    ],
)
def test_an_invalid_queue_name_is_refused(queue: str) -> None:
    with pytest.raises(NameInvalid):
        check_queue(queue)


@pytest.mark.parametrize(
    "queue", ["contoso/x-servicebus-transfer/0", "other/X-ServiceBus-Transfer/leases", "contoso/x-servicebus-transfer"]
)
def test_a_backlog_queue_cannot_carry_a_lease(queue: str) -> None:
    with pytest.raises(UsageError, match="backlog queue"):
        check_queue(queue)


@given(
    st.builds(
        LeaseHolder,
        st.text("abc.-", max_size=255),
        st.integers(0, 2**31),
        st.text("abc-0", max_size=64),
        st.integers(0, 2**42),
    )
)
def test_a_holder_round_trips(holder: LeaseHolder) -> None:
    assert LeaseHolder.decode(holder.encode()) == holder


@given(
    st.one_of(
        st.none(),
        st.binary(),
        st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), st.lists).map(
            lambda value: json.dumps(value).encode()
        ),
        st.fixed_dictionaries(
            {
                "host": st.text() | st.integers(),
                "pid": st.integers() | st.text() | st.none(),
                "run": st.text(),
                "since_ms": st.integers() | st.floats() | st.just(10**30),
            }
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_state_decodes_to_a_printable_holder_or_none(state: bytes | None) -> None:
    found = LeaseHolder.decode(state)
    assert found is None or str(found).isprintable()


@given(st.floats(-1e9, 1e9))
def test_a_confirmation_is_valid_for_less_than_the_lock(lock_seconds: float) -> None:
    good = valid_seconds(lock_seconds)
    assert 0.0 < good <= VALID_SECONDS
    assert good < max(5.0, lock_seconds)


@pytest.mark.parametrize(("loop", "awake", "before"), [(1, 1, True), (3, 1, False), (1, 3, False), (3, 3, False)])
def test_a_clock_reading_is_earlier_only_by_both_clocks(loop: float, awake: float, before: bool) -> None:
    assert ClockReading(loop, awake).is_before(ClockReading(2.0, 2.0)) is before
