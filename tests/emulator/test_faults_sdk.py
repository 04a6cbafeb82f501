"""Faults, as the official clients see them."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)


@pytest.fixture
def faults(running: Any) -> Iterator[Any]:
    """The emulator's faults, called in its own loop."""

    class InLoop:
        def __getattr__(self, name: str) -> Any:
            return lambda *given, **named: running.do(lambda: getattr(running.emulator.faults, name)(*given, **named))

    yield InLoop()
    running.do(running.emulator.faults.end_all)


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect garbage at once, so that its warnings belong to this test."""
    yield
    gc.collect()


def test_an_entity_goes_down_and_up(official: Any, running: Any, faults: Any) -> None:
    queue = running.queue()
    with official.sender(running.connection_string, queue.path) as sender:
        down = faults.entity_down("contoso", queue.path)
        for _ in range(2):
            with pytest.raises(ServiceBusConnectionError):
                sender.send_messages(ServiceBusMessage("not now"))
        faults.end(down)
        sender.send_messages(ServiceBusMessage("now"))
    assert running.do(queue.counts).active == 1


def test_a_client_reports_a_busy_service(official: Any, running: Any, faults: Any) -> None:
    queue = running.queue()
    with official.sender(running.connection_string, queue.path) as sender:
        faults.throttle("contoso", queue.path, count=1)
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            sender.send_messages(ServiceBusMessage("too much"))
        sender.send_messages(ServiceBusMessage("after a while"))
    assert running.do(queue.counts).active == 1


def test_an_unacknowledged_send_times_out_but_is_stored(official: Any, running: Any, faults: Any) -> None:
    queue = running.queue()
    with official.sender(running.connection_string, queue.path) as sender:
        faults.swallow_acks("contoso", queue.path, count=1)
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("in doubt"), timeout=1)
    assert running.do(queue.counts).active == 1


def test_a_settlement_after_lock_expiry_is_refused(official: Any, running: Any, faults: Any) -> None:
    queue = running.queue()
    with (
        official.sender(running.connection_string, queue.path) as sender,
        official.receiver(running.connection_string, queue.path) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("mine"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        faults.expire_locks("contoso", queue.path)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)


# The clients do not close the socket of a broken connection.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("kind", ["drop", "reset"])
def test_a_sender_recovers_from_a_broken_connection(official: Any, running: Any, faults: Any, kind: str) -> None:
    queue = running.do(lambda: running.other.create_queue(f"{kind}-{uuid.uuid4()}"))
    where = (running.emulator.ready.namespaces[1].connection_string, queue.path)
    with official.sender(*where) as sender:
        sender.send_messages(ServiceBusMessage("first"))
        getattr(faults, kind)("contoso-dr", count=1)
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("lost"))
        sender.send_messages(ServiceBusMessage("second"))
    assert running.do(queue.counts).active == 2
