"""Sources of tokens for azure-identity: a managed identity as in Azure App Service, and an OAuth authority over TLS.

Each namespace has a tenant with one client, which signs in to the authority by its secret or by an assertion, and is a
user-assigned identity. The identity that no client id selects is in the tenant of the first namespace.

Invariant: both need a secret, and stay reachable while a namespace is down.
"""

from __future__ import annotations

import hmac
import re
import secrets
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sbpair.amqp_server.refusals import ArgumentInvalid, Unauthenticated
from sbpair.emulator.bearer_tokens import IdentityEndpoint, read_jwt, tenant_of
from sbpair.emulator.clock import token_ms
from sbpair.emulator.faults.fault_points import IDENTITY_DOWN
from sbpair.emulator.frontends.http.management_parts import read_body, read_query, split_target

if TYPE_CHECKING:
    from sbpair.emulator.bearer_tokens import Bearers
    from sbpair.emulator.clock import Clock
    from sbpair.emulator.entities.namespace import Namespace

IDENTITY: Final = "$identity"
IDENTITY_VERSION: Final = "2019-08-01"
ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_SCOPE: Final = re.compile(r"\S+/\.default")
_AUTHORITY_PATH: Final = re.compile(r"/([^/?]+)/(oauth2/v2\.0/token|v2\.0/\.well-known/openid-configuration)")
_REFUSALS: Final[dict[int, tuple[int, str, str]]] = {
    50027: (401, "invalid_client", "JWT token is invalid or malformed."),
    70003: (400, "unsupported_grant_type", "The app requested an unsupported grant type."),
    90002: (400, "invalid_tenant", "Tenant not found."),
    90013: (400, "invalid_request", "Invalid input received from the user."),
    90033: (500, "server_error", "A transient error has occurred. Please try again."),
    90055: (429, "temporarily_unavailable", "There are too many incoming requests."),
    700016: (400, "unauthorized_client", "Application was not found in the directory."),
    700024: (401, "invalid_client", "Client assertion is not within its valid time range."),
    1002012: (400, "invalid_scope", "The provided value for scope is not valid."),
    7000215: (401, "invalid_client", "Invalid client secret provided."),
}
"""Codes of Entra ID -> status, error of OAuth and text."""


@dataclass(frozen=True, slots=True)
class TenantClient:
    """The client of one tenant, for the faults of the namespace in that tenant."""

    namespace: Namespace
    tenant_id: str
    client_id: str
    secret: str = field(repr=False)


def _client(name: str, namespace: Namespace) -> TenantClient:
    tenant = tenant_of(name)
    return TenantClient(namespace, tenant, str(uuid.uuid5(uuid.UUID(tenant), "client")), secrets.token_urlsafe(24))


class IdentityFrontend:
    """The token endpoints of an emulator. The client ids are the same for each run; the secrets are not."""

    def __init__(self, bearers: Bearers, clock: Clock, namespaces: Mapping[str, Namespace]) -> None:
        self.header = secrets.token_urlsafe(24)
        self._bearers = bearers
        self._clock = clock
        self._clients = {name: _client(name, each) for name, each in namespaces.items()}
        self._system = replace(next(iter(self._clients.values())), client_id=str(uuid.uuid4()))

    def endpoint_at(self, authority: str) -> IdentityEndpoint:
        return IdentityEndpoint(f"http://{authority}/{IDENTITY}/token", self.header)

    def ready_of(self, namespace: str, *, with_secret: bool) -> tuple[str, str, str]:
        """Return the tenant and client ids of a namespace, and the client's secret."""
        client = self._clients[namespace]
        return client.tenant_id, client.client_id, client.secret if with_secret else ""

    def answer_to(self, request: web.BaseRequest) -> Awaitable[web.Response] | None:
        """Return what answers a request for a token; None if it is none."""
        path = split_target(request)[0]
        if path.lower().startswith(f"/{IDENTITY}"):
            return self._answer_app_service(request)
        found = _AUTHORITY_PATH.fullmatch(path) if request.scheme == "https" else None
        return None if found is None else self._answer_authority(request, *found.groups())

    async def _outage(self, request: web.BaseRequest, clients: Iterable[TenantClient]) -> int:
        """Apply the fault of one of these clients, if one acts. Return the status of a refusal, 0 for none."""
        acting = next((hit for each in clients if (hit := each.namespace.fault_points.hit_by(IDENTITY_DOWN))), None)
        if acting is None:
            return 0
        match acting.fault.mode:
            case "hang":
                await acting.ended.wait()
                return 0
            case "refuse":
                request.protocol.force_close()
        return 429 if acting.fault.mode == "throttle" else 500

    def _issue(self, client: TenantClient, resource: str) -> tuple[str, int]:
        return self._bearers.issue(resource, token_ms(self._clock), client.tenant_id, client.client_id)

    # Managed identity

    async def _answer_app_service(self, request: web.BaseRequest) -> web.Response:
        given = request.headers.get("X-IDENTITY-HEADER", "")
        if not hmac.compare_digest(given.encode(), self.header.encode()):
            return _refused(401, "The header X-IDENTITY-HEADER is missing, or is not the one of IDENTITY_HEADER.")
        query = read_query(split_target(request)[1])
        if request.method != "GET" or query.get("api-version") != IDENTITY_VERSION or not query.get("resource"):
            return _refused(400, f"Request a token by GET with api-version={IDENTITY_VERSION} and resource=….")
        client: TenantClient | None = self._system
        clients: Iterable[TenantClient] = self._clients.values()
        if set(query) - {"api-version", "resource"}:
            wanted = query.get("client_id", "").lower()
            client = next((each for each in clients if each.client_id == wanted), None)
            clients = clients if client is None else [client]
        if status := await self._outage(request, clients):
            return _refused(status, "The managed identity service is not available. Please retry the request.")
        if client is None:
            text = "No User Assigned or Delegated Managed Identity found for specified ClientId/ResourceId/PrincipalId."
            return _refused(400, text)
        token, expires_on = self._issue(client, query["resource"])
        return web.json_response(
            {
                "access_token": token,
                "client_id": client.client_id,
                "expires_on": str(expires_on),
                "resource": query["resource"],
                "token_type": "Bearer",
            }
        )

    # The authority

    async def _answer_authority(self, request: web.BaseRequest, tenant: str, operation: str) -> web.Response:
        client = next((each for each in self._clients.values() if each.tenant_id == tenant.lower()), None)
        status = await self._outage(request, self._clients.values() if client is None else [client])
        if status or client is None:
            return _refused_sign_in({500: 90033, 429: 90055}.get(status, 90002))
        if "token" not in operation:
            base = f"https://{request.host}/{client.tenant_id}/oauth2/v2.0"
            return web.json_response({"token_endpoint": f"{base}/token", "authorization_endpoint": f"{base}/authorize"})
        try:
            form = read_query((await read_body(request)).decode(errors="replace"))
        except ArgumentInvalid:
            return _refused_sign_in(90013)
        if code := self._check_client(client, form):
            return _refused_sign_in(code)
        token, _ = self._issue(client, form["scope"].removesuffix("/.default"))
        life = self._bearers.life_seconds
        return web.json_response(
            {"token_type": "Bearer", "expires_in": life, "ext_expires_in": life, "access_token": token}
        )

    def _check_client(self, client: TenantClient, form: Mapping[str, str]) -> int:
        """Return the code of a refusal, 0 for a client with its secret, or with an assertion that has not expired."""
        if form.get("grant_type") != "client_credentials":
            return 70003
        if form.get("client_id", "").lower() != client.client_id:
            return 700016
        if form.get("client_assertion_type") == ASSERTION:
            try:
                if token_ms(self._clock) >= read_jwt(form.get("client_assertion", "")).expires_at_ms:
                    return 700024
            except Unauthenticated:
                return 50027
        elif not hmac.compare_digest(form.get("client_secret", "").encode(), client.secret.encode()):
            return 7000215
        return 0 if _SCOPE.fullmatch(form.get("scope", "")) else 1002012


def _refused_sign_in(code: int) -> web.Response:
    status, error, text = _REFUSALS[code]
    document = {"error": error, "error_description": f"AADSTS{code}: {text}", "error_codes": [code]}
    return web.json_response(document, status=status)


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
