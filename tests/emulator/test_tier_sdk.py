"""Tiers, seen by the official clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import MessagingSku, ServiceBusAdministrationClient

from sbpair.testing import EmulatorOptions


@pytest.fixture(scope="module")
def tiers(another: Any) -> Iterator[Any]:
    namespaces = [("low", 0, "basic"), ("contoso", 0, "premium", 2)]
    with another(namespaces, options=EmulatorOptions(tls=True)) as tiers:
        yield tiers


def administration(tiers: Any, number: int) -> ServiceBusAdministrationClient:
    ready = tiers.emulator.ready
    connection_string = ready.namespaces[number].tls_connection_string
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, connection_verify=ready.ca_file, retry_total=0
    )


def test_basic_has_queues_and_little_else(tiers: Any) -> None:
    with administration(tiers, 0) as client:
        assert client.get_namespace_properties().messaging_sku == MessagingSku.BASIC
        assert client.create_queue("plain").name == "plain"
        for make, what in (
            (lambda: client.create_topic("news"), "'Basic' tier"),
            (lambda: client.create_queue("ordered", requires_session=True), "RequiresSession"),
        ):
            with pytest.raises(HttpResponseError, match=what) as refused:
                make()
            assert refused.value.status_code == 400


def test_premium_has_large_messages(tiers: Any, official: Any) -> None:
    with administration(tiers, 1) as client:
        assert client.get_namespace_properties().messaging_sku == MessagingSku.PREMIUM
        name = f"large-{uuid.uuid4()}"
        sizes = {"max_message_size_in_kilobytes": 102_400, "max_size_in_megabytes": 81_920}
        with pytest.raises(HttpResponseError, match="EnablePartitioning must be set to true"):
            client.create_queue(name, **sizes)
        made = client.create_queue(name, enable_partitioning=True, **sizes)
        assert (made.max_message_size_in_kilobytes, made.max_size_in_megabytes) == (102_400, 81_920)
    where = (tiers.emulator.ready.namespaces[1].connection_string, name)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
        sender.send_messages(ServiceBusMessage(b"x" * 3_000_000))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert sum(len(part) for part in message.body) == 3_000_000
        receiver.complete_message(message)
