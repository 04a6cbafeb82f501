"""Hybrid connections over Azure Resource Manager, by azure-mgmt-relay of the extra `relay`.

Thin, like `arm`. Microsoft.Relay is a resource provider of its own. Nothing that exists is ever changed.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import ResourceNotFoundError

from sbpair.azure.arm import open_client
from sbpair.azure.arm_json import name_of
from sbpair.azure.management_errors import refuse_unreadable_answers, translate_management_errors
from sbpair.errors import MachineLacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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
        with self._translated("read a hybrid connection"):
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
        with self._translated("create a hybrid connection"):
            await self._connections.create_or_update(self._group, self._namespace, name_of(path), wanted)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        with (
            translate_management_errors(what, self._namespace, sign_in=SIGN_IN_HINT),
            refuse_unreadable_answers(what, self._namespace),
        ):
            yield


@asynccontextmanager
async def open_relay_arm(endpoint: Endpoint, group: ResourceGroup) -> AsyncIterator[RelayNamespace]:
    """Open the relay namespace of `endpoint`, in `group`. Raises MachineLacks without azure-mgmt-relay; UsageError."""
    try:
        from azure.mgmt.relay.aio import RelayAPIMgmtClient
    except ImportError as error:
        raise MachineLacks("azure-mgmt-relay is not installed", hint=INSTALL_HINT) from error
    async with open_client(RelayAPIMgmtClient, endpoint, group) as client:
        yield RelayNamespace(client, group.name, endpoint.name)
