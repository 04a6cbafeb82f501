"""Consumers of messages, waiters for sessions, and requests to management nodes, on the engine."""

from collections.abc import Iterable
from typing import Any

from sbpair.amqp.types import Map, Value
from sbpair.amqp_server.node_links import AmqpRequest, Reply
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.sessions import HeldSession
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.frontends.amqp import management_operations


def numbers(messages: Iterable[StoredMessage]) -> list[int]:
    return [message.sequence_number for message in messages]


def ask(namespace: Namespace, entity: str, operation: str, arguments: dict[str, Value]) -> Reply:
    """Return the reply of an entity's management node."""
    request = AmqpRequest("1", None, f"com.microsoft:{operation}", Map(), Map(arguments.items()))
    return management_operations.execute(request, namespace.resolve(f"{entity}/$management"), lambda _: None)


class CreditConsumer:
    """A consumer of a sub-queue or a held session, that receives up to `credit` messages when it is woken."""

    def __init__(self, source: Any, credit: int) -> None:
        self.source = source
        self.credit = credit
        self.got: list[int] = []

    def wake(self) -> None:
        taken = self.source.receive(self.credit, self)
        self.credit -= len(taken)
        self.got += numbers(taken)


class SessionWaiter:
    """A receiver that waits for a session. `held` is the one that it got last."""

    held: HeldSession | None = None

    def on_session_locked(self, held: HeldSession) -> None:
        self.held = held
