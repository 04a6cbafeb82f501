"""Refusals of the relay: status, code and text, with the tracking id that the service adds to each text."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Final

from sbpair.emulator.service_errors import ServiceError, Unauthenticated, Unauthorized

MAX_TRACKER: Final = 300


class RelayRefused(ServiceError):
    """A refusal of the service itself. `code` is that of the JSON body that HTTP senders get."""

    sub_code = 0

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def url_invalid(text: str) -> RelayRefused:
    return RelayRefused(400, "BadRequest", text)


def token_missing() -> RelayRefused:
    return RelayRefused(401, "TokenMissingOrInvalid", "MissingToken: The relay security token is missing.")


def from_access(error: Unauthenticated | Unauthorized) -> RelayRefused:
    """Return the refusal for an invalid token (401), or for one that is not valid for this path or action (403)."""
    if isinstance(error, Unauthorized):
        return RelayRefused(403, "Forbidden", error.message)
    return RelayRefused(401, "TokenMissingOrInvalid", error.message)


def address_expired() -> RelayRefused:
    return RelayRefused(403, "Forbidden", "The rendezvous address is invalid, has expired, or was used before.")


def too_many_listeners(limit: int) -> RelayRefused:
    return RelayRefused(403, "QuotaExceeded", f"The endpoint already has {limit} listeners.")


def endpoint_missing() -> RelayRefused:
    return RelayRefused(404, "EndpointNotFound", "Endpoint does not exist.")


def no_listeners() -> RelayRefused:
    return RelayRefused(404, "EndpointNotFound", "There are no listeners connected for the endpoint.")


def no_listener_fits() -> RelayRefused:
    text = "None of the connected listeners meet the AllowedListeners/DisallowedListeners criteria."
    return RelayRefused(404, "EndpointNotFound", text)


def response_invalid(text: str) -> RelayRefused:
    return RelayRefused(502, "BadGateway", f"The listener's response is not valid: {text}.")


def endpoint_down(status: int) -> RelayRefused:
    code = "InternalServerError" if status == 500 else "ServiceUnavailable"
    return RelayRefused(status, code, "The endpoint is not available. Please retry the operation.")


def not_answered() -> RelayRefused:
    text = "The request was routed to the listener but the listener did not respond in the required time."
    return RelayRefused(504, "GatewayTimeout", text)


def not_accepted() -> RelayRefused:
    text = "None of the connected listeners accepted the connections within the allowed timeout."
    return RelayRefused(504, "ConnectionNotEstablished", text)


def with_tracking(text: str, endpoint: str, path: str, now_ms: int) -> str:
    """Return a text with its tracking id, endpoint and time, on one line of printable ASCII."""
    time = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    tracker = f"SystemTracker:{endpoint}/{path.strip('/')[:MAX_TRACKER]}"
    return one_line(f"{text} TrackingId:{uuid.uuid4()}_G0, {tracker}, Timestamp:{time}")


def one_line(text: str) -> str:
    """Return a text as a reason phrase: no line ends, no control characters, ASCII only."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)
