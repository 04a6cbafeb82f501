"""A span for each batch that is sent, linked to the traces of its messages. Wraps a destination of the mover.

Invariant: the batch that is sent, its outcome and its errors are those of the wrapped destination. An application
property that is not a valid trace context is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sbpair.amqp import codec, splice
from sbpair.errors import ProtocolError, SbpairError
from sbpair.move.interface import Batch, Destination, DestinationLink, RoutedMessage, SendOutcome

MAX_LINKS: Final = 128
CONTEXT_KEYS: Final = ("traceparent", "Diagnostic-Id")
"""Application properties in which a sender puts its context: of W3C, and of Azure's SDKs."""

_ENCODED_KEYS: Final = tuple(key.encode() for key in CONTEXT_KEYS)
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class TracedDestination:
    """Records the sends of one source's messages. `attributes` are those of each span."""

    destination: Destination
    tracer: Any
    attributes: dict[str, str]

    async def ready(self, destination: str) -> DestinationLink:
        """Wait until a message may be sent."""
        link = await self.destination.ready(destination)
        attributes = {**self.attributes, "messaging.destination.name": destination}
        return _TracedLink(link, f"send {destination}", self.tracer, attributes)


class _TracedLink:
    """An open link to one destination, for one round."""

    def __init__(self, link: DestinationLink, name: str, tracer: Any, attributes: dict[str, str]) -> None:
        self._link = link
        self._name = name
        self._tracer = tracer
        self._attributes = attributes
        self._links: dict[int, list[Any]] = {}

    @property
    def credit(self) -> int:
        return self._link.credit

    def encode(self, routed: Sequence[RoutedMessage]) -> Batch:
        batch = self._link.encode(routed)
        sent = (each.message.content.application_properties for each in routed[: batch.count])
        contexts = filter(None, map(_span_context, sent))
        self._links[id(batch)] = [trace.Link(each) for each in islice(contexts, MAX_LINKS)]
        return batch

    def send(self, batch: Batch) -> SendOutcome:
        span = self._tracer.start_span(
            self._name,
            kind=trace.SpanKind.CLIENT,
            links=self._links.pop(id(batch), ()),
            attributes={**self._attributes, "messaging.batch.message_count": batch.count},
        )
        try:
            wait = self._link.send(batch)
        except BaseException as error:
            _end(span, error)
            raise
        return partial(_outcome, span, wait)


async def _outcome(span: Any, wait: SendOutcome) -> None:
    try:
        await wait()
    except BaseException as error:
        _end(span, error)
        raise
    _end(span)


def _end(span: Any, error: BaseException | None = None) -> None:
    if error is not None:
        span.set_attribute("error.type", type(error).__name__)
        text = error.message if isinstance(error, SbpairError) else "the send was cancelled"
        span.set_status(trace.StatusCode.ERROR, text)
    span.end()


def _span_context(application_properties: bytes) -> Any:
    """Return the span in which a message was sent; None without a valid context."""
    if not any(key in application_properties for key in _ENCODED_KEYS):
        return None
    found: dict[str, str] = {}
    try:
        for key, _, raw in splice.map_pairs(application_properties):
            if isinstance(key, str) and key in CONTEXT_KEYS and isinstance(value := codec.decode_all(raw), str):
                found[str(key)] = value
    except ProtocolError:
        return None
    for name in CONTEXT_KEYS:
        carrier = {"traceparent": found.get(name, "")}
        context = trace.get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
        if context.is_valid:
            return context
    return None
