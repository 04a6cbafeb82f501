"""Replication over real sockets: the guarantees of senders and receiver, and the remaining risks."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusError,
)

import sbpair
from sbpair import aio
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import BothFailed, LeaseHeld, MachineLacks, NameInvalid, StateRefused, UsageError
from sbpair.model.pair import Pair
from sbpair.replication.events import (
    DuplicateCompleted,
    NoKey,
    OneSideOnly,
    Redelivered,
    RolesSwapped,
    SideBack,
    SideLost,
    Unanswered,
)
from tests.kit.failover_rig import (
    AIO_FIRST,
    KINDS,
    PAIRED_CLIENTS,
    PRIMARY,
    SECONDARY,
    SLOW,
    SYNC_FIRST,
    a_message,
)
from tests.kit.fixtures import Official
from tests.replication.both import Both, drained, twins

pytestmark = PAIRED_CLIENTS


@KINDS
def test_active_sender_copies_to_both_sides_and_receiver_gives_one(both: Both, kind: str) -> None:
    with both.active(kind) as (sender, log):
        assert sender.send_messages(a_message("one", session_id="s")) == ("primary", "secondary")
        assert sender.send_messages([a_message("two"), ServiceBusMessage("three", message_id=None)])
        assert sender.send_messages([]) == ()
        assert log.events == []
    here, there = both.held
    assert here == there
    assert here[:2] == ["one", "two"]
    assert len(set(here)) == 3
    with both.receiver(kind) as (receiver, log):
        assert Counter(drained(both, receiver)) == Counter(here)
        assert both.held == ([], [])
        assert {event.key for event in log.of(DuplicateCompleted)} == set(here)
        assert len(log.events) == 3


@pytest.mark.parametrize(
    ("kind", "fault", "where"),
    [
        ("sync", "namespace_down", (PRIMARY,)),
        pytest.param("aio", "namespace_down", (SECONDARY,), marks=SLOW),
        pytest.param("aio", "entity_down", (SECONDARY, "orders"), marks=SLOW),
        pytest.param("sync", "stall", (PRIMARY,), marks=SLOW),
        pytest.param("sync", "throttle", (SECONDARY, "orders"), marks=SLOW),
    ],
)
def test_active_send_succeeds_with_one_side_and_reports_the_other(
    both: Both, kind: str, fault: str, where: tuple[str, ...]
) -> None:
    missing = "primary" if where[0] == PRIMARY else "secondary"
    with both.active(kind, timeout=3) as (sender, log):
        sender.send_messages(a_message("before"))
        with both.broken(fault, *where):
            (took,) = sender.send_messages(a_message("m"))
        assert took != missing
        (event,) = log.of(OneSideOnly)
        assert (event.accepted, event.missing, event.message_ids) == (took, missing, ("m",))
        assert sender.send_messages(a_message("after")) == ("primary", "secondary")
        assert [each.message_ids for each in log.of(OneSideOnly)] == [("m",)]
    with both.receiver(kind) as (receiver, _log):
        assert set(drained(both, receiver)) == {"before", "m", "after"}
    assert both.held == ([], [])


@SYNC_FIRST
def test_both_failed_has_both_reasons(both: Both, kind: str) -> None:
    with both.active(kind) as (sender, log):
        with (
            both.broken("namespace_down", PRIMARY),
            both.broken("namespace_down", SECONDARY),
            pytest.raises(BothFailed, match=r"the primary: .*; the secondary: ") as raised,
        ):
            sender.send_messages(a_message("m"), timeout=5)
        assert set(raised.value.reasons) == {"primary", "secondary"}
        assert raised.value.retriable
        assert raised.value.in_doubt == ()
        assert log.events == []
    both.with_key("primary", "d3Jvbmc=")
    both.with_key("secondary", "d3Jvbmc=")
    with both.active(kind) as (sender, _log), pytest.raises(BothFailed) as raised:
        sender.send_messages(a_message("m"), timeout=5)
    assert not raised.value.retriable
    assert both.held == ([], [])


def test_a_copy_after_the_window_is_given_again(both: Both) -> None:
    """Active: a message delayed until its key was forgotten is given twice."""
    with both.active() as (sender, _log):
        sender.send_messages([a_message(f"m{number}") for number in range(3)])
    with both.receiver(window_count=2) as (receiver, log):
        with both.broken("namespace_down", SECONDARY):
            first = drained(both, receiver, 3)
            assert receiver.receive_messages(1, max_wait_time=0.3) == []
        assert first == ["m0", "m1", "m2"]
        assert [event.side for event in log.of(SideLost)] == ["secondary"]
        assert drained(both, receiver) == ["m0"]
        assert [event.key for event in log.of(DuplicateCompleted)] == ["m1", "m2"]
        assert log.of(Redelivered) == []
        assert [event.side for event in log.of(SideBack)] == ["secondary"]
    assert both.held == ([], [])


@pytest.mark.parametrize(
    ("kind", "fault", "where"),
    [
        ("sync", "namespace_down", (PRIMARY,)),
        pytest.param("aio", "stall", (PRIMARY,), marks=SLOW),
        pytest.param("sync", "throttle", (PRIMARY, "orders"), marks=SLOW),
        pytest.param("aio", "entity_down", (PRIMARY, "orders"), marks=SLOW),
    ],
)
def test_roles_are_swapped_by_an_error_that_counts(both: Both, kind: str, fault: str, where: tuple[str, ...]) -> None:
    with both.passive(kind, timeout=5) as (sender, log):
        assert sender.send_messages(a_message("before")) == "primary"
        with both.broken(fault, *where):
            assert sender.send_messages(a_message("m")) == "secondary"
            assert sender.active == "secondary"
        assert sender.send_messages(a_message("stays")) == "secondary"
        (event,) = log.of(RolesSwapped)
        assert (event.active, event.backup) == ("secondary", "primary")
        sender.swap_roles()
        assert sender.send_messages(a_message("back")) == "primary"
        doubtful_ids = {each for event in log.of(Unanswered) for each in event.message_ids}
    with both.receiver(kind) as (receiver, _log):
        assert set(drained(both, receiver)) == {"before", "m", "stays", "back"}
    assert doubtful_ids <= {"m"}
    assert both.held == ([], [])


def test_a_receiver_removes_the_duplicate_of_an_unanswered_send(both: Both) -> None:
    """Passive: the active side accepted a message without answering."""
    with both.passive() as (sender, log):
        sender.send_messages(a_message("before"))
        with both.broken("swallow_acks", PRIMARY, "orders"):
            assert sender.send_messages(a_message("m"), timeout=4) == "secondary"
        assert [(event.side, event.message_ids) for event in log.of(Unanswered)] == [("primary", ("m",))]
    assert both.held == (["before", "m"], ["m"])
    with both.receiver() as (receiver, _log):
        assert Counter(drained(both, receiver)) == Counter(["before", "m"])


def received(receiver: Any, seconds: float = 3) -> Any:
    (message,) = receiver.receive_messages(1, max_wait_time=seconds)
    return message


@pytest.mark.parametrize(
    ("kind", "how"),
    [("sync", "abandon"), pytest.param("aio", "dead_letter", marks=SLOW), pytest.param("aio", "abandon", marks=SLOW)],
)
def test_the_other_copy_is_given_after_a_release(both: Both, kind: str, how: str) -> None:
    twins(both, "m")
    with both.receiver(kind) as (receiver, log):
        first = received(receiver)
        # The other one comes, and is held: nobody can say yet what becomes of the first.
        assert receiver.receive_messages(1, max_wait_time=1) == []
        assert both.held == (["m"], ["m"])
        getattr(receiver, f"{how}_message")(first)
        second = received(receiver)
        assert (second.message_id, second is first) == ("m", False)
        receiver.complete_message(second)
        drained(both, receiver)
        assert log.of(Redelivered) == []
    assert both.held == ([], [])
    dead = both.do(lambda: [*both.orders.dead_letters.peek(0, 9), *both.copy.dead_letters.peek(0, 9)])
    assert len(dead) == (how == "dead_letter")


@AIO_FIRST
def test_the_other_copy_is_given_after_a_lost_lock(both: Both, kind: str) -> None:
    twins(both, "m")
    with both.receiver(kind) as (receiver, log):
        first = received(receiver)
        assert receiver.receive_messages(1, max_wait_time=1) == []
        both.do(lambda: both.faults.expire_locks(PRIMARY, "orders"))
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        assert set(drained(both, receiver)) == {"m"}
        assert {event.key for event in log.of(Redelivered)} == {"m"}
    assert both.held == ([], [])


@pytest.mark.slow
def test_renewing_a_lock_renews_those_of_held_copies(both: Both) -> None:
    twins(both, "m")
    with both.receiver() as (receiver, _log):
        first = received(receiver)
        assert receiver.receive_messages(1, max_wait_time=1) == []
        before = first.locked_until_utc
        both.running.advance(20)
        assert receiver.renew_message_lock(first) > before
        both.running.advance(55)
        receiver.complete_message(first)
        assert both.held == ([], [])


@pytest.mark.slow
def test_an_unavailable_side_does_not_block_the_other(both: Both) -> None:
    twins(both, "m")
    both.put("secondary", "only")
    for fault in ("namespace_down", "stall"):
        with both.broken(fault, PRIMARY), both.receiver("aio") as (receiver, log):
            message = received(receiver, 30)
            assert message.message_id == "m"
            receiver.abandon_message(message)
            assert [event.side for event in log.of(SideLost)] == ["primary"]
    with both.receiver() as (receiver, _log):
        assert sorted(drained(both, receiver)) == ["m", "only"]
    assert both.held == ([], [])


@pytest.mark.slow
def test_both_sides_down_raise_and_a_returned_side_is_reported(both: Both) -> None:
    twins(both, "m")
    with both.receiver("aio") as (receiver, log):
        with (
            both.broken("namespace_down", PRIMARY),
            both.broken("namespace_down", SECONDARY),
            pytest.raises(BothFailed, match="either namespace"),
        ):
            receiver.receive_messages(1, max_wait_time=1)
        assert {event.side for event in log.of(SideLost)} == {"primary", "secondary"}
        found: list[str] = []
        while not found:  # an attempt that began while both were down may fail once more
            with suppress(BothFailed):
                found = drained(both, receiver)
        assert found == ["m"]
        assert {event.side for event in log.of(SideBack)} == {"primary", "secondary"}


@pytest.mark.slow
@KINDS
def test_everything_is_given_once_through_flapping_sides(both: Both, kind: str, tmp_path: Path) -> None:
    names = [f"m{number:02}" for number in range(30)]
    found: list[str] = []
    doubtful_ids: set[str] = set()
    with both.active(kind, retries=1) as (sender, _log):
        for side, part in ((PRIMARY, names[:10]), (SECONDARY, names[10:20]), (None, names[20:])):
            for name in part:
                sender.send_messages(a_message(name), timeout=6)
            if side:
                both.do(lambda side=side: both.faults.detach(side))
                with both.receiver(kind, store=tmp_path / "keys.db") as (receiver, log):
                    found += drained(both, receiver, 3)
                    both.do(lambda side=side: both.faults.detach(side))
                    with suppress(ServiceBusError):
                        found += drained(both, receiver, 3)
                    doubtful_ids |= {event.key for event in log.of(Redelivered)}
    with both.receiver(kind, store=tmp_path / "keys.db") as (receiver, log):
        found += drained(both, receiver)
        doubtful_ids |= {event.key for event in log.of(Redelivered)}
    assert set(found) >= set(names) - doubtful_ids
    assert {name for name, times in Counter(found).items() if times > 1} <= doubtful_ids
    assert both.held == ([], [])


KILLED = """
import os, signal, sys
from pathlib import Path
from sbpair import DedupReceiver, Pair
from sbpair.model.connection_string import endpoint_from_connection_string as at
pair = Pair("p", at(os.environ["ONE"], name="contoso"), at(os.environ["OTHER"], name="contoso-dr"))
with DedupReceiver(pair, "orders", store=sys.argv[1]) as receiver:
    if sys.argv[2] == "unrecorded":
        receiver._copies.completed = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    (message,) = receiver.receive_messages(1, max_wait_time=20)
    print(message.message_id, flush=True)
    if sys.argv[2] != "given":
        receiver.complete_message(message)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("when", "again", "named"),
    [
        pytest.param("given", ["m"], set(), marks=SLOW),
        ("unrecorded", ["m"], {"m"}),
        pytest.param("completed", [], set(), marks=SLOW),
    ],
)
def test_a_kill_loses_nothing_and_reports_redeliveries(
    both: Both, tmp_path: Path, when: str, again: list[str], named: set[str]
) -> None:
    twins(both, "m")
    one, other = (each.connection_string for each in both.running.ready)
    environ = {**os.environ, "ONE": one, "OTHER": other}
    store = tmp_path / "keys.db"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(store), when], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "m\n"), done.stderr
    both.running.advance(120)
    with both.receiver(store=store) as (receiver, log):
        assert drained(both, receiver) == again
        assert {event.key for event in log.of(Redelivered)} == named
    assert both.held == ([], [])


@pytest.mark.slow
def test_copies_are_recognized_by_the_users_key(both: Both) -> None:
    with both.active() as (sender, _log):
        for number in range(2):
            sender.send_messages(
                ServiceBusMessage("x", subject="s", message_id=f"m{number}", application_properties={"order": 7})
            )
    for key in (lambda message: message.message_id[:1], "property:order", "subject"):
        with both.receiver(key=key) as (receiver, log):
            first = received(receiver)
            assert receiver.receive_messages(9, max_wait_time=1) == []
            receiver.abandon_message(first)
            assert log.events == []
    with both.receiver(key="subject") as (receiver, log):
        assert len(drained(both, receiver)) == 1
        assert {event.key for event in log.of(DuplicateCompleted)} == {"s"}


@pytest.mark.slow
def test_a_message_without_a_key_is_given(both: Both) -> None:
    twins(both, "m")

    def broken(message: Any) -> str:
        raise KeyError(message.message_id)

    for key in ("property:order", "subject", broken):
        with both.receiver(key=key) as (receiver, log):
            messages = [received(receiver), received(receiver)]
            assert {event.side for event in log.of(NoKey)} == {"primary", "secondary"}
            for message in messages:
                receiver.abandon_message(message)
    with both.receiver(key=broken) as (receiver, log):
        assert drained(both, receiver) == ["m", "m"]
        assert "KeyError" in log.of(NoKey)[0].reason
    assert both.held == ([], [])


@pytest.mark.slow
def test_a_subscription_can_be_received_from(both: Both) -> None:
    for each in both.running.ready:
        with Official("sync").admin(each.connection_string) as admin:
            admin.create_topic("news")
            admin.create_subscription("news", "all")
    with both.active(entity="news") as (sender, _log):
        sender.send_messages(a_message("m"))
    with both.receiver(entity="news", subscription_name="all", max_wait_time=2) as (receiver, log):
        found = []
        for message in receiver:
            receiver.complete_message(message)
            found.append(message.message_id)
        assert found == ["m"]
        assert len(log.of(DuplicateCompleted)) == 1


def test_an_entity_with_sessions_is_refused(both: Both) -> None:
    sessions = QueueDescription(requires_session=True)
    both.do(lambda: both.running.namespace.create_queue("sessions", sessions))
    both.do(lambda: both.running.other.create_queue("sessions", sessions))
    with both.receiver(entity="sessions") as (receiver, _log), pytest.raises(ServiceBusError, match=r"(?i)session"):
        receiver.receive_messages(1, max_wait_time=2)


@pytest.mark.slow
async def test_a_cancelled_receive_loses_nothing(both: Both) -> None:
    async with aio.DedupReceiver(both.pair, "orders") as receiver:
        receiving = asyncio.create_task(receiver.receive_messages(1, 30))
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await asyncio.to_thread(twins, both, "m")
        (found,) = await receiver.receive_messages(1, 10)
        await receiver.complete_message(found)
        assert await receiver.receive_messages(1, 1) == []
        assert found.message_id == "m"
    assert both.held == ([], [])


def test_invalid_arguments_of_constructors_are_refused(both: Both, tmp_path: Path) -> None:
    pair = both.pair
    with pytest.raises(UsageError, match="same namespace"):
        Pair("p", pair.primary, pair.primary)
    for make in (sbpair.ActiveSender, sbpair.PassiveSender, sbpair.DedupReceiver, aio.ActiveSender, aio.DedupReceiver):
        for wrong in ("", "a//b", "/orders", "no spaces", "x" * 261):
            with pytest.raises(NameInvalid):
                make(pair, wrong)
    with pytest.raises(UsageError):
        sbpair.ActiveSender(pair, "orders", retries=-1)
    with pytest.raises(ValueError, match="greater than 0"):
        sbpair.ActiveSender(pair, "orders", timeout=0)
    with pytest.raises(UsageError, match="failover_on"):
        sbpair.PassiveSender(pair, "orders", failover_on="sometimes")
    refused: list[dict[str, Any]] = [
        *({"key": key} for key in ("property:", "property", "prop:x", "body", "ID", "", None, 7, ("id",), b"id")),
        *({"window_seconds": seconds} for seconds in (0, -5, float("nan"), float("inf"))),
        *({"window_count": count} for count in (0, -5)),
        {"window_count": None, "window_seconds": None},
        {"store": tmp_path},
        {"store": tmp_path / "missing" / "keys.db"},
        {"store": Path(__file__) / "keys.db"},
        {"store": ""},
        {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE},
        {"subscription_name": "no spaces"},
    ]
    for wrong in refused:
        with pytest.raises(UsageError):
            sbpair.DedupReceiver(pair, "orders", **wrong)
    for wrong in ({"receive_mode": "sometimes"}, {"max_wait_time": 0}, {"max_wait_time": -1}):
        with pytest.raises(ValueError, match=r"sometimes|greater than 0"):
            sbpair.DedupReceiver(pair, "orders", **wrong)
    with pytest.raises(MachineLacks):
        sbpair.DedupReceiver(pair, "orders", store=tmp_path / ("x" * 300))
    store = tmp_path / "keys.db"
    with both.receiver(store=store), pytest.raises(LeaseHeld):
        sbpair.DedupReceiver(pair, "orders", store=store)
    for wrong in ({"key": "subject"}, {"subscription_name": "all"}):
        with pytest.raises(StateRefused):
            sbpair.DedupReceiver(pair, "orders", store=store, **wrong)


def test_invalid_arguments_are_refused_before_any_transfer(both: Both) -> None:
    with both.active() as (sender, log):
        for thing in (None, 7, "text", [a_message("fine"), "text"]):
            with pytest.raises(TypeError):
                sender.send_messages(thing)
        with pytest.raises(UsageError, match="already has a property x-ms-path"):
            sender.send_messages(ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
        for seconds in (0, -1):
            with pytest.raises(ValueError, match="greater than 0"):
                sender.send_messages(a_message("m"), timeout=seconds)
        assert log.events == []
    with pytest.raises(ValueError, match="closed"):
        sender.send_messages(a_message("m"))
    with both.receiver() as (receiver, _log):
        for wrong in ((0, 1), (-1, 1), (1, 0), (1, -1)):
            with pytest.raises(ValueError, match=r"at least 1|greater than 0"):
                receiver.receive_messages(*wrong)
        both.put("primary", "m")
        message = received(receiver)
        receiver.complete_message(message)
        for settle in (receiver.complete_message, receiver.abandon_message, receiver.dead_letter_message):
            with pytest.raises(MessageLockLostError):
                settle(message)
    with pytest.raises(ValueError, match="closed"):
        receiver.receive_messages()
    assert both.held == ([], [])


def test_the_order_of_copies_may_differ_between_sides(both: Both) -> None:
    """Active: a message that one side missed, and that is sent again, comes after later ones."""
    with both.active() as (sender, _log):
        with both.broken("entity_down", PRIMARY, "orders"):
            assert sender.send_messages(a_message("first"), timeout=3) == ("secondary",)
        sender.send_messages(a_message("second"))
        sender.send_messages(a_message("first"))
    assert both.held == (["second", "first"], ["first", "second", "first"])
    with both.receiver() as (receiver, _log):
        assert sorted(drained(both, receiver)) == ["first", "second"]
    assert both.held == ([], [])


def test_messages_of_a_failed_side_come_late_or_never(both: Both) -> None:
    """Passive: the first message is unreachable until its data center returns."""
    with both.passive() as (sender, _log), both.receiver() as (receiver, _log):
        sender.send_messages(a_message("first"))
        with both.broken("namespace_down", PRIMARY):
            sender.send_messages(a_message("second"), timeout=6)
            assert drained(both, receiver, 1) == ["second"]
        assert drained(both, receiver) == ["first"]
        sender.swap_roles()
        sender.send_messages(a_message("lost"))
        sender.swap_roles()
    both.do(lambda: both.running.namespace.delete_queue("orders"))
    both.do(lambda: both.running.namespace.create_queue("orders"))
    with both.receiver() as (receiver, _log):
        assert drained(both, receiver) == []
