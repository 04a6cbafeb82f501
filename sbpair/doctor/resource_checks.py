"""Checks of both namespaces as resources: place, tier, network and keys, as Azure Resource Manager describes them.

Read-only. A namespace is looked for in the resource group, then in the whole subscription: the sides of a pair are
often in different groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address

from sbpair.azure.arm import ArmNamespace, Clients, Json, list_namespaces, open_clients
from sbpair.azure.management_errors import refuse_unreadable_answers
from sbpair.doctor.check import Check, Emit, bounded, failed, note, ok
from sbpair.doctor.namespace_checks import addresses_of
from sbpair.errors import UsageError
from sbpair.model.pair import SIDES, Endpoint, Identity, ResourceGroup

OLD_TLS = ("1.0", "1.1")


async def check_resources(
    endpoints: Mapping[str, Endpoint], group: ResourceGroup, seconds: float, emit: Emit
) -> list[Check]:
    """Check each side, and compare them. Errors are failed checks."""
    found: dict[str, Json] = {}
    more: dict[str, list[Check]] = {}

    async def look(side: str, endpoint: Endpoint) -> str:
        addresses: list[str] = []
        with suppress(OSError, UnicodeError):
            addresses = await addresses_of(endpoint)
        async with open_clients(endpoint) as clients:
            namespace = await _find(clients, endpoint.name, group)
            rules, resource = await namespace.network_rules(), namespace.resource
            with refuse_unreadable_answers("read the properties of the namespace", "Resource Manager"):
                aliases = await namespace.aliases() if resource["sku"]["name"] == "Premium" else []
                more[side] = list(side_checks(side, endpoint, resource, aliases, rules, addresses))
        found[side] = resource
        return f"in resource group {namespace.group}"

    looks = (bounded(f"{side}.resource", seconds, look(side, each)) for side, each in endpoints.items())
    checks = [*await asyncio.gather(*looks), *(check for side in endpoints for check in more.get(side, ()))]
    if set(found) == set(SIDES):
        checks += resource_pair_checks(*(found[side] for side in SIDES))
    return [emit(each) for each in checks]


async def _find(clients: Clients, name: str, group: ResourceGroup) -> ArmNamespace:
    for where in (group.name, ""):
        for each in await list_namespaces(clients, group.subscription, where):
            if each.name.lower() == name.lower():
                return each
    raise UsageError(f"no namespace {name} in subscription {group.subscription}", hint="check --subscription")


def side_checks(
    side: str, endpoint: Endpoint, resource: Json, aliases: Iterable[str], rules: Json, addresses: Iterable[str]
) -> Iterator[Check]:
    """Yield the checks of one namespace. `addresses` are those that this machine finds for it."""
    has, sku = resource["properties"], resource["sku"]
    zones = "zone redundant" if has.get("zoneRedundant") else "not zone redundant"
    units, partitions = sku.get("capacity") or 1, has.get("premiumMessagingPartitions") or 1
    replicas = (has.get("geoDataReplication") or {}).get("locations") or ()
    places = ", ".join(f"{each['locationName']} ({each.get('roleType')})" for each in replicas)
    public = str(has.get("publicNetworkAccess") or "Enabled")
    counts = f"{len(rules.get('ipRules') or ())} IP rules, {len(rules.get('virtualNetworkRules') or ())} subnets"
    facts = {
        "region": f"{resource['location']}, {zones}",
        "capacity": f"{sku['name']}, messaging units: {units}, partitions: {partitions}",
        "replication": places or "no geo-replication",
        "aliases": ", ".join(aliases) or "no alias of Geo-Disaster Recovery",
        "network": f"public access {public.lower()}, {rules.get('defaultAction') or 'Allow'} by default, {counts}",
    }
    yield from (ok(f"{side}.{name}", fact) for name, fact in facts.items())
    tls, disabled = str(has.get("minimumTlsVersion") or "1.2"), has.get("disableLocalAuth")
    problem = f"TLS {tls} is accepted" if tls in OLD_TLS else ""
    hint = "set the minimum TLS version of the namespace to 1.2"
    yield _judged(f"{side}.minimum_tls", problem, hint, tls, note)
    uses_key = not isinstance(endpoint.credential, Identity)
    problem = f"{endpoint.name} accepts no keys (disableLocalAuth), and the pair uses one" if uses_key else ""
    hint = "sign in with an identity, or enable local authentication of the namespace"
    keys = "refused: identities alone" if disabled else "accepted"
    yield _judged(f"{side}.keys", problem if disabled else "", hint, keys)
    if has.get("privateEndpointConnections"):
        is_private = any(ip_address(each.partition("%")[0]).is_private for each in addresses)
        problem = f"{endpoint.host} has no private address here, and public access is {public.lower()}"
        hint = "link the zone privatelink.servicebus.windows.net to this network, or resolve its names by its DNS"
        fine, judge = f"{endpoint.host} has a private address here", note if public == "Enabled" else failed
        yield _judged(f"{side}.private_endpoint", "" if is_private else problem, hint, fine, judge)


def resource_pair_checks(primary: Json, secondary: Json) -> Iterator[Check]:
    """Yield the comparison of two namespaces."""
    both = (primary, secondary)
    places = [str(each["location"]).replace(" ", "").lower() for each in both]
    tiers = [str(each["sku"]["name"]) for each in both]
    units = [int(each["sku"].get("capacity") or 1) for each in both]
    problem = f"both namespaces are in {primary['location']}" if places[0] == places[1] else ""
    hint = "put the secondary into another region: an outage of a data centre takes both away"
    yield _judged("regions", problem, hint, " and ".join(places))
    if tiers[0] != tiers[1]:
        hint = "use the same tier: messages, features and throughput of one may not fit the other"
        yield failed("same_tier", f"the primary is {tiers[0]}, the secondary {tiers[1]}", hint)
        return
    problem = f"messaging units: {units[0]} in the primary, {units[1]} in the secondary" if units[1] < units[0] else ""
    hint = "give the secondary as many messaging units, before it takes all of the load"
    yield _judged("same_capacity", problem, hint, f"{tiers[0]}, messaging units: {units[0]} and {units[1]}")


def _judged(name: str, problem: str, hint: str, fine: str, judge: Callable[[str, str, str], Check] = failed) -> Check:
    return judge(name, problem, hint) if problem else ok(name, fine)
