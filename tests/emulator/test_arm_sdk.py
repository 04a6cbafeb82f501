"""azure-mgmt-servicebus, unmodified, against the emulator's Resource Manager: what it gets, and what it is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.core.rest import HttpRequest
from azure.identity import ManagedIdentityCredential
from azure.mgmt.servicebus import ServiceBusManagementClient as SyncClient
from azure.mgmt.servicebus.aio import ServiceBusManagementClient
from azure.mgmt.servicebus.models import SBAuthorizationRule, SBQueue, SBSubscription, SBTopic

from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.testing import Emulator, EmulatorOptions

SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
PLACE = ("any-group", "contoso")
PLAIN = {"enforce_https": False}
"""These clients send no token over plain HTTP otherwise."""


class Issued:
    """A credential that the emulator's own issuer signs for."""

    def __init__(self, emulator: Emulator) -> None:
        assert emulator.identity is not None
        self._token, _ = emulator.bearers.issue(ARM_AUDIENCES[0], emulator.clock.now_ms())

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self._token, 2**40)


@asynccontextmanager
async def open_client() -> AsyncIterator[tuple[Emulator, ServiceBusManagementClient]]:
    wanted = [("contoso", 0), ("contoso-dr", 0, "premium", 2)]
    async with Emulator(wanted, options=EmulatorOptions(identity=True)) as emulator:
        base_url = f"http://{emulator.namespaces['contoso'].authority}"
        credential: Any = Issued(emulator)
        async with ServiceBusManagementClient(credential, SUBSCRIPTION, base_url, retry_total=0) as client:
            yield emulator, client


async def every(pages: Any) -> list[Any]:
    return [each async for each in pages]


async def test_namespaces_are_told_from_any_port_with_their_tiers() -> None:
    async with open_client() as (_, client):
        for pages in (client.namespaces.list(**PLAIN), client.namespaces.list_by_resource_group("any", **PLAIN)):
            standard, premium = await every(pages)
            assert (standard.name, standard.sku.name, standard.sku.capacity) == ("contoso", "Standard", None)
            assert (premium.name, premium.sku.tier, premium.sku.capacity) == ("contoso-dr", "Premium", 2)
            assert (premium.premium_messaging_partitions, premium.minimum_tls_version) == (2, "1.2")
            assert premium.metric_id == f"{SUBSCRIPTION}:contoso-dr"
        one = await client.namespaces.get("mine", "CONTOSO-DR", **PLAIN)
        assert one.id == (
            f"/subscriptions/{SUBSCRIPTION}/resourceGroups/mine/providers/Microsoft.ServiceBus/namespaces/contoso-dr"
        )
        with pytest.raises(ResourceNotFoundError) as missing:
            await client.namespaces.get("mine", "fabrikam", **PLAIN)
        assert missing.value.error.code == "ResourceNotFound"


async def test_a_put_namespace_is_in_one_place_with_its_properties() -> None:
    async with open_client() as (_, client):
        properties = {"disableLocalAuth": True, "zoneRedundant": True, "publicNetworkAccess": "Disabled"}
        replicas = {"locations": [{"locationName": "northeurope", "roleType": "Secondary"}]}
        connection = {"properties": {"privateLinkServiceConnectionState": {"status": "Approved"}}}
        document: Any = {
            "location": "westeurope",
            "sku": {"name": "Premium", "capacity": 4},
            "properties": {**properties, "geoDataReplication": replicas, "privateEndpointConnections": [connection]},
        }
        poller = await client.namespaces.begin_create_or_update(
            "EUROPE", "contoso-dr", document, polling=False, **PLAIN
        )
        await poller.result()
        found = await client.namespaces.get("europe", "contoso-dr", **PLAIN)
        assert (found.location, found.sku.capacity, found.disable_local_auth) == ("westeurope", 4, True)
        assert found.geo_data_replication.locations[0].location_name == "northeurope"
        [endpoint] = found.private_endpoint_connections
        assert endpoint.properties.private_link_service_connection_state.status == "Approved"
        await client.namespaces.update("europe", "contoso-dr", {"properties": {"minimumTlsVersion": "1.3"}}, **PLAIN)
        found = await client.namespaces.get("europe", "contoso-dr", **PLAIN)
        assert (found.minimum_tls_version, found.zone_redundant) == ("1.3", True)
        with pytest.raises(ResourceNotFoundError):
            await client.namespaces.get("asia", "contoso-dr", **PLAIN)
        names = [each.name for each in await every(client.namespaces.list_by_resource_group("asia", **PLAIN))]
        assert names == ["contoso"]
        contoso, other = await every(client.namespaces.list(**PLAIN))
        assert [each.id.split("/")[4] for each in (contoso, other)] == ["emulator", "EUROPE"]
        other_id = "11111111-1111-1111-1111-111111111111"
        elsewhere = f"/subscriptions/{other_id}/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso"
        put = HttpRequest("PUT", f"{elsewhere}?api-version=2026-01-01", json={"location": "westus"})
        assert (await client.send_request(put, **PLAIN)).json()["location"] == "westus"
        assert [each.name for each in await every(client.namespaces.list(**PLAIN))] == ["contoso-dr"]
        answer = await client.send_request(HttpRequest("GET", "/subscriptions?api-version=2022-12-01"), **PLAIN)
        assert [each["subscriptionId"] for each in answer.json()["value"]] == [SUBSCRIPTION, other_id]


async def test_aliases_and_network_rules_are_kept() -> None:
    async with open_client() as (_, client):
        place, aliases = ("any", "contoso-dr"), client.disaster_recovery_configs
        assert await every(aliases.list(*place, **PLAIN)) == []
        await aliases.create_or_update(*place, "orders", {"properties": {"partnerNamespace": "x"}}, **PLAIN)
        [alias] = await every(aliases.list(*place, **PLAIN))
        assert (alias.name, alias.partner_namespace, alias.role) == ("orders", "x", "Primary")
        await aliases.delete(*place, "orders", **PLAIN)
        assert await every(aliases.list(*place, **PLAIN)) == []
        assert (await client.namespaces.get_network_rule_set(*place, **PLAIN)).default_action == "Allow"
        rules: Any = {"properties": {"defaultAction": "Deny", "ipRules": [{"ipMask": "10.0.0.0/8", "action": "Allow"}]}}
        await client.namespaces.create_or_update_network_rule_set(*place, rules, **PLAIN)
        kept = await client.namespaces.get_network_rule_set(*place, **PLAIN)
        assert (kept.default_action, kept.ip_rules[0].ip_mask) == ("Deny", "10.0.0.0/8")


async def test_what_clients_ask_for_before_they_create_anything_has_answers() -> None:
    async with open_client() as (_, client):
        place = ("any", "contoso-dr")
        assert await every(client.operations.list(**PLAIN)) == []
        assert await every(client.migration_configs.list(*place, **PLAIN)) == []
        assert await every(client.private_endpoint_connections.list(*place, **PLAIN)) == []
        [link] = (await client.private_link_resources.get(*place, **PLAIN)).value
        assert (link.name, link.required_members) == ("namespace", ["namespace"])
        [rules] = await every(client.namespaces.list_network_rule_sets(*place, **PLAIN))
        assert (rules.name, rules.public_network_access) == ("default", "Enabled")
        await client.disaster_recovery_configs.create_or_update(*place, "alias", {"properties": {}}, **PLAIN)
        for check, names in (
            (client.namespaces.check_name_availability, ("Contoso", "fabrikam", "1")),
            (partial(client.disaster_recovery_configs.check_name_availability, *place), ("Alias", "fabrikam", "a b")),
        ):
            found = [await check({"name": name}, **PLAIN) for name in names]
            assert [each.reason for each in found] == ["NameInUse", "None", "InvalidName"]
            assert [each.name_available for each in found] == [False, True, False]


async def test_a_queue_is_made_read_changed_and_deleted_by_its_name_with_a_tilde() -> None:
    async with open_client() as (emulator, client):
        queues, name = client.queues, "contoso~x-servicebus-transfer~0"
        wanted = SBQueue(max_size_in_megabytes=5120, enable_partitioning=True, lock_duration=timedelta(seconds=30))
        made = await queues.create_or_update(*PLACE, name, wanted, **PLAIN)
        assert (made.name, made.max_size_in_megabytes) == (name, 81920)
        inside = emulator.namespaces["contoso"].queue("contoso/x-servicebus-transfer/0")
        assert inside.description.max_size_in_megabytes == 5120
        read = await queues.get(*PLACE, name, **PLAIN)
        assert read["properties"]["lockDuration"] == "PT30S"
        assert read["properties"]["defaultMessageTimeToLive"] == "P10675199DT2H48M5.4775807S"
        assert (read.count_details.active_message_count, read.size_in_bytes, read.message_count) == (0, 0, 0)
        emulator.namespaces["contoso"].create_queue("a/b")
        changed = {"properties": {"maxDeliveryCount": 3, "forwardTo": "a/b"}}
        again = await queues.create_or_update(*PLACE, name, changed, **PLAIN)
        assert (again.max_delivery_count, again.forward_to, again.enable_partitioning) == (3, "a/b", True)
        assert again.lock_duration == timedelta(minutes=1)
        with pytest.raises(HttpResponseError, match="RequiresSession") as refused:
            await queues.create_or_update(*PLACE, name, SBQueue(requires_session=True), **PLAIN)
        assert (refused.value.status_code, refused.value.error.code) == (400, "MessagingGatewayBadRequest")
        await queues.delete(*PLACE, name, **PLAIN)
        await queues.delete(*PLACE, name, **PLAIN)
        with pytest.raises(ResourceNotFoundError) as missing:
            await queues.get(*PLACE, name, **PLAIN)
        assert missing.value.error.code == "MessagingGatewayNotFoundStatusCode"


async def test_long_lists_come_in_pages() -> None:
    async with open_client() as (emulator, client):
        for number in range(205):
            emulator.namespaces["contoso"].create_queue(f"queue/{number:03}")
        found = [each.name for each in await every(client.queues.list_by_namespace(*PLACE, **PLAIN))]
        assert found == [f"queue~{number:03}" for number in range(205)]
        some = [each.name for each in await every(client.queues.list_by_namespace(*PLACE, skip=200, top=2, **PLAIN))]
        assert some == found[200:]


async def test_topics_subscriptions_and_rules_are_kept() -> None:
    async with open_client() as (_, client):
        await client.topics.create_or_update(*PLACE, "t~1", SBTopic(support_ordering=True), **PLAIN)
        place = (*PLACE, "t~1")
        wanted = SBSubscription(max_delivery_count=4, dead_lettering_on_filter_evaluation_exceptions=False)
        made = await client.subscriptions.create_or_update(*place, "all", wanted, **PLAIN)
        assert (made.max_delivery_count, made.dead_lettering_on_filter_evaluation_exceptions) == (4, False)
        correlation = {"label": "x", "contentType": "text/plain", "properties": {"a": "b"}}
        rule = {"filterType": "CorrelationFilter", "correlationFilter": correlation}
        action = {"sqlExpression": "SET seen = 1"}
        await client.rules.create_or_update(*place, "all", "r", {"properties": {**rule, "action": action}}, **PLAIN)
        default, own = await every(client.rules.list_by_subscriptions(*place, "all", **PLAIN))
        assert (default.name, default.sql_filter.sql_expression) == ("$Default", "1=1")
        assert own.correlation_filter.as_dict() == correlation
        assert own.action.sql_expression == "SET seen = 1"
        assert [each.name for each in await every(client.subscriptions.list_by_topic(*place, **PLAIN))] == ["all"]
        assert (await client.topics.get(*place, **PLAIN)).subscription_count == 1
        await client.rules.delete(*place, "all", "$Default", **PLAIN)
        await client.subscriptions.delete(*place, "all", **PLAIN)
        await client.topics.delete(*place, **PLAIN)
        assert await every(client.topics.list_by_namespace(*PLACE, **PLAIN)) == []


async def test_namespaces_and_entities_have_authorization_rules_and_keys() -> None:
    async with open_client() as (_, client):
        namespaces, queues, queue = client.namespaces, client.queues, (*PLACE, "orders")
        await queues.create_or_update(*queue, SBQueue(), **PLAIN)
        await queues.create_or_update_authorization_rule(*queue, "send", SBAuthorizationRule(rights=["Send"]), **PLAIN)
        (rule,) = await every(queues.list_authorization_rules(*queue, **PLAIN))
        assert (rule.name, rule.rights) == ("send", ["Send"])
        keys = await queues.list_keys(*queue, "send", **PLAIN)
        assert keys.primary_connection_string.endswith(
            f";SharedAccessKeyName=send;SharedAccessKey={keys.primary_key};EntityPath=orders"
        )
        renewed = await queues.regenerate_keys(*queue, "send", {"keyType": "PrimaryKey"}, **PLAIN)
        assert renewed.primary_key != keys.primary_key
        assert renewed.secondary_key == keys.secondary_key
        # What is changed without its rules keeps them.
        await queues.create_or_update(*queue, SBQueue(max_delivery_count=2), **PLAIN)
        assert (await queues.list_keys(*queue, "send", **PLAIN)).primary_key == renewed.primary_key
        root = await namespaces.list_keys(*PLACE, "RootManageSharedAccessKey", **PLAIN)
        assert root.primary_key == "SAS_KEY_VALUE"
        with pytest.raises(HttpResponseError, match="cannot be deleted"):
            await namespaces.delete_authorization_rule(*PLACE, "RootManageSharedAccessKey", **PLAIN)
        with pytest.raises(HttpResponseError, match="all with Manage"):
            await namespaces.create_or_update_authorization_rule(
                *PLACE, "half", SBAuthorizationRule(rights=["Manage"]), **PLAIN
            )


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (401, "ExpiredAuthenticationToken", "expired"),
        (403, "AuthorizationFailed", "authorization"),
        (409, "MessagingGatewayConflict", "SubCode=40901"),
        (429, "MessagingGatewayTooManyRequests", "SubCode=50004"),
        (500, "InternalServerError", "SubCode=50000"),
        (503, "ServiceUnavailable", "SubCode=50300"),
    ],
)
async def test_injected_refusals_have_resource_managers_form(status: int, code: str, text: str) -> None:
    async with open_client() as (emulator, client):
        emulator.faults.refuse_requests("contoso", status, "a/b", method="PUT", count=1, retry_after_seconds=3)
        with pytest.raises(HttpResponseError, match=text) as refused:
            await client.queues.create_or_update(*PLACE, "a~b", SBQueue(), **PLAIN)
        assert (refused.value.status_code, refused.value.error.code) == (status, code)
        assert refused.value.response.headers["Retry-After"] == "3"
        await client.queues.create_or_update(*PLACE, "a~b", SBQueue(), **PLAIN)


async def test_a_namespace_that_is_down_returns_503_and_is_still_listed() -> None:
    async with open_client() as (emulator, client):
        emulator.faults.namespace_down("contoso-dr")
        with pytest.raises(HttpResponseError) as refused:
            await client.queues.get("any", "contoso-dr", "orders", **PLAIN)
        assert refused.value.status_code == 503
        assert len(await every(client.namespaces.list(**PLAIN))) == 2


def test_the_sync_client_signs_in_as_a_managed_identity(another: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with another(options=EmulatorOptions(identity=True)) as signing:
        for name, value in signing.emulator.ready.identity.environment.items():
            monkeypatch.setenv(name, value)
        base_url = f"http://{signing.namespace.authority}"
        with (
            ManagedIdentityCredential() as credential,
            SyncClient(credential, SUBSCRIPTION, base_url, retry_total=0) as client,
        ):
            client.queues.create_or_update(*PLACE, "a~b", SBQueue(), **PLAIN)
            assert [each.name for each in client.queues.list_by_namespace(*PLACE, **PLAIN)] == ["a~b"]
