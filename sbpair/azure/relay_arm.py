"""Hybrid connections over Azure Resource Manager, by azure-mgmt-relay of the extra `relay`.

Thin, like `arm`. Microsoft.Relay is a resource provider of its own. Nothing that exists is ever changed.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import ResourceNotFoundError

from sbpair.azure.arm import open_client
from sbpair.azure.arm_json import name_of
from sbpair.azure.management_errors import translate_management_errors
from sbpair.errors import MachineLacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.model.pair import Endpoint, ResourceGroup

SIGN_IN_HINT: Final = "sign in (az login): Resource Manager accepts no connection string"
INSTALL_HINT: Final = "pip install 'sbpair[relay]'"


@dataclass(frozen=True, slots=True)
class HybridDescription:
    """The properties of a hybrid connection that can be chosen."""

    requires_client_authorization: bool = True
    user_metadata: str = ""


class RelayNamespace:
    """The hybrid connections of one namespace. Get one from `open_relay_arm`."""

    def __init__(self, client: Any, group: str, namespace: str) -> None:
        self._connections = client.hybrid_connections
        self._group = group
        self._namespace = namespace

    async def find(self, path: str) -> HybridDescription | None:
        """Return the description of a hybrid connection; None if it does not exist. Raises SbpairError."""
        with translate_management_errors("read a hybrid connection", self._namespace, sign_in=SIGN_IN_HINT):
            try:
                found = await self._connections.get(self._group, self._namespace, name_of(path))
            except ResourceNotFoundError as error:
                # A namespace that does not exist is another error than an endpoint that does not.
                if getattr(error.error, "code", "") in ("ResourceGroupNotFound", "ParentResourceNotFound"):
                    raise
                return None
        return HybridDescription(found.requires_client_authorization is not False, found.user_metadata or "")

    async def create(self, path: str, description: HybridDescription) -> None:
        """Create a hybrid connection. Raises SbpairError."""
        properties: dict[str, Any] = {"requiresClientAuthorization": description.requires_client_authorization}
        if description.user_metadata:
            properties["userMetadata"] = description.user_metadata
        wanted = {"properties": properties}
        with translate_management_errors("create a hybrid connection", self._namespace, sign_in=SIGN_IN_HINT):
            await self._connections.create_or_update(self._group, self._namespace, name_of(path), wanted)


@asynccontextmanager
async def open_relay_arm(endpoint: Endpoint, group: ResourceGroup) -> AsyncIterator[RelayNamespace]:
    """Open the relay namespace of `endpoint`, in `group`. Raises MachineLacks without azure-mgmt-relay; UsageError."""
    try:
        from azure.mgmt.relay.aio import RelayAPIMgmtClient
    except ImportError as error:
        raise MachineLacks("azure-mgmt-relay is not installed", hint=INSTALL_HINT) from error
    async with open_client(RelayAPIMgmtClient, endpoint, group) as client:
        yield RelayNamespace(client, group.name, endpoint.name)
