"""Hybrid connections in Atom, in Resource Manager by azure-mgmt-relay, in the data file and in declarations."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.relay.aio import RelayAPIMgmtClient
from azure.mgmt.relay.models import AuthorizationRule, HybridConnection, RegenerateAccessKeyParameters

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.service_errors import EntityExists
from sbpair.testing import Emulator, EmulatorOptions
from sbpair.testing.emulator_thread import read_declaration
from tests.emulator.relay_peers import RelayBench, open_bench
from tests.emulator.test_arm_sdk import PLAIN, SUBSCRIPTION, Issued

CONNECT = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
HYCO = ("any", "contoso", "hyco")


async def read_atom(bench: RelayBench, path: str, token: str, method: str = "GET") -> tuple[int, str]:
    headers = {"Authorization": token, "X-PROCESS-AT": "ServiceBus"}
    url = bench.url(f"{path}?api-version=2016-07", "http")
    async with bench.session.request(method, url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_atom_describes_an_endpoint_with_its_listeners(bench: RelayBench) -> None:
    await bench.listen()
    status, text = await read_atom(bench, "/hyco", bench.token())
    found = ET.fromstring(text).find(f".//{CONNECT}HybridConnectionDescription")  # noqa: S314  # our own

    assert status == 200
    assert found is not None
    names = [each.tag.removeprefix(CONNECT) for each in found]
    assert names == ["CreatedAt", "UpdatedAt", "RequiresClientAuthorization", "ListenerCount"]
    assert (found[2].text, found[3].text) == ("true", "1")


async def test_atom_answers_a_missing_endpoint_with_a_feed(bench: RelayBench) -> None:
    status, text = await read_atom(bench, "/none", bench.token("/none"))
    assert (status, ET.fromstring(text).tag) == (200, "{http://www.w3.org/2005/Atom}feed")  # noqa: S314


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/other", 401), ("PUT", "/hyco", 405)])
async def test_atom_refuses_wrong_tokens_and_methods(bench: RelayBench, method: str, path: str, status: int) -> None:
    assert (await read_atom(bench, "/hyco", bench.token(path), method))[0] == status


def client_of(emulator: Emulator) -> Any:
    base = f"http://{emulator.namespaces['contoso'].authority}"
    credential: Any = Issued(emulator)
    return RelayAPIMgmtClient(credential, SUBSCRIPTION, base_url=base, retry_total=0)


async def test_the_relay_client_of_azure_manages_hybrid_connections() -> None:
    async with open_bench(identity=True) as bench, client_of(bench.emulator) as client:
        await bench.listen()
        connections = client.hybrid_connections
        made = await connections.create_or_update(
            "any", "contoso", "a~b", HybridConnection(requires_client_authorization=False, user_metadata="m"), **PLAIN
        )
        assert (made.name, made.requires_client_authorization, made.user_metadata) == ("a~b", False, "m")
        assert bench.namespace.hybrid_connections.find("a/b") is not None
        found = await connections.get(*HYCO, **PLAIN)
        assert (found.listener_count, found.requires_client_authorization) == (1, True)
        assert found.type == "Microsoft.Relay/namespaces/HybridConnections"
        assert [each.name async for each in connections.list_by_namespace("any", "contoso", **PLAIN)] == ["a~b", "hyco"]
        await connections.delete("any", "contoso", "a~b", **PLAIN)
        await connections.delete("any", "contoso", "a~b", **PLAIN)
        with pytest.raises(ResourceNotFoundError):
            await connections.get("any", "contoso", "a~b", **PLAIN)


async def test_the_relay_client_of_azure_manages_namespaces_and_keys() -> None:
    async with open_bench(identity=True) as bench, client_of(bench.emulator) as client:
        [namespace] = [each async for each in client.namespaces.list(**PLAIN)]
        assert (namespace.name, namespace.type) == ("contoso", "Microsoft.Relay/namespaces")
        assert (await client.namespaces.get("any", "contoso", **PLAIN)).provisioning_state == "Succeeded"
        keys = await client.namespaces.list_keys("any", "contoso", "RootManageSharedAccessKey", **PLAIN)
        assert keys.primary_key == "SAS_KEY_VALUE"
        connections = client.hybrid_connections
        rule = AuthorizationRule(rights=["Listen"])
        await connections.create_or_update_authorization_rule(*HYCO, "own", rule, **PLAIN)
        keys = await connections.list_keys(*HYCO, "own", **PLAIN)
        assert keys.primary_connection_string.endswith(";EntityPath=hyco")
        listed = [each.name async for each in connections.list_authorization_rules(*HYCO, **PLAIN)]
        assert listed == ["own"]
        wanted = RegenerateAccessKeyParameters(key_type="PrimaryKey")
        assert (await connections.regenerate_keys(*HYCO, "own", wanted, **PLAIN)).primary_key != keys.primary_key
        await connections.delete_authorization_rule(*HYCO, "own", **PLAIN)
        assert bench.entity.description.authorization_rules == ()


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("hyco", "requiresClientAuthorization", False),
        ("new", "requiresClientAuthorization", "yes"),
        ("new", "userMetadata", "x" * 1025),
        ("new", "userMetadata", 5),
        ("new", "lockDuration", "PT1M"),
        ("b d", "userMetadata", "x"),
        ("orders", "userMetadata", "x"),
    ],
)
async def test_resource_manager_refuses_wrong_endpoints(path: str, name: str, body: object) -> None:
    async with open_bench(identity=True) as bench, client_of(bench.emulator) as client:
        bench.namespace.create_queue("orders")
        document: Any = {"properties": {name: body}}
        with pytest.raises(HttpResponseError) as refused:
            await client.hybrid_connections.create_or_update("any", "contoso", path, document, **PLAIN)
        assert refused.value.status_code in (400, 409)


async def test_queues_and_endpoints_share_one_set_of_names(bench: RelayBench) -> None:
    with pytest.raises(EntityExists):
        bench.namespace.create_queue("HYCO")
    with pytest.raises(EntityExists):
        bench.namespace.hybrid_connections.create("Hyco")
    with pytest.raises(ArgumentInvalid):
        bench.namespace.hybrid_connections.create("a b")


async def test_endpoints_and_their_keys_survive_in_the_data_file(tmp_path: Path) -> None:
    options = EmulatorOptions(data=tmp_path / "emulator.db")
    declaration = {"a/b": {"requires_client_authorization": False, "user_metadata": "m"}}
    async with Emulator([("contoso", 0)], options=options) as emulator:
        read_declaration({"hybrid_connections": declaration}).create_in(emulator.namespaces["contoso"])
        before = emulator.namespaces["contoso"].hybrid_connections.all()
    async with Emulator([("contoso", 0)], options=options) as emulator:
        [restored] = emulator.namespaces["contoso"].hybrid_connections.all()
        assert (restored.path, restored.description) == (before[0].path, before[0].description)
        assert restored.created_at_ms == before[0].created_at_ms
        restored.delete()
    async with Emulator([("contoso", 0)], options=options) as emulator:
        assert not emulator.namespaces["contoso"].hybrid_connections


async def test_the_control_api_counts_listeners(bench: RelayBench) -> None:
    await bench.listen()
    async with bench.session.get(bench.url("/$control/state", "http")) as answer:
        state = await answer.json()
    assert state["namespaces"][0]["hybrid_connections"] == [{"path": "hyco", "listeners": 1}]
