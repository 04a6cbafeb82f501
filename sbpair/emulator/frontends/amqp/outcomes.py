"""AMQP outcomes of deliveries, applied to messages under lock."""

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
    """Apply an outcome to locked messages and return the errors by token, or None if `state` is not an outcome."""
    if isinstance(state, Accepted):
        return queue.complete_all(tokens)
    settle = _settler(queue, state, settled=settled)
    if settle is None:
        return None
    failed: dict[bytes, ServiceError] = {}
    for token in tokens:
        try:
            settle(token)
        except ServiceError as error:
            failed[token] = error
    return failed


def _settler(queue: SubQueue | HeldSession, state: Any, *, settled: bool) -> Settle | None:
    """Return the settlement for this outcome, or None if it is not an outcome."""
    if isinstance(state, Modified):
        # `delivery_failed` is ignored: the SDK for JavaScript abandons without it.
        settle = queue.defer if state.undeliverable_here else queue.abandon
        properties = state.message_annotations
        return _changing(queue, properties, settle) if isinstance(properties, Map) and properties else settle
    if isinstance(state, Rejected):
        return _dead_letterer(queue, state)
    # A delivery settled without an outcome was not processed.
    return queue.release if isinstance(state, Released) or (state is None and settled) else None


def _dead_letterer(queue: SubQueue | HeldSession, state: Rejected) -> Settle:
    error = state.error
    if not isinstance(error, Error):
        return queue.dead_letter
    info = error.info if isinstance(error.info, Map) else Map()
    reason, description = text_at(info, REASON), text_at(info, DESCRIPTION) or error.description or None
    properties = Map((key, value) for key, value in info.pairs if key not in (REASON, DESCRIPTION))
    return _changing(queue, properties, lambda token: queue.dead_letter(token, reason, description))


def _changing(queue: SubQueue | HeldSession, properties: Map, settle: Settle) -> Settle:
    """Return `settle`, preceded by a change of the message's application properties."""
    if not properties:
        return settle

    def change_and_settle(token: bytes) -> None:
        try:
            queue.modify(token, lambda message: service_envelope.modify_properties(message, properties))
        except ProtocolError as error:
            raise ArgumentInvalid(f"The properties of the message cannot be changed: {error.message}") from error
        settle(token)

    return change_and_settle
