"""The leases that keep two movers of a machine off a pair, whatever its name and state directory."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sbpair.errors import LeaseHeld, LeaseLost
from sbpair.runs import lease
from sbpair.runs.lease import hold_machine_leases, lease_directory, lease_name
from tests.runs.states import PAIR

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.model.pair import Pair


def with_secondary(authority: str) -> Pair:
    return replace(PAIR, secondary=replace(PAIR.secondary, authority=authority))


@pytest.mark.parametrize("second_state", ["b", None])
def test_a_second_mover_of_the_namespaces_is_refused(tmp_path: Path, second_state: str | None) -> None:
    second = replace(PAIR, name="another-name")
    directory = None if second_state is None else tmp_path / second_state
    with hold_machine_leases(PAIR, tmp_path / "a", "r1"):
        with (
            pytest.raises(
                LeaseHeld, match=rf"^process {os.getpid()} \(run r1, since \d{{4}}-.* UTC\) is moving"
            ) as held,
            hold_machine_leases(second, directory, "r2"),
        ):
            pass
        assert "--no-lease" in held.value.hint
    with hold_machine_leases(second, directory, "r2") as check:
        check()


def test_pairs_with_other_queues_are_independent(tmp_path: Path) -> None:
    other_primary = replace(PAIR, primary=replace(PAIR.primary, name="fabrikam"))
    with (
        hold_machine_leases(PAIR, tmp_path / "a", "r1"),
        hold_machine_leases(other_primary, tmp_path / "b", "r2"),
        hold_machine_leases(with_secondary("elsewhere.servicebus.windows.net"), tmp_path / "c", "r3"),
    ):
        assert len(list(lease_directory(os.environ).iterdir())) == 3


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
    assert (lease_name(with_secondary(one)) == lease_name(with_secondary(other))) == same


def test_a_deleted_file_is_a_lost_lease(tmp_path: Path) -> None:
    with hold_machine_leases(PAIR, tmp_path, "r1") as check:
        (lease_directory(os.environ) / lease_name(PAIR)).unlink()
        with pytest.raises(LeaseLost):
            check()


def test_an_unwritable_home_is_warned_about_and_the_state_is_still_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with caplog.at_level(logging.WARNING), hold_machine_leases(PAIR, tmp_path, "r1") as check:
        check()
        assert "movers with another --state are not kept off this pair" in caplog.text
        with pytest.raises(LeaseHeld), hold_machine_leases(PAIR, tmp_path, "r2"):
            pass


HOLD = """
import sys
from pathlib import Path
from sbpair.runs import lease
from tests.runs.states import PAIR

lease.MACHINE = sys.argv[1]
with lease.hold_machine_leases(PAIR, Path(sys.argv[2]), "r1"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_mover_with_another_home_is_refused_until_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", HOLD, lease.MACHINE, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        with (
            pytest.raises(LeaseHeld, match=rf"^process {first.pid} is moving messages of this pair$"),
            hold_machine_leases(PAIR, tmp_path / "b", "r2"),
        ):
            pass
        first.kill()
    with hold_machine_leases(PAIR, tmp_path / "b", "r2") as check:
        check()
