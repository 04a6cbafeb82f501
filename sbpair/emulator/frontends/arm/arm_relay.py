"""Hybrid connections as resources of Microsoft.Relay, with their authorization rules. Independent of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sbpair.emulator.frontends.arm.arm_request import RELAY_PROVIDER, ArmError, Json, not_found
from sbpair.emulator.frontends.arm.arm_resources import Keys, Resources, resource_json
from sbpair.emulator.relay.hybrid_connection import HybridConnection, HybridConnectionDescription
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.access.sas import AuthorizationRule
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.frontends.arm.arm_request import ArmRequest

_SETTABLE: Final[dict[str, type]] = {"requiresClientAuthorization": bool, "userMetadata": str}
_REPORTED: Final = ("createdAt", "updatedAt", "listenerCount")


class RelayEntities:
    """The hybrid connections of a namespace. In their names, `~` stands for `/`."""

    kind = "HybridConnections"

    def __init__(self, namespace: Namespace) -> None:
        self._entities = namespace.hybrid_connections

    def all(self) -> Sequence[HybridConnection]:
        return self._entities.all()

    def find(self, name: str) -> HybridConnection | None:
        return self._entities.find(name.replace("~", "/"))

    def put(self, name: str, properties: Json) -> HybridConnection:
        values = _read(properties)
        found, metadata = self.find(name), values.get("userMetadata")
        if found is None:
            is_required = values.get("requiresClientAuthorization", True)
            return self._entities.create(name.replace("~", "/"), HybridConnectionDescription(is_required, metadata))
        before = found.description.requires_client_authorization
        is_required = values.get("requiresClientAuthorization", before)
        wanted = replace(found.description, requires_client_authorization=is_required, user_metadata=metadata)
        self._entities.change(found, wanted)
        return found

    def remove(self, item: HybridConnection) -> None:
        self._entities.delete(item)

    def to_json(self, within: str, item: HybridConnection) -> Json:
        description = item.description
        properties: Json = {
            "createdAt": instant(item.created_at_ms),
            "updatedAt": instant(item.updated_at_ms),
            "listenerCount": len(item.listeners),
            "requiresClientAuthorization": description.requires_client_authorization,
        }
        if description.user_metadata is not None:
            properties["userMetadata"] = description.user_metadata
        return resource_json(self.kind, within, item.path.replace("/", "~"), properties, RELAY_PROVIDER)


def _read(properties: Json) -> dict[str, Any]:
    """Return the settable properties. Raises ArmError for an unknown name or a wrong type."""
    values = {}
    for name, value in properties.items():
        if name in _REPORTED or value is None:
            continue
        if name not in _SETTABLE:
            raise ArmError("InvalidRequestContent", f"Could not find member '{name[:100]}' on the object.")
        if type(value) is not _SETTABLE[name]:
            text = f"The value of '{name}' is not of the type {_SETTABLE[name].__name__}."
            raise ArmError("InvalidRequestContent", text)
        values[name] = value
    return values


class RelayKeys(Keys):
    """The authorization rules of a namespace, or of a hybrid connection, as those of a relay."""

    provider = RELAY_PROVIDER

    def __init__(self, namespace: Namespace, owner: HybridConnection | None = None) -> None:
        super().__init__(namespace, kind="" if owner is None else RelayEntities.kind)
        self._owner = owner
        self._relay = namespace.hybrid_connections

    @property
    def entity_path(self) -> str:
        return "" if self._owner is None else self._owner.path

    def all(self) -> Sequence[AuthorizationRule]:
        return super().all() if self._owner is None else self._owner.description.authorization_rules

    def _set(self, keys: tuple[AuthorizationRule, ...]) -> None:
        if self._owner is None:
            super()._set(keys)
        else:
            self._relay.change(self._owner, replace(self._owner.description, authorization_rules=keys))


def relay_collection_at(namespace: Namespace, parts: tuple[str, ...]) -> Resources[Any]:
    """Return a collection of the relay. Raises ArmError if there is none."""
    match parts:
        case ("hybridconnections",):
            return RelayEntities(namespace)
        case ("authorizationrules",):
            return RelayKeys(namespace)
        case ("hybridconnections", name, "authorizationrules"):
            found = RelayEntities(namespace).find(name)
            if found is None:
                text = f"The messaging entity '{name[:300]}' could not be found."
                raise ArmError("MessagingGatewayNotFoundStatusCode", text, 404)
            return RelayKeys(namespace, found)
    raise not_found(RELAY_PROVIDER)


def relay_namespace_json(request: ArmRequest, namespace: Namespace, location: str) -> Json:
    created = instant(namespace.created_at_ms)
    return {
        "sku": {"name": "Standard", "tier": "Standard"},
        "id": f"{request.namespaces_id}/{namespace.name}",
        "name": namespace.name,
        "type": f"{RELAY_PROVIDER}/namespaces",
        "location": location,
        "tags": {},
        "properties": {
            "provisioningState": "Succeeded",
            "status": "Active",
            "createdAt": created,
            "updatedAt": created,
            "serviceBusEndpoint": f"https://{namespace.authority}/",
        },
    }
