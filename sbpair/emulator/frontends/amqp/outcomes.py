"""What the outcome of a delivery means for its message: which settlement, with which reason and properties.

Pure: an AMQP outcome goes in, and what to do with a lock token comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.performatives import Accepted, Error, Modified, Rejected, Released
from sbpair.amqp.types import Map
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.frontends.amqp.request_messages import text_at
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.emulator.entities.sessions import HeldSession
    from sbpair.emulator.entities.subqueue import SubQueue

Settle = Callable[[bytes], None]

REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"


def settle_all(
    queue: SubQueue | HeldSession, tokens: list[bytes], state: Any, *, settled: bool
) -> dict[bytes, ServiceError] | None:
    """Apply an outcome to what these tokens hold; what could not be, with why. None for what is no outcome."""
    if isinstance(state, Accepted):
        return queue.complete_all(tokens)
    settle = _settler(queue, state, settled=settled)
    if settle is None:
        return None
    refused: dict[bytes, ServiceError] = {}
    for token in tokens:
        try:
            settle(token)
        except ServiceError as refusal:
            refused[token] = refusal
    return refused


def _settler(queue: SubQueue | HeldSession, state: Any, *, settled: bool) -> Settle | None:
    """What to do with the lock tokens of deliveries with this outcome; None for what is no outcome."""
    if isinstance(state, Modified):
        # Not looked at is whether the delivery failed: the SDK for JavaScript abandons without a word on that.
        settle = queue.defer if state.undeliverable_here else queue.abandon
        told = state.message_annotations
        return _changing(queue, told, settle) if isinstance(told, Map) and told else settle
    if isinstance(state, Rejected):
        return _burier(queue, state)
    # A peer that forgets a delivery without a word on it has not processed it.
    return queue.release if isinstance(state, Released) or (state is None and settled) else None


def _burier(queue: SubQueue | HeldSession, state: Rejected) -> Settle:
    error = state.error
    if not isinstance(error, Error):
        return queue.dead_letter
    info = error.info if isinstance(error.info, Map) else Map()
    reason, description = text_at(info, REASON), text_at(info, DESCRIPTION) or error.description or None
    told = Map((key, value) for key, value in info.pairs if key not in (REASON, DESCRIPTION))
    return _changing(queue, told, lambda token: queue.dead_letter(token, reason, description))


def _changing(queue: SubQueue | HeldSession, properties: Map, settle: Settle) -> Settle:
    """Settles after these have become application properties of the message."""
    if not properties:
        return settle

    def change_and_settle(token: bytes) -> None:
        try:
            queue.change(token, lambda message: service_envelope.put_properties(message, properties))
        except ProtocolError as error:
            raise ArgumentInvalid(f"The properties of the message cannot be changed: {error.message}") from error
        settle(token)

    return change_and_settle
