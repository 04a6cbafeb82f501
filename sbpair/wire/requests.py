"""Request and response over a pair of links: how `$cbs` and `<entity>/$management` are spoken to."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbpair import errors
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    VALUE,
    Properties,
    Sections,
    encode_map,
    value_body,
)
from sbpair.amqp.performatives import Accepted, Source, Target
from sbpair.amqp.types import Map, Value
from sbpair.wire.links import Receiver, Sender

if TYPE_CHECKING:
    from sbpair.amqp.session import Session
    from sbpair.wire.stream import Stream

ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    description: str
    condition: str | None
    body: Value


class Requests:
    """One node, and the requests to it that wait for an answer. Requests may overlap."""

    def __init__(self, stream: Stream, session: Session, node: str) -> None:
        self._session = session
        self._sender = _RequestSender(stream, session, node)
        self._receiver = _ReplyReceiver(stream, session, node)
        self._ids = itertools.count(1)
        self._turn = asyncio.Lock()
        self._held: dict[str, Response] = {}

    @property
    def error(self) -> errors.SbpairError | None:
        return self._sender.error or self._receiver.error

    async def open(self) -> None:
        await self._sender.attach()
        await self._receiver.attach()
        self._receiver.grant(100)

    async def call(self, properties: dict[str, Value], body: Value, *, seconds: float = ANSWER_SECONDS) -> Response:
        """Ask, and wait for the answer. Raises TimedOut, or why the links are gone."""
        number = f"sbpair-{next(self._ids)}"
        request = Sections(
            properties=Properties(message_id=number, reply_to=self._receiver.reply_to).encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, properties),
            body=value_body(body),
        )
        try:
            async with asyncio.timeout(seconds):
                await self._sender.send(request.join())
                return await self._answer(number)
        except TimeoutError:
            raise errors.TimedOut(
                f"{self._sender.address} did not answer within {seconds:g} s", hint="it may work a little later"
            ) from None

    async def _answer(self, number: str) -> Response:
        while number not in self._held:
            async with self._turn:
                if number not in self._held:
                    await self._take_replies()
        return self._held.pop(number)

    async def _take_replies(self) -> None:
        for delivery in await self._receiver.take(100, seconds=ANSWER_SECONDS):
            if not delivery.settled:
                self._session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)
            sections = Sections.split(delivery.payload)
            number = sections.read_properties().correlation_id
            self._held[str(number)] = _response(sections)
        self._receiver.grant(100)


class _RequestSender(Sender):
    async def attach(self) -> None:
        await self.open(source=Source(self.address), target=Target(self.address), snd_settle_mode=0)


class _ReplyReceiver(Receiver):
    @property
    def reply_to(self) -> str:
        return f"{self.address}-{self._link.name}"

    async def attach(self) -> None:
        await self.open(source=Source(self.address), target=Target(self.reply_to), snd_settle_mode=1, rcv_settle_mode=0)


def _response(sections: Sections) -> Response:
    """`$cbs` says status-code and status-description; `$management` statusCode, statusDescription, errorCondition."""
    properties = sections.read_application_properties()
    status: Any = properties.get("statusCode", properties.get("status-code", 0))
    description = properties.get("statusDescription", properties.get("status-description", ""))
    body = [value for code, value in sections.read_body() if code == VALUE]
    return Response(int(status), str(description or ""), properties.get("errorCondition"), body[0] if body else Map())
