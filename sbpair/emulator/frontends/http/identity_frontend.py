"""A managed identity in the form of Azure App Service, from which azure-identity requests tokens.

The secret in IDENTITY_HEADER is required. The endpoint is not part of a namespace and stays reachable during outages.
"""

from __future__ import annotations

import hmac
import secrets
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sbpair.emulator.access.bearer import Issuer
from sbpair.emulator.frontends.http.management_parts import read_query, split_target

if TYPE_CHECKING:
    from sbpair.emulator.clock import Clock

PREFIX: Final = "$identity"
API_VERSION: Final = "2019-08-01"


@dataclass(frozen=True, slots=True)
class IdentityEndpoint:
    """The address and secret that azure-identity reads from the environment."""

    endpoint: str
    header: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {"IDENTITY_ENDPOINT": self.endpoint, "IDENTITY_HEADER": self.header}


class IdentityFrontend:
    """The token endpoint."""

    def __init__(self, clock: Clock) -> None:
        self.issuer = Issuer()
        self.header = secrets.token_urlsafe(24)
        self._clock = clock
        self._client_id = str(uuid.uuid4())

    def endpoint_at(self, authority: str) -> IdentityEndpoint:
        return IdentityEndpoint(f"http://{authority}/{PREFIX}/token", self.header)

    def handle(self, request: web.BaseRequest) -> web.Response:
        given = request.headers.get("X-IDENTITY-HEADER", "")
        if not hmac.compare_digest(given.encode(), self.header.encode()):
            return error_response(401, "The header X-IDENTITY-HEADER is missing, or is not the one of IDENTITY_HEADER.")
        query = read_query(split_target(request)[1])
        if request.method != "GET" or query.get("api-version") != API_VERSION or not query.get("resource"):
            return error_response(400, f"Request a token by GET with api-version={API_VERSION} and resource=….")
        token, expires_on = self.issuer.issue(query["resource"], self._clock.now_ms())
        return web.json_response(
            {
                "access_token": token,
                "client_id": self._client_id,
                "expires_on": str(expires_on),
                "resource": query["resource"],
                "token_type": "Bearer",
            }
        )


def error_response(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
