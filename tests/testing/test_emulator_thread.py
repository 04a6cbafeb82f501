"""An emulator in a thread, for programs that block."""

import socket
import threading
from datetime import timedelta

import pytest

from sbpair.emulator.service_errors import EntityNotFound
from sbpair.errors import PortInUse, SbpairError, UsageError
from sbpair.testing import EmulatedPair, EmulatorOptions, EmulatorThread, ManualClock, RequestedNamespace


def port_of(connection_string: str) -> int:
    return int(connection_string.partition("127.0.0.1:")[2].partition(";")[0])


def test_ports_are_open_within_the_block_only() -> None:
    before = threading.active_count()
    with EmulatorThread() as thread:
        port = port_of(thread["contoso"].connection_string)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"AMQP\x03\x01\x00\x00")
            assert connection.recv(4) == b"AMQP"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert threading.active_count() == before


def test_it_takes_the_arguments_of_an_emulator() -> None:
    namespaces = [RequestedNamespace("one", 0, "premium", 2)]
    with EmulatorThread(namespaces, clock=ManualClock(), options=EmulatorOptions(credits=5)) as thread:
        before = thread.do(thread.emulator.clock.now_ms)
        thread["one"].advance(1_000)
        assert thread.do(thread.emulator.clock.now_ms) == before + 1_000
        thread["one"].declare(queues=["orders"])
        assert thread.emulator.namespaces["one"].queue("orders").description.partition_count == 2


def test_an_error_at_the_start_is_raised_where_it_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse), EmulatorThread([("contoso", taken.getsockname()[1])]):
            pass


def test_an_error_of_a_call_is_raised_to_its_caller() -> None:
    with EmulatorThread() as thread:
        namespace = thread["contoso"]
        with pytest.raises(EntityNotFound):
            namespace.counts("nowhere")
        with pytest.raises(UsageError, match=r"Queues\[0\].Name: 'a b' contains"):
            namespace.declare(queues=["a b", "fine"])
        with pytest.raises(EntityNotFound):
            namespace.counts("fine")
        namespace.declare(queues=["fine"], topics={"news": ["audit"]})
        namespace.declare(queues=["fine"])
        assert namespace.counts("fine").total == namespace.counts("news/subscriptions/audit").total == 0


def test_a_fault_ends_with_its_block_also_after_an_error() -> None:
    with EmulatorThread() as thread:
        namespace = thread["contoso"]
        with pytest.raises(KeyError, match="seen"), namespace.fault("namespace-down"):
            raise KeyError("seen" if thread.emulator.namespaces["contoso"].is_down else "up")
        assert not thread.emulator.namespaces["contoso"].is_down
        with pytest.raises(Exception, match="'no-fault' is none of"), namespace.fault("no-fault"):
            pass


def test_a_wrong_field_of_a_fault_is_refused_by_name() -> None:
    with EmulatorThread() as thread:
        for fields, message in (
            ({"entty": "orders"}, "entty: unknown; expected entity"),
            ({"colour": "red"}, "colour: unknown; expected one of kind, namespace, entity"),
            ({"count": "1"}, "count: a whole number from 0 is expected"),
            ({"namespace": "contoso-dr"}, "namespace: not expected: a fault of this object is one of 'contoso'"),
        ):
            with pytest.raises(SbpairError, match=message), thread["contoso"].fault("throttle", **fields):
                pass
        with thread["contoso"].fault("throttle", entity=None, count=1):
            assert len(thread.emulator.faults.active()) == 1


def test_the_clock_advances_by_milliseconds_or_a_timedelta() -> None:
    with EmulatorThread(clock=ManualClock()) as thread:
        before = thread.do(thread.emulator.clock.now_ms)
        for duration in (250, timedelta(minutes=1), timedelta(microseconds=1)):
            thread["contoso"].advance(duration)
        assert thread.do(thread.emulator.clock.now_ms) == before + 250 + 60_000 + 1
        for wrong in ("1", 1.5, None):
            with pytest.raises(TypeError, match="expected whole milliseconds or a timedelta, got "):
                thread["contoso"].advance(wrong)
        with pytest.raises(ValueError, match="cannot set a clock back by 1000 ms"):
            thread["contoso"].advance(timedelta(seconds=-1))


def test_the_environment_of_a_pair_names_both_sides() -> None:
    with EmulatorThread() as thread:
        pair = EmulatedPair(thread["contoso"], thread["contoso-dr"])
        assert pair.environ["SBPAIR_PRIMARY_NAME"] == "contoso"
        assert pair.environ["SBPAIR_SECONDARY_CONNECTION_STRING"] == pair.secondary.connection_string
