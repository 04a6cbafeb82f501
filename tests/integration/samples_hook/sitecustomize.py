"""Found by Python at the start of a published sample: what makes its text, as it is, reach an emulator in time.

The samples are written for the cloud. Here their clients speak plain, to the port that their namespace's name gives;
nobody waits for minutes; and who would listen for ever is content with a few seconds. Their text is not touched.
"""

import asyncio
import functools
import os
import time
from typing import Any

import azure.identity
import azure.identity.aio
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

LONG_SECONDS = 5
SHORTENED_SECONDS = 7
"""More than the lock of the entities that the samples wait on, so that a lock that is not renewed does run out."""

PLAIN = os.environ.get("SAMPLE_PLAIN") != ""
PATIENCE_SECONDS = os.environ.get("SAMPLE_PATIENCE_SECONDS")


class PlainTransport(RequestsTransport):
    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class PlainAioTransport(AioHttpTransport):
    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


def with_default(client: type, method: str, **defaults: Any) -> None:
    """Let a method of a client take other values for what it is not given; a callable makes a new one each time."""
    original = getattr(client, method)

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        made = {name: value() if callable(value) else value for name, value in defaults.items() if name not in keywords}
        return original(*arguments, **keywords, **made)

    setattr(client, method, call)


def shortened(seconds: float) -> float:
    return SHORTENED_SECONDS if seconds > LONG_SECONDS else seconds


for client in (ServiceBusClient, AioServiceBusClient):
    if PLAIN:
        with_default(client, "__init__", use_tls=False)
    if PATIENCE_SECONDS is not None:
        with_default(client, "get_queue_receiver", max_wait_time=float(PATIENCE_SECONDS))
if PLAIN:
    with_default(ServiceBusAdministrationClient, "__init__", transport=PlainTransport)
    with_default(AioAdministrationClient, "__init__", transport=PlainAioTransport)
    # The samples sign in as a machine does; this one wants a tenant, of which there is none.
    azure.identity.EnvironmentCredential = azure.identity.ManagedIdentityCredential  # type: ignore[misc,assignment]
    azure.identity.aio.EnvironmentCredential = azure.identity.aio.ManagedIdentityCredential  # type: ignore[misc,assignment]

_sleep, _aio_sleep = time.sleep, asyncio.sleep
time.sleep = lambda seconds: _sleep(shortened(seconds))
asyncio.sleep = lambda seconds, result=None: _aio_sleep(shortened(seconds), result)
