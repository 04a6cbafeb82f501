"""Refusals of management requests, with the service's texts. Each frontend formats them in its own way. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbpair.emulator.faults.entity_scope import is_within
from sbpair.emulator.service_errors import ServiceError

METHODS: Final = ("DELETE", "GET", "PUT")
_MORE: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."

REFUSALS: Final[dict[int, tuple[int, str]]] = {
    401: (0, "Unauthorized access: claim is empty or token is invalid."),
    403: (0, "Ip has been prevented to connect to the endpoint."),
    409: (40901, f"Another conflicting operation is in progress. {_MORE}"),
    429: (50004, "The request was terminated because the namespace is being throttled. Please wait and try again."),
    500: (50000, f"Internal Server Error. {_MORE}"),
    503: (50300, "The service is temporarily unavailable. Please retry the operation."),
}
"""Status -> SubCode (0 for none) and text."""

_SUB_CODES: Final[dict[int, str]] = {
    40300: "Forbidden. The limit of this namespace is reached.",
    40900: f"Conflict. You're requesting an operation that isn't allowed in the resource's current state. {_MORE}",
    40901: REFUSALS[409][1],
}
"""Texts of SubCodes that differ from the text of their status."""


class RequestRefused(ServiceError):
    """A refusal by a fault, regardless of the request."""

    def __init__(self, status: int, sub_code: int | None = None, retry_after_seconds: int | None = None) -> None:
        default_code, text = REFUSALS[status]
        super().__init__(text if sub_code is None else _SUB_CODES.get(sub_code, text))
        self.status = status
        self.sub_code = default_code if sub_code is None else sub_code
        self.retry_after_seconds = retry_after_seconds


@dataclass(slots=True)
class RequestFault:
    """A fault that refuses `left` requests, or all. An empty entity or method matches every one."""

    status: int
    sub_code: int | None = None
    retry_after_seconds: int | None = None
    entity: str = ""
    method: str = ""
    left: int | None = None

    def check(self, method: str, path: str) -> None:
        """Raise RequestRefused if this request is to be refused."""
        if self.left == 0 or (self.method and method != self.method) or not is_within(path, self.entity):
            return
        if self.left is not None:
            self.left -= 1
        raise RequestRefused(self.status, self.sub_code, self.retry_after_seconds)
