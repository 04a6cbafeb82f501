"""The listeners of a relay's sides, as the service counts them. Needs Manage."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

from sbpair.azure.http_client import HttpClient, HttpResponse
from sbpair.azure.management_errors import NotHttp
from sbpair.bounded_xml import parse_xml
from sbpair.errors import EntityMissing, SbpairError, Unreachable
from sbpair.model.connect_errors import DOCTOR_HINT, unreachable
from sbpair.model.document import Failing
from sbpair.model.pair import SIDES, Side
from sbpair.relay.relay_connections import RelayClock, RelayTokens, service_error
from sbpair.relay.relay_endpoint import RelayEndpoint

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint
    from sbpair.model.signature import Token
    from sbpair.relay.relay_settings import ConfiguredRelay

API_VERSION: Final = "2016-07"
MANAGE_HINT: Final = "counting listeners needs a key with Manage, or the role Azure Relay Owner; check both"
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SideListeners(Failing):
    """One side's listeners. They are None with an error. `seconds` is the time of the answer."""

    side: Annotated[Side, "Side of the relay"]
    namespace: Annotated[str, "Host of the namespace"]
    path: Annotated[str, "Path of the hybrid connection"]
    seconds: Annotated[float, "Time to the answer"]
    listeners: Annotated[int | None, "Connected listeners; null if unknown"] = None
    requires_authorization: Annotated[bool | None, "Whether senders need a token; null if unknown"] = None
    error: SbpairError | None = None

    @property
    def serves(self) -> bool:
        return bool(self.listeners)


async def read_listeners(relay: ConfiguredRelay, seconds: float) -> list[SideListeners]:
    """Return both sides, each read within `seconds`. Errors are in the result."""
    return await asyncio.gather(*(_read(side, relay.endpoints[side], relay.pair[side], seconds) for side in SIDES))


async def _read(side: Side, endpoint: Endpoint, relay: RelayEndpoint, seconds: float) -> SideListeners:
    began = time.monotonic()
    listeners, needs, failed = None, None, None
    try:
        async with asyncio.timeout(seconds):
            listeners, needs = await _get(endpoint, relay)
    except SbpairError as error:
        failed = error
    except NotHttp:
        failed = Unreachable(f"{relay}: the answer is not HTTP", hint=f"check the namespace's address{DOCTOR_HINT}")
    except TimeoutError:
        failed = unreachable(str(relay), relay.namespace, seconds)
    except OSError as error:
        failed = unreachable(str(relay), relay.namespace, error)
    return SideListeners(side, relay.namespace, relay.path, time.monotonic() - began, listeners, needs, failed)


async def _get(endpoint: Endpoint, relay: RelayEndpoint) -> tuple[int, bool | None]:
    tokens = RelayTokens(relay, RelayClock())

    async def get(token: Token) -> tuple[int, bool | None]:
        headers = {"Authorization": token.value, "X-PROCESS-AT": "ServiceBus"}
        async with HttpClient(endpoint) as client:
            path = f"/{quote(relay.path)}?api-version={API_VERSION}"
            return _described(relay, await client.request("GET", path, headers))

    try:
        return await tokens.spend(get)
    finally:
        await tokens.close()


def _described(relay: RelayEndpoint, response: HttpResponse) -> tuple[int, bool | None]:
    """Return the count of listeners, and whether senders need a token. Raises SbpairError."""
    missing = EntityMissing(
        f"{relay}: the hybrid connection does not exist",
        entity=relay.path,
        hint="create it, or check its path and namespace",
    )
    if response.status in (204, 404):
        raise missing
    if response.status >= 300:
        error = service_error(relay, response.status, response.reason)
        if response.status in (401, 403):
            error.hint = MANAGE_HINT
        raise error
    try:
        root = parse_xml(response.body)
        found = root.find("{*}content/{*}HybridConnectionDescription")
        if found is None:
            # The service answers a feed for a path that does not exist.
            raise missing
        count = int(found.findtext("{*}ListenerCount") or 0)
        return count, _BOOLEANS.get((found.findtext("{*}RequiresClientAuthorization") or "").lower())
    except ValueError:
        raise Unreachable(
            f"{relay}: the answer is not a description", hint=f"check the namespace's address{DOCTOR_HINT}"
        ) from None
