"""Azure's clients over WebSocket through a proxy: what they send, log and raise."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from sbpair import errors
from sbpair.azure import open_namespace
from sbpair.azure.data_plane import SdkKey, from_sdk_error, open_sender, sync_client
from sbpair.azure.http_client import redact_proxy_credentials
from sbpair.failover.failures import is_transient
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Transport
from sbpair.model.proxy import parse_proxy
from sbpair.model.queues import QueueSpec
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.proxy import PASSWORD, SDK_BEHIND_A_PROXY, Proxy, detach_sessions, expected, running_proxy

pytestmark = SDK_BEHIND_A_PROXY


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    yield
    detach_sessions()


@asynccontextmanager
async def behind(proxy: Proxy, password: str = PASSWORD) -> AsyncIterator[tuple[Emulator, Endpoint]]:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(tls=True)) as emulator:
        emulator.namespaces["contoso"].create_queue("orders")
        found = endpoint_from_connection_string(emulator.ready.namespaces[0].tls_connection_string)
        own = replace(parse_proxy(proxy.url, "SBPAIR_PRIMARY_PROXY"), password=password)
        yield emulator, replace(found, ca_file=emulator.ready.ca_file, transport=Transport.WEBSOCKET, proxy=own)


def send_in_sync(endpoint: Endpoint) -> None:
    with sync_client(endpoint, SdkKey(endpoint), 10) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("sync"))


async def send_in_aio(endpoint: Endpoint) -> None:
    async with open_sender(endpoint, "orders") as sender:
        await sender.send(AmqpAnnotatedMessage(data_body=[b"aio"]), 10)


async def test_both_kinds_of_clients_and_creations_go_through_the_proxy() -> None:
    async with running_proxy(login=True) as proxy, behind(proxy) as (emulator, endpoint):
        await asyncio.to_thread(send_in_sync, endpoint)
        await send_in_aio(endpoint)
        before = len(proxy.targets)
        async with open_namespace(endpoint) as namespace:
            assert await namespace.create(QueueSpec("other"))
        assert len(proxy.targets) > before
        assert {*proxy.targets} == {endpoint.authority}
        assert emulator.namespaces["contoso"].queue("orders").counts().total == 2


def shown(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)


async def test_a_refused_password_is_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_proxy(login=True) as proxy, behind(proxy, "nobody-may-see-this") as (_, endpoint):
        with pytest.raises(AzureError) as by_sync:
            await asyncio.to_thread(send_in_sync, endpoint)
        with pytest.raises(errors.NetworkRefused, match="407 Proxy Authentication Required") as by_aio:
            await send_in_aio(endpoint)
        async with open_namespace(endpoint) as namespace:
            with pytest.raises(errors.NetworkRefused, match="407 Proxy Authentication Required") as by_creation:
                await namespace.create(QueueSpec("other"))
    translated = from_sdk_error(by_sync.value, "sending")
    assert type(translated) is errors.NetworkRefused
    assert not is_transient(by_sync.value)
    sent = [line for head in proxy.headers for line in head.splitlines() if line.startswith("Proxy-Authorization")]
    assert len(sent) >= 3
    text = shown(caplog) + "".join(f"{each.value} {each.value!r}" for each in (by_sync, by_aio, by_creation))
    assert "ClientHttpProxyError" in text
    for secret in ("nobody-may-see", *(line.rpartition(" ")[2] for line in sent), expected()):
        assert secret not in text


async def test_a_proxy_that_is_not_there_is_in_no_log_with_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_proxy(login=True) as proxy, behind(proxy) as (_, endpoint):
        assert endpoint.proxy is not None
        gone = replace(endpoint, proxy=replace(endpoint.proxy, port=1))
        with pytest.raises(errors.Unreachable, match=r"the proxy 127\.0\.0\.1:1 cannot be reached") as refused:
            await send_in_aio(gone)
        with pytest.raises(AzureError) as by_sync:
            await asyncio.to_thread(send_in_sync, gone)
        assert is_transient(by_sync.value)
        assert PASSWORD not in shown(caplog) + repr(refused.value) + str(by_sync.value)


@pytest.mark.parametrize(
    ("message", "arguments", "text"),
    [
        ("%r", (("Proxy-Authorization", "Basic bWU6c2VjcmV0"),), "('Proxy-Authorization', 'Basic ***')"),
        (
            "%s",
            ("proxy_auth=BasicAuth(login='me', password=\"s'e'c\", encoding='latin1'), x",),
            "proxy_auth=BasicAuth(***), x",
        ),
        ("Basic realm=%s", ("proxy",), "Basic realm=proxy"),
        ("%d tries", (3,), "3 tries"),
    ],
)
def test_records_of_azure_lose_credentials_alone(
    message: str, arguments: tuple[Any, ...], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    redact_proxy_credentials()
    logging.getLogger("azure.servicebus._base_handler").error(message, *arguments)
    assert caplog.messages == [text]
