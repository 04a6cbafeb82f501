"""Faults: their fields, the counting of frames, and the effect of their end."""

import pytest

from sbpair.amqp_server.refusals import ServerBusy
from sbpair.amqp_server.shared_access import is_within
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.faults.fault_kinds import KINDS, BadField, FaultUnknown
from sbpair.emulator.faults.fault_points import Fault
from sbpair.emulator.frontends.amqp.connection_faults import FrameCounter

OTHER_THAN_ONE = {"entity": "orders", "status": 500, "method": "PUT", "mode": "500"}


def frame(size: int) -> bytes:
    return size.to_bytes(4) + bytes(size - 4)


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_frames_are_counted_in_any_pieces(piece) -> None:
    stream = b"AMQP\x03\x01\x00\x00" + frame(40) + frame(8) + b"AMQP\x00\x01\x00\x00" + frame(9) + frame(300)
    counter = FrameCounter()
    found = [
        start + end for start in range(0, len(stream), piece) for end in counter.ends(stream[start : start + piece])
    ]
    assert found == [48, 73, 373]


def test_a_counter_can_start_within_a_frame() -> None:
    stream = frame(40) + frame(50)
    assert FrameCounter(stream[:13]).ends(stream[13:]) == [27, 77]


@pytest.mark.parametrize(
    ("path", "entity", "whether"),
    [
        ("orders", "", True),
        ("orders", "orders", True),
        ("orders/$management", "orders", True),
        ("orders/$deadletterqueue/$management", "orders", True),
        ("orders/subscriptions/all", "orders", True),
        ("orders/x", "orders", False),
        ("orders", "orders/x", False),
        ("orders2", "orders", False),
    ],
)
def test_the_paths_within_an_entity(path, entity, whether) -> None:
    assert is_within(path, entity) is whether


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (Fault("meteor", "contoso"), "kind"),
        (Fault("drop", "fabrikam"), "namespace"),
        (Fault("entity-down", "contoso"), "entity"),
        (Fault("entity-down", "contoso", "nothing"), "entity"),
        (Fault("detach", "contoso", "orders/x"), "entity"),
        (Fault("latency", "contoso"), "ms"),
        (Fault("clock", "contoso"), "ms"),
        (Fault("namespace-down", "contoso", "orders"), "entity"),
        (Fault("namespace-down", "contoso", ms=1), "ms"),
        (Fault("throttle", "contoso", after_frames=1), "after_frames"),
        (Fault("drop", "contoso", partition=1), "partition"),
        (Fault("refuse-requests", "contoso"), "status"),
        (Fault("refuse-requests", "contoso", status=200), "status"),
        (Fault("refuse-requests", "contoso", status=500, method="put"), "method"),
        (Fault("latency", "contoso", ms=1, status=500), "status"),
        (Fault("partition-down", "contoso", partition=16), "partition"),
        (Fault("partition-down", "contoso", "parts", partition=16), "partition"),
        (Fault("partition-down", "contoso", "parts"), "partition"),
        (Fault("partition-down", "contoso", "orders", partition=0), "entity"),
        (Fault("identity-down", "contoso"), "mode"),
        (Fault("identity-down", "contoso", mode="away"), "mode"),
        (Fault("identity-down", "contoso", "orders", mode="hang"), "entity"),
        (Fault("latency", "contoso", ms=1, mode="hang"), "mode"),
        (Fault("relay-down", "contoso", "orders"), "entity"),
        (Fault("relay-no-listeners", "contoso", "none"), "entity"),
        (Fault("relay-down", "contoso", status=200), "status"),
        (Fault("relay-drop-listeners", "contoso", count=1), "count"),
        (Fault("relay-without-via", "contoso", ms=1), "ms"),
        (Fault("relay-swallow-response", "fabrikam"), "namespace"),
    ],
)
def test_a_bad_field_of_a_fault_is_named(faults, make_queue, fault, where) -> None:
    make_queue("parts", enable_partitioning=True)
    with pytest.raises(BadField) as refused:
        faults.begin(fault)
    assert refused.value.where == where
    assert faults.active() == {}


def test_every_kind_of_fault_begins_and_ends(faults, namespace, queue) -> None:
    namespace.hybrid_connections.create("hyco")
    for name, kind in KINDS.items():
        wanted = {field: OTHER_THAN_ONE.get(field, 1) for field in (*kind.needs, *kind.takes)}
        if kind.of_relay:
            wanted["entity"] = "hyco"
        if "partition" in wanted:
            continue
        with faults.during(name, "contoso", **wanted) as identity:
            assert list(faults.active()) == [identity]
    assert faults.active() == {}
    points = namespace.fault_points
    assert (points.is_limiting, points.acting, points.connection_faults, points.latency_seconds) == (False, [], [], 0.0)
    assert not namespace.is_down
    points.check(queue.path)


def test_an_unknown_fault_cannot_be_ended(faults) -> None:
    with pytest.raises(FaultUnknown):
        faults.end("fault-1")


def test_a_throttle_refuses_count_operations(faults, namespace, queue) -> None:
    with faults.during("throttle", "contoso", count=2):
        for _ in range(2):
            with pytest.raises(ServerBusy, match="50009"):
                namespace.fault_points.spend(1, queue.path)
        namespace.fault_points.spend(1, queue.path)
    with faults.during("throttle", "contoso", entity="orders"):
        assert namespace.fault_points.allowed(10, "orders") == 0
        assert namespace.fault_points.allowed(10, "elsewhere") == 10


def test_expire_locks_expires_all_locks(faults, queue, put) -> None:
    put(3)
    first, _ = queue.messages.receive(2)
    queue.add_transfer_dead_letter(first, "Refused", "text")
    queue.transfer_dead_letters.receive(1)
    faults.expire_locks("contoso", "orders")
    assert queue.messages.locked_count == queue.transfer_dead_letters.locked_count == 0
    assert [message.delivery_count for message in queue.messages.receive(3)] == [1, 1, 0]
    assert first.delivery_count == 1


def test_the_clock_fault_runs_due_timers(faults, queue, clock) -> None:
    queue.send([StoredMessage(b"", 1, scheduled_at_ms=clock.now_ms() + 5_000)])
    faults.advance_clock("contoso", 5_000)
    assert len(queue.messages.receive(1)) == 1


def test_faults_that_overlap_end_together(faults, namespace) -> None:
    for _ in range(2):
        faults.namespace_down("contoso")
    faults.throttle("contoso")
    faults.end_all()
    assert faults.active() == {}
    assert not namespace.is_down
    assert not namespace.fault_points.is_limiting
    with pytest.raises(ValueError, match="not down"):
        namespace.bring_up()


def test_a_fault_can_end_after_its_entity_is_deleted(faults, namespace, queue) -> None:
    begun = [
        faults.entity_down("contoso", queue.path),
        faults.swallow_acks("contoso", queue.path),
        faults.throttle("contoso", queue.path, count=1),
    ]
    namespace.delete_queue(queue.path)
    for identity in begun:
        faults.end(identity)
    assert faults.active() == {}
    with pytest.raises(BadField):
        faults.entity_down("contoso", queue.path)
