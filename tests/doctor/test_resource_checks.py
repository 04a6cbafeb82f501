"""Checks of both namespaces as resources: each finding, and a pair on an emulator's Resource Manager."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import doctor
from sbpair.doctor import CheckSubject
from sbpair.doctor.resource_checks import resource_pair_checks, side_checks
from sbpair.model.pair import Endpoint, Identity, ResourceGroup, SasKey
from sbpair.model.report import Outcome
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.pairs import pair_on, use_identity

GROUP = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
HOST = "contoso.servicebus.windows.net"
KEYED = Endpoint("contoso", HOST, HOST, 5671, tls=True, credential=SasKey("Root", "key"))
SIGNED = replace(KEYED, credential=Identity())
PUBLIC, PRIVATE = ["40.0.0.1"], ["40.0.0.1", "10.0.0.4"]
CONNECTIONS: dict[str, Any] = {"privateEndpointConnections": [{"properties": {}}]}
DISABLED = {"publicNetworkAccess": "Disabled"}


def resource(*, location: str = "westeurope", tier: str = "Premium", units: int = 1, **has: Any) -> dict[str, Any]:
    return {"location": location, "sku": {"name": tier, "capacity": units}, "properties": has}


@pytest.mark.parametrize(
    ("endpoint", "has", "addresses", "name", "outcome"),
    [
        (KEYED, {}, PUBLIC, "keys", Outcome.OK),
        (KEYED, {"disableLocalAuth": True}, PUBLIC, "keys", Outcome.FAILED),
        (SIGNED, {"disableLocalAuth": True}, PUBLIC, "keys", Outcome.OK),
        (SIGNED, {"minimumTlsVersion": "1.0"}, PUBLIC, "minimum_tls", Outcome.NOTE),
        (SIGNED, {"minimumTlsVersion": "1.2"}, PUBLIC, "minimum_tls", Outcome.OK),
        (SIGNED, {**CONNECTIONS, **DISABLED}, PUBLIC, "private_endpoint", Outcome.FAILED),
        (SIGNED, {**CONNECTIONS, **DISABLED}, [], "private_endpoint", Outcome.FAILED),
        (SIGNED, {**CONNECTIONS, **DISABLED}, PRIVATE, "private_endpoint", Outcome.OK),
        (SIGNED, {**CONNECTIONS, **DISABLED}, ["fd00::4%eth0"], "private_endpoint", Outcome.OK),
        (SIGNED, CONNECTIONS, PUBLIC, "private_endpoint", Outcome.NOTE),
    ],
)
def test_a_side_is_judged_by_its_properties(
    endpoint: Endpoint, has: dict[str, Any], addresses: list[str], name: str, outcome: Outcome
) -> None:
    checks = {each.name: each for each in side_checks("primary", endpoint, resource(**has), [], {}, addresses)}
    assert checks.pop(f"primary.{name}").outcome is outcome
    assert {each.outcome for each in checks.values()} == {Outcome.OK}


@pytest.mark.parametrize(
    ("primary", "secondary", "failing"),
    [
        ({}, {"location": "North Europe"}, set()),
        ({}, {"location": "West Europe"}, {"regions"}),
        ({}, {"location": "northeurope", "tier": "Standard"}, {"same_tier"}),
        ({"units": 4}, {"location": "northeurope", "units": 2}, {"same_capacity"}),
        ({"units": 2}, {"location": "northeurope", "units": 4}, set()),
    ],
)
def test_a_pair_is_judged_by_place_tier_and_capacity(
    primary: dict[str, Any], secondary: dict[str, Any], failing: set[str]
) -> None:
    checks = list(resource_pair_checks(resource(**primary), resource(**secondary)))
    assert {each.name for each in checks if each.outcome is Outcome.FAILED} == failing
    assert all(each.detail and each.detail.hint for each in checks if each.outcome is not Outcome.OK)


async def test_the_resources_of_a_pair_in_two_groups_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: Any = [("contoso", 0, "premium", 2), ("contoso-dr", 0, "premium", 1)]
    async with Emulator(wanted, options=EmulatorOptions(identity=True)) as emulator:
        use_identity(emulator, monkeypatch)
        primary, secondary = (each.resource for each in emulator.namespaces.values())
        locations = [{"locationName": "francecentral", "roleType": "Secondary"}]
        primary |= {"place": (GROUP.subscription, "messaging"), "location": "westeurope"}
        primary["properties"] = {"zoneRedundant": True, "geoDataReplication": {"locations": locations}}
        primary["disasterRecoveryConfigs"] = {"orders": {"partnerNamespace": "contoso-eu"}}
        secondary |= {"place": (GROUP.subscription, "elsewhere"), "location": "westeurope"}
        secondary["networkRuleSets"] = {"default": {"defaultAction": "Deny", "ipRules": [{"ipMask": "10.0.0.0/8"}]}}
        pair = pair_on(emulator)
        subject = CheckSubject(
            {"primary": pair.primary, "secondary": pair.secondary}, Path("/nowhere/file"), group=GROUP
        )
        checks = {each.name: each for each in await doctor.diagnose(subject, environ={})}
        assert checks["primary.resource"].reason == "in resource group messaging"
        assert checks["secondary.resource"].reason == "in resource group elsewhere"
        assert checks["primary.region"].reason == "westeurope, zone redundant"
        assert checks["primary.capacity"].reason == "Premium, messaging units: 2, partitions: 2"
        assert checks["primary.replication"].reason == "francecentral (Secondary)"
        assert checks["primary.aliases"].reason == "orders (Primary, partner contoso-eu)"
        network = "public access enabled, Deny by default, 1 IP rules, 0 subnets"
        assert checks["secondary.network"].reason == network
        failing = [name for name in ("regions", "same_capacity", "same_tier") if checks.get(name)]
        assert [(name, checks[name].exit_code) for name in failing] == [("regions", 3), ("same_capacity", 3)]


@pytest.mark.parametrize(
    ("status", "place", "code", "says"),
    [(0, "other", 2, "no namespace contoso in subscription"), (403, "", 5, "refuses it (403)")],
)
async def test_a_resource_that_cannot_be_read_is_a_failed_check(
    status: int, place: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Emulator(options=EmulatorOptions(identity=True)) as emulator:
        use_identity(emulator, monkeypatch)
        if place:
            emulator.namespaces["contoso"].resource["place"] = ("1" * 8 + GROUP.subscription[8:], place)
        if status:
            emulator.faults.refuse_requests("contoso", status, "networkrulesets/default", method="GET")
        pair = pair_on(emulator)
        subject = CheckSubject(
            {"primary": pair.primary, "secondary": pair.secondary}, Path("/nowhere/file"), group=GROUP
        )
        checks = {each.name: each for each in await doctor.diagnose(subject, environ={})}
        assert (checks["primary.resource"].exit_code, says in checks["primary.resource"].reason) == (code, True)
        assert checks["secondary.resource"].outcome is Outcome.OK
        assert "regions" not in checks
