"""Atom entries and feeds in the service's form, from and to text. Independent of HTTP.

Reading checks the order of a description's elements as the service does. In rules, `i:type` distinguishes filters and
actions; values keep their type and text.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple, get_args
from xml.etree.ElementTree import Element

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.bounded_xml import parse_xml
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import PREMIUM, DescriptionSchema
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.frontends.http.management_parts import ManagedEntity, new_key, read_rights, reported
from sbpair.rules import filters
from sbpair.rules.values import TypedValue, read_typed
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0, 2.2, does not allow. A text that names the path of a request may have them."""

RULE: Final = "RuleDescription"
COMPATIBILITY_LEVEL: Final = "20"
_SINCE: Final = {
    "MaxMessageSizeInKilobytes": "2021-05",
    "SqlFilterCount": "2024-05",
    "CorrelationFilterCount": "2024-05",
}
"""The API version of elements that the first one lacks."""

_FILTERS: Final[dict[str, type[filters.Filter]]] = {
    each.__name__.replace("Rule", ""): each for each in get_args(filters.Filter)
}
"""The filters by their types, such as SqlFilter."""

_ACCESS_RULE: Final = {
    "ClaimType": "claim_type",
    "ClaimValue": "claim_value",
    "Rights": "",
    "CreatedTime": "created_at",
    "ModifiedTime": "modified_at",
    "KeyName": "key_name",
    "PrimaryKey": "primary_key",
    "SecondaryKey": "secondary_key",
}
"""The elements of an authorization rule in the service's order, with the fields that are texts."""

_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_SERIALIZED: Final = frozenset({"char", "guid", "duration"})
"""Types in the namespace of .NET's serializer. It reads `duration` from either namespace."""


def read_elements(description: Element) -> tuple[list[str], dict[str, str], list[AuthorizationRule]]:
    """Return the names of all elements in their order, the texts of those given, and the authorization rules."""
    names, values = [], {}
    access_rules: list[AuthorizationRule] = []
    for child in description:
        name = local_name(child)
        names.append(name)
        if child.get(f"{{{INSTANCE}}}nil") == "true":
            continue
        if name == "AuthorizationRules":
            access_rules = [read_access_rule(rule) for rule in child]
        else:
            values[name] = child.text or ""
    return names, values, access_rules


def description_in(data: bytes) -> Element:
    """Return the one description that an Atom entry holds, of whatever kind. Raises ArgumentInvalid."""
    try:
        entry = parse_xml(data)
    except ValueError as error:
        raise ArgumentInvalid(f"The request body is refused: {error}.") from error
    content = entry.find(f"{{{ATOM}}}content") if entry.tag == f"{{{ATOM}}}entry" else None
    if content is None or len(content) != 1:
        raise ArgumentInvalid("The request body is not an Atom entry whose content is one entity description.")
    return content[0]


def kind_of(description: Element) -> str:
    """Return `QueueDescription` or the like; "" for an element outside of Service Bus's namespace."""
    namespace, _, name = description.tag.rpartition("}")
    return name if namespace == "{" + SERVICE_BUS else ""


def local_name(element: Element) -> str:
    namespace, _, name = element.tag.rpartition("}")
    if namespace != "{" + SERVICE_BUS:
        raise ArgumentInvalid(f"The element '{name}' is not in the namespace {SERVICE_BUS}.")
    return name


def read_access_rule(element: Element) -> AuthorizationRule:
    texts = {local_name(child): (child.text or "").strip() for child in element}
    rights = [(right.text or "").strip() for right in element.iterfind(f"{{{SERVICE_BUS}}}Rights/")]
    given = {field: texts[name] for name, field in _ACCESS_RULE.items() if field and texts.get(name)}
    others = {"key_name": "", "primary_key": new_key(), "secondary_key": new_key()}
    return AuthorizationRule(**{**others, **given}, rights=read_rights(rights))


def element(name: str, text: str | None) -> str:
    return "" if text is None else f"<{name}>{escape(text, quote=False)}</{name}>"


def access_rule_xml(rule: AuthorizationRule) -> str:
    rights = "".join(element("AccessRights", right) for right in AccessRight if right in rule.rights)
    parts = (
        element(name, getattr(rule, field)) if field else f"<{name}>{rights}</{name}>"
        for name, field in _ACCESS_RULE.items()
    )
    return f'<AuthorizationRule i:type="SharedAccessAuthorizationRule">{"".join(parts)}</AuthorizationRule>'


def reported_elements(entity: ManagedEntity) -> dict[str, str]:
    """Return the elements that the service sets, for any kind of description: each has some of them."""
    values = reported(entity)
    availability = "Limited" if entity.is_limited else "Available"
    values |= {"IsAnonymousAccessible": "false", "SupportOrdering": "true", "EntityAvailabilityStatus": availability}
    if isinstance(entity, TopicEntity):
        values["SqlFilterCount"], values["CorrelationFilterCount"] = entity.count_filters()
    access_rules = "".join(access_rule_xml(rule) for rule in entity.description.authorization_rules)
    counts = "".join(element(f"d2p1:{name}", str(count)) for name, count in values.pop("CountDetails", {}).items())
    return {
        **{name: element(name, str(value)) for name, value in values.items()},
        "AuthorizationRules": f"<AuthorizationRules>{access_rules}</AuthorizationRules>",
        "CountDetails": f'<CountDetails xmlns:d2p1="{COUNTS}">{counts}</CountDetails>',
    }


def entity_xml(schema: DescriptionSchema, entity: ManagedEntity, api_version: str, *, is_new: bool = False) -> str:
    """Return an entity's description with its elements in order, without those that are newer than the API version.

    The answer to a creation lacks the counts and the time of the last access; a subscription has one that is never.
    """
    parts = reported_elements(entity)
    if is_new:
        del parts["CountDetails"], parts["AccessedAt"]
        if isinstance(entity, SubscriptionEntity):
            parts["AccessedAt"] = element("AccessedAt", "0001-01-01T00:00:00")
    parts |= {name: element(name, each.text(entity.description)) for name, each in schema.properties.items()}
    content = "".join(parts.get(name, "") for name in schema.elements if _SINCE.get(name, "") <= api_version)
    return f'<{schema.element} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{content}</{schema.element}>'


class EntryPlace(NamedTuple):
    """The URI of an entry; in a list, also its link relative to `base`, the URI of the list."""

    uri: str
    link: str = ""
    base: str = ""


def entry_xml(
    place: EntryPlace, title: str, times_ms: tuple[int | None, int], content: str, author: str | None = None
) -> str:
    """Return an entry. `times_ms` are its publication, which the answer to a change lacks, and its last update."""
    published, updated = times_ms
    base = f' xml:base="{escape(place.base)}"' if place.base else ""
    return (
        f'<entry xmlns="{ATOM}"{base}>'
        + element("id", place.uri)
        + f'<title type="text">{escape(title)}</title>'
        + ("" if published is None else element("published", instant(published)))
        + element("updated", instant(updated))
        + ("" if author is None else f"<author>{element('name', author)}</author>")
        + f'<link rel="self" href="{escape(place.link or place.uri)}"/>'
        + f'<content type="application/xml">{content}</content></entry>'
    )


def feed_xml(uri: str, title: str, now_ms: int, entries: Iterable[str], next_href: str | None = None) -> str:
    following = "" if next_href is None else f'<link rel="next" href="{escape(next_href)}"/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title>'
        + element("id", uri)
        + element("updated", instant(now_ms))
        + f'<link rel="self" href="{escape(uri)}"/>{following}'
        + "".join(entries)
        + "</feed>"
    )


def public_feed_xml(identity: uuid.UUID, now_ms: int) -> str:
    """Return the feed of a path where nothing is."""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title>'
        '<subtitle type="text">This is the list of publicly-listed services currently available.</subtitle>'
        f"<id>uuid:{identity};id=1</id>{element('updated', instant(now_ms))}"
        "<generator>Service Bus 1.1</generator></feed>"
    )


def namespace_xml(namespace: Namespace) -> str:
    return (
        f'<NamespaceInfo xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
        + element("CreatedTime", instant(namespace.created_at_ms))
        + element("MessagingSKU", namespace.tier.name)
        + (element("MessagingUnits", str(namespace.messaging_units)) if namespace.tier is PREMIUM else "")
        + element("ModifiedTime", instant(namespace.created_at_ms))
        + element("Name", namespace.name)
        + element("NamespaceType", "Messaging")
        + "</NamespaceInfo>"
    )


def error_xml(status: int, detail: str) -> str:
    allowed = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", detail)
    return f"<Error><Code>{status}</Code><Detail>{escape(allowed, quote=False)}</Detail></Error>"


# Rules


def read_rule(description: Element, name: str | None = None) -> rules.SubscriptionRule:
    """Return the rule of a RuleDescription, or of a first one, with `name` if given.

    Raises ArgumentInvalid and RuleInvalid.
    """
    parts = {local_name(child): child for child in description}
    named = (parts["Name"].text or "").strip() if "Name" in parts else ""
    rule_filter = read_filter(parts["Filter"]) if "Filter" in parts else filters.TrueRuleFilter()
    action = read_action(parts["Action"]) if "Action" in parts else None
    return rules.SubscriptionRule(name or named or rules.DEFAULT_RULE, rule_filter, action)


def read_filter(described: Element) -> filters.Filter:
    parts = {local_name(child): child for child in described}
    kind = _FILTERS.get(type_of(described))
    if kind is None:
        raise ArgumentInvalid(f"'{type_of(described)[:100]}' is not a type of filter.")
    if kind is filters.SqlRuleFilter:
        return filters.SqlRuleFilter(_text(parts, "SqlExpression"), _named(parts.get("Parameters")))
    if kind is filters.CorrelationRuleFilter:
        texts = {field: _text(parts, name) or None for field, name in filters.CORRELATION_FIELDS.items()}
        return filters.CorrelationRuleFilter(**texts, properties=_named(parts.get("Properties")))
    return filters.TrueRuleFilter() if kind is filters.TrueRuleFilter else filters.FalseRuleFilter()


def read_action(described: Element) -> rules.SqlAction | None:
    kind = type_of(described)
    if kind in ("", "EmptyRuleAction"):
        return None
    if kind != "SqlRuleAction":
        raise ArgumentInvalid(f"'{kind[:100]}' is not a type of action.")
    parts = {local_name(child): child for child in described}
    return rules.SqlAction(_text(parts, "SqlExpression"), _named(parts.get("Parameters")))


def type_of(described: Element) -> str:
    return described.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def _text(parts: dict[str, Element], name: str) -> str:
    return (parts[name].text or "") if name in parts else ""


def _named(described: Element | None) -> filters.NamedValues:
    return () if described is None else tuple(_read_pair(pair) for pair in described)


def _read_pair(pair: Element) -> tuple[str, TypedValue]:
    parts = {local_name(child): child for child in pair}
    key = _text(parts, "Key")
    if not key or "Value" not in parts:
        raise ArgumentInvalid("A parameter, or a property, of a filter has a Key and a Value.")
    return key, read_typed(type_of(parts["Value"]) or "string", _text(parts, "Value"))


def rule_xml(rule: rules.SubscriptionRule) -> str:
    return (
        f'<{RULE} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
        + filter_xml(rule.filter)
        + action_xml(rule.action)
        + element("CreatedAt", instant(rule.created_at_ms))
        + element("Name", rule.name)
        + f"</{RULE}>"
    )


def filter_xml(rule_filter: filters.Filter) -> str:
    if isinstance(rule_filter, filters.CorrelationRuleFilter):
        texts = "".join(
            element(name, getattr(rule_filter, field)) for field, name in filters.CORRELATION_FIELDS.items()
        )
        content = texts + _pairs("Properties", rule_filter.properties)  # 2021's client for Go cannot read an empty one
    else:
        parameters = rule_filter.parameters if isinstance(rule_filter, filters.SqlRuleFilter) else ()
        content = _sql(rule_filter.expression, parameters)
    return f'<Filter i:type="{type(rule_filter).__name__.replace("Rule", "")}">{content}</Filter>'


def action_xml(action: rules.SqlAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return f'<Action i:type="SqlRuleAction">{_sql(action.expression, action.parameters)}</Action>'


def _sql(expression: str, parameters: filters.NamedValues) -> str:
    return (
        element("SqlExpression", expression)
        + element("CompatibilityLevel", COMPATIBILITY_LEVEL)
        + (_pairs("Parameters", parameters) or "<Parameters/>")
    )


def _pairs(name: str, named: filters.NamedValues) -> str:
    pairs = [
        f"<KeyValueOfstringanyType>{element('Key', key)}{_value(typed)}</KeyValueOfstringanyType>"
        for key, typed in named
    ]
    return f"<{name}>{''.join(pairs)}</{name}>" if pairs else ""


def _value(typed: TypedValue) -> str:
    namespace = _SERIALIZATION if typed.kind in _SERIALIZED else _SCHEMA
    return f'<Value i:type="d6p1:{typed.kind}" xmlns:d6p1="{namespace}">{escape(typed.text, quote=False)}</Value>'
