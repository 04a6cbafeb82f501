"""Authorization rules of a namespace or an entity, as resources. Only `listKeys` returns their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import check_authorization_rules
from sbpair.emulator.frontends.arm.arm_request import ArmError, Json
from sbpair.emulator.frontends.arm.arm_resources import Resources
from sbpair.emulator.frontends.http.request_parts import new_key
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity


class Keys(Resources[AuthorizationRule]):
    """The authorization rules of a namespace, or of `entity`."""

    def __init__(self, namespace: Namespace, entity: QueueEntity | None = None, kind: str = "") -> None:
        self.kind = f"{kind}{'/' if kind else ''}AuthorizationRules"
        self._namespace = namespace
        self._entity = entity

    def all(self) -> Sequence[AuthorizationRule]:
        return self._namespace.keys if self._entity is None else self._entity.description.authorization_rules

    def find(self, name: str) -> AuthorizationRule | None:
        return next((rule for rule in self.all() if rule.key_name.lower() == name.lower()), None)

    def put(self, name: str, properties: Json) -> AuthorizationRule:
        now, before = self._namespace.clock.now_ms(), self.find(name)
        rule = before or AuthorizationRule(name, new_key(), new_key(), created_at_ms=now)
        return self._store(replace(rule, rights=read_rights(properties), modified_at_ms=now))

    def remove(self, item: AuthorizationRule) -> None:
        if self._entity is None and item == self._namespace.keys[0]:
            raise ArgumentInvalid(f"The authorization rule '{item.key_name}' cannot be deleted.")
        self._set(tuple(rule for rule in self.all() if rule is not item))

    def name(self, item: AuthorizationRule) -> str:
        return item.key_name

    def properties(self, item: AuthorizationRule) -> Json:
        return {"rights": [right.value for right in AccessRight if right in item.rights]}

    def regenerate(self, item: AuthorizationRule, body: Json) -> AuthorizationRule:
        kind, key = body.get("keyType"), body.get("key") or new_key()
        if kind not in ("PrimaryKey", "SecondaryKey") or not isinstance(key, str):
            raise ArmError("InvalidRequestContent", "The keyType is neither PrimaryKey nor SecondaryKey.")
        return self._store(replace(item, primary_key=key) if kind == "PrimaryKey" else replace(item, secondary_key=key))

    def keys_json(self, item: AuthorizationRule) -> Json:
        def connection(key: str) -> str:
            return f"Endpoint={self._namespace.endpoint}/;SharedAccessKeyName={item.key_name};SharedAccessKey={key}" + (
                "" if self._entity is None else f";EntityPath={self._entity.path}"
            )

        return {
            "primaryConnectionString": connection(item.primary_key),
            "secondaryConnectionString": connection(item.secondary_key),
            "primaryKey": item.primary_key,
            "secondaryKey": item.secondary_key,
            "keyName": item.key_name,
        }

    def _store(self, rule: AuthorizationRule) -> AuthorizationRule:
        """Replace the rule of this name, or append it."""
        others = self.all()
        replaced = tuple(rule if each.key_name == rule.key_name else each for each in others)
        self._set(replaced if rule in replaced else (*others, rule))
        return rule

    def _set(self, rules: tuple[AuthorizationRule, ...]) -> None:
        check_authorization_rules(rules)
        if self._entity is None:
            self._namespace.keys = rules
        else:
            self._entity.update(replace(self._entity.description, authorization_rules=rules))


def read_rights(properties: Json) -> frozenset[AccessRight]:
    rights = properties.get("rights")
    if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
        raise ArmError("InvalidRequestContent", "The rights are not a list of Manage, Send and Listen.")
    try:
        return frozenset(AccessRight(right) for right in rights)
    except ValueError as error:
        raise ArgumentInvalid("An authorization rule's rights are Manage, Send and Listen.") from error
