"""The service under test: its clients, and entities under names of their own."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSubQueue, TransportType, parse_connection_string
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import AccessRights, AuthorizationRule

WAIT_SECONDS = 20.0
QUIET_SECONDS = 1.5
"""How long no message must come before there is none."""


KEY = "a2V5LW9mLWEtY29uZm9ybWFuY2UtY2hlY2stMTIzNDU="


class NotAConnectionString(ValueError):
    """The text is not a connection string of a namespace. Its own text is never repeated: it may hold a key."""


@dataclass(frozen=True)
class Service:
    """A Service Bus or an emulator. `management` is the URL of its management requests; `plain`: without TLS.

    `manager` is the service with the key of management requests, where messages go through a gateway with its own.
    """

    connection_string: str = field(repr=False)
    host: str
    key_name: str
    key: str = field(repr=False)
    management: str
    plain: bool
    manager: Service | None = None

    @classmethod
    def read(cls, text: str, management: str | None = None, managing: str | None = None) -> Service:
        """Parse a connection string, and that of management requests if it is another. Raises NotAConnectionString."""
        manager = cls.read(managing, management) if managing else None
        try:
            parsed = parse_connection_string(text)
        except (ValueError, TypeError):
            raise NotAConnectionString("expected the connection string of a namespace, with a key") from None
        if not parsed.shared_access_key or parsed.entity_path:
            raise NotAConnectionString("expected the connection string of a namespace, with a key and no EntityPath")
        plain = "usedevelopmentemulator=true" in text.lower()
        host = urlsplit(parsed.endpoint).netloc.rstrip("/")
        url = manager.management if manager else management or f"{'http' if plain else 'https'}://{host}"
        key_name, key = parsed.shared_access_key_name or "", parsed.shared_access_key
        return cls(text, host, key_name, key, url.rstrip("/"), plain, manager)

    @property
    def management_connection_string(self) -> str:
        """The connection string with the host and the key of management requests."""
        known = self.manager or self
        return known.connection_string.replace(known.host, urlsplit(self.management).netloc, 1)

    @property
    def sample_variables(self) -> dict[str, str]:
        """The environment variables of the SDK's samples that name the namespace and its key."""
        return {
            "SERVICEBUS_CONNECTION_STR": self.connection_string,
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": self.host,
            "SERVICEBUS_SAS_POLICY": self.key_name,
            "SERVICEBUS_SAS_KEY": self.key,
        }

    def redact(self, text: str) -> str:
        return (self.manager.redact(text) if self.manager else text).replace(self.key, "***")


class _Management(AioHttpTransport):
    """Sends each request to the URL of management requests: the client always writes https and the messages' host."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base

    async def send(self, request: Any, **options: Any) -> Any:
        parts = urlsplit(request.url)
        request.url = f"{self._base}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        return await super().send(request, **options)


class Bench:
    """The clients of one run, and the entities that it creates and removes."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.prefix = f"conformance-{secrets.token_hex(4)}-"
        self._numbers = itertools.count()
        self.admin: Any = None

    async def __aenter__(self) -> Bench:
        # Its transport must be made where the loop runs.
        self.admin = ServiceBusAdministrationClient.from_connection_string(
            self.service.management_connection_string, transport=_Management(self.service.management), retry_total=0
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._remove_all()
        finally:
            await self.admin.close()

    async def _remove_all(self) -> None:
        for names, delete in (
            (self.admin.list_queues, self.admin.delete_queue),
            (self.admin.list_topics, self.admin.delete_topic),
        ):
            for entity in [each async for each in names() if each.name.startswith(self.prefix)]:
                try:
                    await delete(entity.name)
                except ResourceNotFoundError:
                    continue

    # Entities

    def name(self) -> str:
        return f"{self.prefix}{next(self._numbers)}"

    async def queue(self, **properties: Any) -> str:
        name = self.name()
        await self.admin.create_queue(name, **properties)
        return name

    async def topic(self, *subscriptions: str, **properties: Any) -> str:
        name = self.name()
        await self.admin.create_topic(name, **properties)
        for subscription in subscriptions:
            await self.admin.create_subscription(name, subscription)
        return name

    # Clients

    @asynccontextmanager
    async def client(self, *, websocket: bool = False) -> AsyncIterator[ServiceBusClient]:
        options: dict[str, Any] = {"retry_total": 0}
        if websocket:
            options["transport_type"] = TransportType.AmqpOverWebsocket
        if websocket and self.service.plain:
            options["custom_endpoint_address"] = f"sb://{self.service.host}"
        async with ServiceBusClient.from_connection_string(self.service.connection_string, **options) as client:
            yield client

    @asynccontextmanager
    async def sender(self, entity: str, *, topic: bool = False) -> AsyncIterator[ServiceBusSender]:
        async with (
            self.client() as client,
            client.get_topic_sender(entity) if topic else client.get_queue_sender(entity) as sender,
        ):
            yield sender

    @asynccontextmanager
    async def receiver(
        self, entity: str, subscription: str | None = None, **options: Any
    ) -> AsyncIterator[ServiceBusReceiver]:
        async with (
            self.client() as client,
            client.get_queue_receiver(entity, **options)
            if subscription is None
            else client.get_subscription_receiver(entity, subscription, **options) as receiver,
        ):
            yield receiver

    async def send(self, entity: str, *messages: Any, topic: bool = False) -> None:
        async with self.sender(entity, topic=topic) as sender:
            await sender.send_messages(list(messages))

    async def received(
        self, entity: str, subscription: str | None = None, *, count: int = 1
    ) -> list[ServiceBusReceivedMessage]:
        """Receive and delete exactly `count` messages."""
        async with self.receiver(entity, subscription, receive_mode="receiveanddelete") as receiver:
            return await take(receiver, count)

    async def dead_letter(
        self, entity: str, subscription: str | None = None, place: ServiceBusSubQueue = ServiceBusSubQueue.DEAD_LETTER
    ) -> ServiceBusReceivedMessage:
        """Receive and complete one dead letter."""
        async with self.receiver(entity, subscription, sub_queue=place) as dead:
            found = await one(dead)
            await dead.complete_message(found)
            return found


def access_rule(name: str, right: AccessRights, **times: datetime) -> AuthorizationRule:
    """Return a rule of an entity with KEY as its keys."""
    kind = {"type": "SharedAccessAuthorizationRule", "claim_type": "SharedAccessKey", "claim_value": "None"}
    return AuthorizationRule(**kind, key_name=name, primary_key=KEY, secondary_key=KEY, rights=[right], **times)


@asynccontextmanager
async def raising(kind: type[Exception]) -> AsyncIterator[list[Exception]]:
    """Fail unless the block raises this error; the list that it yields holds it then. The command has no pytest."""
    caught: list[Exception] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


async def take(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Receive exactly `count` messages."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        more = await receiver.receive_messages(count - len(found), max_wait_time=WAIT_SECONDS)
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return found


async def one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = await take(receiver, 1)
    return message


async def nothing(receiver: ServiceBusReceiver) -> None:
    """Fail if a message comes."""
    found = await receiver.receive_messages(1, max_wait_time=QUIET_SECONDS)
    assert not found, "a message came"


async def peek_all(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    """Peek from the start: by default the client peeks behind the last message that it received."""
    return await receiver.peek_messages(10, sequence_number=1)


def text(message: ServiceBusReceivedMessage) -> str:
    return b"".join(message.body).decode()


def texts(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [text(message) for message in messages]
