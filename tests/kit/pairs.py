"""Pairs of namespaces on an emulator, and queues in their backlog."""

from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp.message import Sections, data_body
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.testing import Emulator

UNDER_CONTOSO = "contoso/x-servicebus-transfer/"
BACKLOG = QueueDescription(
    max_size_in_megabytes=5120, max_delivery_count=2**31 - 1, dead_lettering_on_message_expiration=True
)


def endpoint_on(emulator: Emulator, name: str) -> Endpoint:
    return endpoint_from_connection_string(emulator.namespaces[name].connection_string, name=name)


def pair_on(emulator: Emulator, count: int = 3, **secondary: Any) -> Pair:
    """Return the pair of `contoso` and `contoso-dr`, whose endpoint may be changed."""
    primary, other = (endpoint_on(emulator, name) for name in ("contoso", "contoso-dr"))
    return Pair("orders", primary, replace(other, **secondary), backlog_queues=count)


def unconnected_pair(count: int) -> Pair:
    ends = (
        Endpoint(name, f"{name}.servicebus.windows.net", name, 5671, tls=True, credential=Identity())
        for name in ("contoso", "elsewhere")
    )
    return Pair("orders", *ends, backlog_queues=count)


def use_identity(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign in as the managed identity of an emulator with that option."""
    assert emulator.ready.identity
    for name, value in emulator.ready.identity.environment.items():
        monkeypatch.setenv(name, value)


class BacklogWorld:
    """A pair on one emulator, whose backlog queues a test creates."""

    def __init__(self, emulator: Emulator, count: int) -> None:
        self.emulator = emulator
        self.primary, self.secondary = emulator.namespaces["contoso"], emulator.namespaces["contoso-dr"]
        self.pair = pair_on(emulator, count)

    def queue(self, name: int | str, **changed: Any) -> QueueEntity:
        """Create a backlog queue."""
        return self.secondary.create_queue(f"{UNDER_CONTOSO}{name}", replace(BACKLOG, **changed))


def stored(**changed: Any) -> StoredMessage:
    """Make a message without a destination."""
    return StoredMessage(Sections(body=data_body(b"body")), 100, **changed)


def slip_in(queue: QueueEntity) -> None:
    """Enqueue a message in any status of the queue: it was accepted a moment earlier."""
    queue.messages.enqueue([stored()])
