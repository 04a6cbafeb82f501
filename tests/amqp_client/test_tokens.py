"""Signing in as an identity: azure-identity with the official clients, and with sbpair itself."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.identity import DefaultAzureCredential, ManagedIdentityCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.amqp_client.client import connect
from sbpair.emulator.access.bearer import AUDIENCE, Issuer
from sbpair.errors import InDoubt, NotAuthenticated
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity
from sbpair.testing import Emulator, EmulatorOptions

MESSAGE = bytes.fromhex("005375a0026869")


@pytest.fixture(scope="module")
def signing(another: Any) -> Iterator[Any]:
    """An emulator that is a managed identity, with TLS, in a thread of its own."""
    with another(options=EmulatorOptions(tls=True, identity=True)) as signing:
        yield signing


@pytest.fixture(autouse=True)
def environment(signing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in signing.emulator.ready.identity.environment.items():
        monkeypatch.setenv(name, value)


def test_the_official_client_signs_in_over_plain_amqp(signing: Any) -> None:
    queue = signing.queue()
    with (
        DefaultAzureCredential() as credential,
        ServiceBusClient(signing.namespace.authority, credential, use_tls=False) as client,
        client.get_queue_sender(queue.path) as sender,
        client.get_queue_receiver(queue.path) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("signed in"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)
        assert receiver.peek_messages() == []


def test_the_official_administration_client_signs_in(signing: Any) -> None:
    with (
        ManagedIdentityCredential() as credential,
        ServiceBusAdministrationClient(
            signing.namespace.authority, credential, connection_verify=signing.emulator.ready.ca_file
        ) as client,
    ):
        client.create_queue("made-by-an-identity")
        assert client.get_queue_runtime_properties("made-by-an-identity").total_message_count == 0


class Foreign:
    """A credential whose tokens nobody here has signed."""

    def __init__(self, now_ms: int) -> None:
        self._token = AccessToken(*Issuer().issue(AUDIENCE, now_ms))

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return self._token


def test_a_foreign_token_is_refused_with_the_reason(signing: Any) -> None:
    queue = signing.queue()
    credential = Foreign(signing.do(signing.namespace.clock.now_ms))
    with (
        pytest.raises(ServiceBusAuthenticationError) as caught,
        ServiceBusClient(signing.namespace.authority, credential, use_tls=False, retry_total=0) as client,
        client.get_queue_sender(queue.path),
    ):
        pass
    assert "InvalidIssuer" in str(caught.value.inner_exception)
    with (
        ServiceBusAdministrationClient(
            signing.namespace.authority, credential, connection_verify=signing.emulator.ready.ca_file
        ) as client,
        pytest.raises(HttpResponseError, match="InvalidIssuer") as refused,
    ):
        client.get_namespace_properties()
    assert refused.value.status_code == 401
    gc.collect()


def test_a_foreign_token_will_do_where_any_does(another: Any) -> None:
    with another(options=EmulatorOptions(accept_any_token=True)) as lenient:
        queue = lenient.queue()
        credential = Foreign(lenient.do(lenient.namespace.clock.now_ms))
        with (
            ServiceBusClient(lenient.namespace.authority, credential, use_tls=False) as client,
            client.get_queue_sender(queue.path) as sender,
        ):
            sender.send_messages(ServiceBusMessage("let in"))
        assert lenient.do(queue.counts).active == 1


async def test_links_end_with_their_token() -> None:
    def issue(emulator: Emulator) -> tuple[str, int]:
        """A token that has a minute left of its day: less than it takes an idle link to be detached."""
        assert emulator.identity is not None
        return emulator.identity.issuer.issue(AUDIENCE, emulator.clock.now_ms() - 86_340_000)

    async with asyncio.timeout(30), Emulator([("contoso", 0)], options=EmulatorOptions(identity=True)) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        endpoint = endpoint_from_connection_string(namespace.connection_string)
        issued, _ = issue(emulator)
        connecting = Endpoint("contoso", endpoint.authority, endpoint.host, endpoint.port, False, Identity())

        async def get_token(_: str) -> tuple[str, float]:
            return issued, 2.0**40

        async with connect(connecting, get_token=get_token) as wire:
            sender = await wire.sender("orders")
            await sender.send(MESSAGE)
            emulator.advance(60_000)
            with pytest.raises(InDoubt, match="ExpiredToken"):
                await sender.send(MESSAGE)
            with pytest.raises(NotAuthenticated, match="ExpiredToken"):
                await wire.sender("orders/$deadletterqueue")


@pytest.mark.parametrize(
    ("header", "query", "status"),
    [
        (None, "api-version=2019-08-01&resource=x", 401),
        ("wrong", "api-version=2019-08-01&resource=x", 401),
        ("right", "api-version=2017-09-01&resource=x", 400),
        ("right", "api-version=2019-08-01", 400),
        ("right", "api-version=2019-08-01&resource=x", 200),
    ],
)
async def test_the_identity_endpoint_issues_tokens_only_with_its_secret_header(
    signing: Any, header: str | None, query: str, status: int
) -> None:
    sign_in = signing.emulator.ready.identity
    headers = {} if header is None else {"X-IDENTITY-HEADER": sign_in.header if header == "right" else header}

    async with ClientSession(headers=headers) as session, session.get(f"{sign_in.endpoint}?{query}") as answer:
        assert answer.status == status
        assert set(await answer.json()) == (
            {"access_token", "client_id", "expires_on", "resource", "token_type"}
            if status == 200
            else {"statusCode", "message"}
        )


async def test_there_is_no_identity_where_none_was_asked_for(running: Any) -> None:
    assert running.emulator.ready.identity is None
    url = f"http://{running.namespace.authority}/$identity/token?api-version=2019-08-01&resource=x"
    async with ClientSession() as session, session.get(url) as answer:
        assert answer.status == 401
        assert "MissingToken" in await answer.text()
