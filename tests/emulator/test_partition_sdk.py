"""Partitioned queues, seen by the official clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.testing import EmulatorOptions

if TYPE_CHECKING:
    from collections.abc import Callable

MEGABYTES = 5120


@pytest.fixture(scope="module")
def secure(another: Any) -> Any:
    """With TLS, so that the administration client needs no help."""
    with another(options=EmulatorOptions(tls=True)) as secure:
        yield secure


def test_keys_and_partitions_over_amqp(official: Any, running: Any) -> None:
    queue = running.queue(enable_partitioning=True)
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
        for number in range(20):
            sender.send_messages(ServiceBusMessage(str(number), partition_key="same"))
            sender.send_messages(ServiceBusMessage(str(number)))
        peeked: list[Any] = []
        while more := receiver.peek_messages(
            max_message_count=10, sequence_number=peeked[-1].sequence_number + 1 if peeked else 0
        ):
            peeked += more
        assert len(peeked) == 40
        received: list[Any] = []
        while len(received) < 40:
            received += receiver.receive_messages(40, max_wait_time=10)
        keyed = [message for message in received if message.partition_key == "same"]
        assert [int(b"".join(message.body)) for message in keyed] == list(range(20))
        assert len({message.sequence_number >> 48 for message in keyed}) == 1
        assert {message.sequence_number >> 48 for message in received} == set(range(16))
        for message in received:
            receiver.complete_message(message)
    assert running.do(queue.counts).total == 0


def test_a_batch_with_two_keys_is_refused_and_a_down_partition_times_out(official: Any, running: Any) -> None:
    queue = running.queue(enable_partitioning=True)
    with official.sender(running.connection_string, queue.path) as sender:
        with pytest.raises(ServiceBusError, match="InvalidOperation"):
            sender.send_messages([ServiceBusMessage("a", partition_key="a"), ServiceBusMessage("b", partition_key="b")])
        number = running.do(lambda: queue.partitions.for_key("a"))
        down = running.do(lambda: running.emulator.faults.partition_down("contoso", number, queue.path))
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("a", partition_key="a"))
        sender.send_messages(ServiceBusMessage("anywhere"))
        running.do(lambda: running.emulator.faults.end(down))
        sender.send_messages(ServiceBusMessage("a", partition_key="a"))
    assert running.do(queue.counts).active == 2


def test_management_reads_16_times_the_size_and_keeps_partitioning(secure: Any) -> None:
    ready = secure.emulator.ready
    with ServiceBusAdministrationClient.from_connection_string(
        ready.namespaces[0].tls_connection_string, connection_verify=ready.ca_file, retry_total=0
    ) as client:
        made = client.create_queue("wide", enable_partitioning=True, max_size_in_megabytes=MEGABYTES)
        assert (made.enable_partitioning, made.max_size_in_megabytes) == (True, 16 * MEGABYTES)
        assert client.get_queue("wide").max_size_in_megabytes == 16 * MEGABYTES
        client.update_queue(client.get_queue("wide"))
        assert client.get_queue("wide").max_size_in_megabytes == 16 * MEGABYTES
        made.max_size_in_megabytes = 16 * 1024
        with pytest.raises(HttpResponseError, match="MaxSizeInMegabytes"):
            client.update_queue(made)
        made.max_size_in_megabytes = MEGABYTES
        made.enable_partitioning = False
        with pytest.raises(HttpResponseError, match="EnablePartitioning") as refused:
            client.update_queue(made)
        assert refused.value.status_code == 400
        with PartitionDown(secure, 5), pytest.raises(HttpResponseError, match="partition 5") as timed_out:
            client.get_queue_runtime_properties("wide")
        assert timed_out.value.status_code == 504
        client.delete_queue("wide")


def test_managing_partitioned_entities_fails_while_a_partition_is_down(secure: Any) -> None:
    ready = secure.emulator.ready
    with ServiceBusAdministrationClient.from_connection_string(
        ready.namespaces[0].tls_connection_string, connection_verify=ready.ca_file, retry_total=0
    ) as client:
        client.create_topic("wide-topic", enable_partitioning=True)
        made = client.create_subscription("wide-topic", "all")
        client.create_queue("narrow")
        asked: list[Callable[[], object]] = [
            lambda: list(client.list_topics_runtime_properties()),
            lambda: client.get_topic("wide-topic"),
            lambda: list(client.list_subscriptions("wide-topic")),
            lambda: client.get_subscription_runtime_properties("wide-topic", "all"),
            lambda: client.create_subscription("wide-topic", "another"),
            lambda: client.update_subscription("wide-topic", made),
            lambda: client.delete_subscription("wide-topic", "all"),
            lambda: client.delete_topic("wide-topic"),
            lambda: client.create_queue("wide", enable_partitioning=True),
        ]
        with PartitionDown(secure, 5):
            for ask in asked:
                with pytest.raises(HttpResponseError, match="partition 5") as timed_out:
                    ask()
                assert timed_out.value.status_code == 504
            # What is in one piece is not concerned.
            assert "narrow" in [each.name for each in client.list_queues_runtime_properties()]
            client.delete_queue("narrow")
        assert [each.name for each in client.list_subscriptions("wide-topic")] == ["all"]
        client.delete_topic("wide-topic")


class PartitionDown:
    """One partition of the namespace is down."""

    def __init__(self, running: Any, partition: int) -> None:
        self._running = running
        self._partition = partition

    def __enter__(self) -> None:
        faults = self._running.emulator.faults
        self._identity = self._running.do(lambda: faults.partition_down("contoso", self._partition))

    def __exit__(self, *_: object) -> None:
        self._running.do(lambda: self._running.emulator.faults.end(self._identity))
