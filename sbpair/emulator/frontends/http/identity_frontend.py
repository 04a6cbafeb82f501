"""A managed identity for this machine: where azure-identity asks for tokens, as it does on Azure's App Service.

Whoever knows the secret of IDENTITY_HEADER gets a token, and nobody else does. It stays reachable whatever is down: it
is no part of a namespace.
"""

from __future__ import annotations

import hmac
import secrets
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from aiohttp import web

from sbpair.emulator.access.bearer import Issuer
from sbpair.emulator.frontends.atom.atom_request import target_of

if TYPE_CHECKING:
    from sbpair.emulator.clock import Clock

PREFIX: Final = "$identity"
API_VERSION: Final = "2019-08-01"


@dataclass(frozen=True, slots=True)
class IdentityEndpoint:
    """What azure-identity wants to be told by the environment."""

    endpoint: str
    header: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {"IDENTITY_ENDPOINT": self.endpoint, "IDENTITY_HEADER": self.header}


class IdentityFrontend:
    """Answers requests for tokens."""

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
            return refusal(401, "The header X-IDENTITY-HEADER is missing, or is not the one of IDENTITY_HEADER.")
        query = {name.lower(): values[0] for name, values in parse_qs(target_of(request)[1]).items()}
        if request.method != "GET" or query.get("api-version") != API_VERSION or not query.get("resource"):
            return refusal(400, f"A token is asked for by GET with api-version={API_VERSION} and resource=….")
        return web.json_response(self._token(query["resource"]))

    def _token(self, resource: str) -> dict[str, str]:
        token, expires_on = self.issuer.issue(resource, self._clock.now_ms())
        return {
            "access_token": token,
            "client_id": self._client_id,
            "expires_on": str(expires_on),
            "resource": resource,
            "token_type": "Bearer",
        }


def refusal(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
