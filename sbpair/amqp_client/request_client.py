"""Request and response over a pair of links, for `$cbs` and `<entity>/$management`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair import errors
from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Properties, Sections, encode_map, value_body
from sbpair.amqp.performatives import Accepted, Source, Target
from sbpair.amqp.types import Map, Value
from sbpair.amqp_client.raw_links import ANSWER_SECONDS, RawReceiver, RawSender

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp.session import Session
    from sbpair.amqp_client.stream import Stream

CREDIT = 100


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    description: str
    condition: str | None
    body: Map


class RequestClient:
    """One node, and its pending requests, which may overlap."""

    def __init__(self, stream: Stream, session: Session, node: str) -> None:
        self._sender = _RequestSender(stream, session, node)
        self._receiver = _ReplyReceiver(stream, session, node)
        self._ids = itertools.count(1)

    @property
    def error(self) -> errors.SbpairError | None:
        return self._sender.error or self._receiver.error

    async def open(self) -> None:
        await self._sender.attach()
        await self._receiver.attach()
        self._receiver.grant(CREDIT)

    async def call(self, properties: dict[str, Value], body: Value, *, seconds: float = ANSWER_SECONDS) -> Response:
        """Send a request and wait for the response. Raises TimedOut, or why the links were lost."""
        number = f"sbpair-{next(self._ids)}"
        request = Sections(
            properties=Properties(message_id=number, reply_to=self._receiver.reply_to).encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, properties),
            body=value_body(body),
        )
        asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                with self._receiver.expecting(number) as answer:
                    await self._sender.send(request.join())
                    return await answer
        except TimeoutError:
            self._sender.stream.check_silence(asked_at)
            raise errors.TimedOut(
                f"{self._sender.address} did not answer within {seconds:g} s", hint="retry in a minute"
            ) from None


class _RequestSender(RawSender):
    async def attach(self) -> None:
        await self.open(source=Source(self.address), target=Target(self.address), snd_settle_mode=0)


class _ReplyReceiver(RawReceiver):
    """Matches responses to requests; one that no request waits for is dropped."""

    def __init__(self, stream: Stream, session: Session, node: str) -> None:
        super().__init__(stream, session, node)
        self._expected: dict[str, asyncio.Future[Response]] = {}

    @property
    def reply_to(self) -> str:
        return f"{self.address}-{self._link.name}"

    async def attach(self) -> None:
        await self.open(source=Source(self.address), target=Target(self.reply_to), snd_settle_mode=1, rcv_settle_mode=0)

    @contextmanager
    def expecting(self, number: str) -> Iterator[asyncio.Future[Response]]:
        if self.error is not None:
            raise self.error
        self._expected[number] = answer = asyncio.get_running_loop().create_future()
        try:
            yield answer
        finally:
            del self._expected[number]

    def on_lost(self, error: errors.SbpairError) -> None:
        super().on_lost(error)
        for answer in self._expected.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # mark as retrieved: the send may fail first

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._on_reply(delivery)

    def _on_reply(self, delivery: Delivery) -> None:
        if not delivery.settled:
            self._link.session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)
        if self.credit <= CREDIT // 2:
            self.grant(CREDIT)
        try:
            sections = Sections.split(delivery.payload)
            answer = self._expected.get(str(sections.read_properties().correlation_id))
            if answer is not None and not answer.done():
                answer.set_result(_response(sections))
        except errors.ProtocolError as error:
            # The request it answers is unknown.
            self.on_lost(errors.Unreachable(f"{self.address} sent a malformed response: {error.message}"))


def _response(sections: Sections) -> Response:
    """Decode a response: `$cbs` and `$management` use different names for status and description."""
    properties = sections.read_application_properties()
    status = properties.get("statusCode", properties.get("status-code"))
    if not isinstance(status, int):
        raise errors.ProtocolError("it has no status")
    description = properties.get("statusDescription", properties.get("status-description"))
    body = next((value for code, value in sections.read_body() if code == VALUE), None)
    return Response(
        int(status), str(description or ""), properties.get("errorCondition"), body if isinstance(body, Map) else Map()
    )
