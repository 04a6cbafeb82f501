"""The leases that keep two movers off a pair: those of a machine, and the terms of the one across machines."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import LeaseHeld, NameInvalid, UsageError
from sbpair.model.pair import Pair
from sbpair.runs import file_lease
from sbpair.runs.file_lease import hold_machine_leases, lease_directory, lease_name
from sbpair.runs.session_lease import (
    VALID_SECONDS,
    ClockReading,
    LeaseHolder,
    check_queue,
    lease_session_id,
    valid_seconds,
)
from tests.runs.states import PAIR, endpoint


def with_secondary(authority: str) -> Pair:
    return replace(PAIR, secondary=replace(PAIR.secondary, authority=authority))


def test_pairs_with_other_queues_are_independent(tmp_path: Path) -> None:
    other_primary = replace(PAIR, primary=replace(PAIR.primary, name="fabrikam"))
    with (
        hold_machine_leases(PAIR.ends, tmp_path / "a", "r1"),
        hold_machine_leases(other_primary.ends, tmp_path / "b", "r2"),
        hold_machine_leases(with_secondary("elsewhere.servicebus.windows.net").ends, tmp_path / "c", "r3"),
        hold_machine_leases(PAIR.ends, tmp_path / "a", "r4", "orders"),
        hold_machine_leases(PAIR.ends, tmp_path / "a", "r5", "invoices"),
    ):
        assert len(list(lease_directory(os.environ).iterdir())) == 5


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a.servicebus.windows.net", "A.ServiceBus.windows.net.:5671", True),
        ("localhost:5673", "127.0.0.1:5673", True),
        ("[::1]:5673", "127.0.0.1:5673", True),
        ("127.0.0.1:5672", "127.0.0.1:5673", False),
        ("a.servicebus.windows.net", "b.servicebus.windows.net", False),
    ],
)
def test_host_names_are_normalized(one: str, other: str, same: bool) -> None:
    assert (lease_name(with_secondary(one).ends) == lease_name(with_secondary(other).ends)) == same


def test_an_unwritable_home_is_warned_about_and_the_state_is_still_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with caplog.at_level(logging.WARNING), hold_machine_leases(PAIR.ends, tmp_path, "r1") as check:
        check()
        assert "movers with another --state are not kept off this pair" in caplog.text
        with pytest.raises(LeaseHeld), hold_machine_leases(PAIR.ends, tmp_path, "r2"):
            pass


HOLD = """
import sys
from pathlib import Path
from sbpair.runs import file_lease
from tests.runs.states import PAIR

file_lease.MACHINE = sys.argv[1]
with file_lease.hold_machine_leases(PAIR.ends, Path(sys.argv[2]), "r1"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_mover_with_another_home_is_refused_until_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", HOLD, file_lease.MACHINE, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        with (
            pytest.raises(LeaseHeld, match=rf"^process {first.pid} is moving messages of this pair$"),
            hold_machine_leases(PAIR.ends, tmp_path / "b", "r2"),
        ):
            pass
        first.kill()
    with hold_machine_leases(PAIR.ends, tmp_path / "b", "r2") as check:
        check()


def test_the_session_id_is_the_name_of_the_primary() -> None:
    other = replace(PAIR, name="default", primary=endpoint("Contoso"))
    assert lease_session_id(PAIR.ends) == lease_session_id(other.ends) == "contoso"


def test_a_primary_with_a_name_too_long_for_a_session_is_refused() -> None:
    with pytest.raises(NameInvalid):
        lease_session_id(replace(PAIR, primary=endpoint("a" * 129)).ends)


@pytest.mark.parametrize("queue", ["leases", "movers/leases", "x-servicebus-transfer-leases", "a.b_c-d/0"])
def test_any_other_queue_can_carry_a_lease(queue: str) -> None:
    check_queue(queue)


INVALID = ("", "/", "leases/", "/leases", "a//b", "leases/$deadletterqueue", "leases/$management", "a lease", "leases?")


@pytest.mark.parametrize("queue", [*INVALID, "..", "läse", "a" * 261])
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


@pytest.mark.parametrize(
    ("loop", "awake", "before"), [(1, 1, True), (3, 1, False), (1, 3, False), (2, 1, False), (1, 2, False)]
)
def test_a_clock_reading_is_earlier_only_by_both_clocks(loop: float, awake: float, before: bool) -> None:
    assert ClockReading(loop, awake).is_before(ClockReading(2.0, 2.0)) is before
