"""Namespaces that refuse a network, or all keys: in the service's words, over AMQP, WebSocket, HTTP and the relay."""

import re
import time
from collections.abc import Iterator
from typing import Any

import azure.identity
import pytest
from aiohttp import ClientSession
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.emulator.clock import token_ms
from sbpair.testing import EmulatedNamespace, EmulatorOptions, EmulatorThread
from tests.emulator.peer import Stage, plain
from tests.kit.sas import sign

PREVENTED = (
    r"Ip has been prevented to connect to the endpoint\.\s+For more information see:\s+Virtual Network service "
    r"endpoints:\s[^<]*IP Filters:\s[^<]*"
)
NO_KEYS = r"LocalAuthDisabled: Authorization failed because SAS authentication has been disabled for the namespace\. "
TRACKING = r"TrackingId:[-0-9a-f]{36}_G0, SystemTracker:\S+, Timestamp:20\S+"
CASES = [("firewall", "key", PREVENTED), ("firewall", "identity", PREVENTED), ("local-auth-disabled", "key", NO_KEYS)]
ACCEPTED = ("local-auth-disabled", "identity", "")


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmulatedNamespace]:
    with EmulatorThread([("contoso", 0)], options=EmulatorOptions(tls=True, identity=True)) as thread:
        thread["contoso"].declare(["orders"], hybrid_connections=["hyco"])
        yield thread["contoso"]


def identity_of(namespace: EmulatedNamespace) -> Any:
    ready = namespace.thread.emulator.ready
    only = ready.namespaces[0]
    verify: Any = {"connection_verify": ready.ca_file, "disable_instance_discovery": True}
    return azure.identity.ClientSecretCredential(
        only.tenant_id, only.client_id, only.client_secret, authority=ready.authority, **verify
    )


def client_of(namespace: EmulatedNamespace, kind: str, transport: TransportType) -> ServiceBusClient:
    ready = namespace.thread.emulator.ready
    only = ready.namespaces[0]
    options: Any = {
        "connection_verify": ready.ca_file,
        "custom_endpoint_address": only.endpoint,
        "transport_type": transport,
        "retry_total": 0,
    }
    if kind == "key":
        return ServiceBusClient.from_connection_string(only.tls_connection_string, **options)
    return ServiceBusClient("contoso.servicebus.windows.net", identity_of(namespace), **options)


@pytest.mark.parametrize("transport", TransportType)
@pytest.mark.parametrize(("kind", "credential", "text"), [*CASES, ACCEPTED])
def test_messages_are_refused(
    namespace: EmulatedNamespace, kind: str, credential: str, text: str, transport: TransportType
) -> None:
    def send() -> None:
        with client_of(namespace, credential, transport) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))

    with namespace.fault(kind):
        if not text:
            send()
            return
        with pytest.raises(ServiceBusError) as refused:
            send()
    assert re.search(f"Status code: 401\nDescription: {text}{TRACKING}", str(refused.value.inner_exception))
    send()


@pytest.mark.parametrize(("kind", "credential", "text"), [*CASES, ACCEPTED])
def test_management_is_refused(namespace: EmulatedNamespace, kind: str, credential: str, text: str) -> None:
    ready = namespace.thread.emulator.ready
    only = ready.namespaces[0]
    options: Any = {"connection_verify": ready.ca_file, "retry_total": 0}
    client = (
        ServiceBusAdministrationClient.from_connection_string(only.tls_connection_string, **options)
        if credential == "key"
        else ServiceBusAdministrationClient(only.endpoint.removeprefix("sb://"), identity_of(namespace), **options)
    )
    with client, namespace.fault(kind):
        if not text:
            assert client.get_queue("orders").name == "orders"
            return
        with pytest.raises(ClientAuthenticationError) as refused:
            client.get_queue("orders")
        answer: Any = refused.value.response
        assert refused.value.status_code == 401
        assert re.search(f"<Code>401</Code><Detail>{text}{TRACKING}</Detail>", answer.text())


async def test_a_relay_refuses_and_resource_manager_does_not(namespace: EmulatedNamespace) -> None:
    emulator = namespace.thread.emulator
    space = emulator.namespaces["contoso"]
    token = sign(space.keys[0], f"sb://{space.authority}", int(time.time()) + 60)
    arm, _ = emulator.bearers.issue(ARM_AUDIENCES[0], token_ms(emulator.clock))
    base = f"http://{space.authority}"
    management = "/subscriptions/00000000-0000-0000-0000-000000000001/providers/Microsoft.ServiceBus/namespaces"
    async with ClientSession() as http:
        for kind, text in (("firewall", "Ip has been prevented"), ("local-auth-disabled", "LocalAuthDisabled: ")):
            async with http.post(f"{base}/$control/faults", json={"kind": kind, "namespace": "contoso"}) as answer:
                identity = (await answer.json())["id"]
            async with http.get(f"{base}/hyco", headers={"ServiceBusAuthorization": token}) as answer:
                assert answer.status == 401
                assert text in await answer.text()
            url = f"{base}{management}?api-version=2021-11-01"
            async with http.get(url, headers={"Authorization": f"Bearer {arm}"}) as answer:
                assert answer.status == 200
            async with http.delete(f"{base}/$control/faults/{identity}") as answer:
                assert answer.status == 200


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize("kind", ["firewall", "local-auth-disabled"])
async def test_a_client_with_a_plain_key_is_refused_at_new_links(stage: Stage, kind: str, websocket: bool) -> None:
    async with stage.connect(websocket=websocket) as peer:
        sender = await peer.attach_sender("orders")
        with stage.emulator.faults.during(kind, "contoso"):
            await peer.send(sender, plain())
            error = await peer.refusal_of(peer.attach_receiver("orders"))
            assert error.condition == "amqp:unauthorized-access"
            assert error.description.startswith(("Ip has been prevented", "LocalAuthDisabled"))
        await peer.attach_receiver("orders")
