"""The client and the emulator in whatever encodings AMQP 1.0 allows: a proxy writes every frame of both anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sbpair.amqp.message import Properties, Sections, data_body
from sbpair.amqp_client.client import connect, lock_token
from sbpair.amqp_client.raw_links import ABANDONED, ACCEPTED, RELEASED, dead_letter
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import EntityMissing
from sbpair.model.pair import Endpoint
from sbpair.testing import Emulator
from tests.amqp_client.peers import endpoint_of, ids, message, take
from tests.strict_amqp.values import NULL, TYPES, Value, Violation, decode, encode, name_of

FRAME_BYTES = 60_000
"""The largest frame that either side hears of: there it may grow to the 64 KB that the other one takes."""

EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"
DEFAULTS = {"durable": 0, "timeout": 0, "expiry-policy": "session-end", "snd-settle-mode": 2, "rcv-settle-mode": 0}
UNKNOWN = Value("described", Value("list", [Value("string", "x")]), Value("ulong", 1 << 40))


@dataclass(frozen=True)
class Form:
    """How a peer may write.

    `longest`: each value in its widest encoding, else in its shortest. `symbolic`: descriptors are symbols. `bare`:
    defaults are nulls, and nulls at the end are left out. `single`: one symbol where an array may be. `more`:
    unknown properties, filters and capabilities. `padded`: extended headers of frames, and empty frames between them.
    """

    longest: bool = False
    symbolic: bool = False
    bare: bool = False
    single: bool = False
    more: bool = False
    padded: bool = False

    def frame(self, kind: int, channel: int, body: bytes) -> bytes:
        if kind == 0 and not body:
            return EMPTY
        performative, end = decode(body, 0)
        written = self.write(self._changed(performative)) + self._payload(body[end:])
        padding = b"\x00" * 8 if self.padded and kind == 0 else b""
        size = 8 + len(padding) + len(written)
        head = size.to_bytes(4) + bytes((2 + len(padding) // 4, kind)) + channel.to_bytes(2)
        empty = EMPTY if padding and name_of(performative) != "close" else b""
        return head + padding + written + empty

    def _payload(self, payload: bytes) -> bytes:
        """Return the sections of a message in other encodings; part of a message as it is."""
        sections, position = b"", 0
        try:
            while position < len(payload):
                section, position = decode(payload, position)
                sections += self.write(section)
        except Violation:
            return payload
        return sections

    def _changed(self, value: Value) -> Value:
        """Return a composite with other fields of the same meaning."""
        definition = TYPES.get(name_of(value) or "", {})
        if "fields" not in definition:
            return value
        given = [*value.data.data, *[NULL] * (len(definition["fields"]) - len(value.data.data))]
        items = [self._field(item, field) for item, field in zip(given, definition["fields"], strict=True)]
        while self.bare and items and items[-1].is_null:
            items.pop()
        symbol, code = definition["descriptor"]
        descriptor = Value("symbol", symbol) if self.symbolic else Value("ulong", code)
        return Value("described", Value("list", items), descriptor)

    def _field(self, value: Value, field: dict[str, Any]) -> Value:
        name = field["name"]
        if name == "max-frame-size":
            return Value("uint", FRAME_BYTES)
        if self.bare and not field.get("mandatory") and (value.data is False or value.data == DEFAULTS.get(name, ())):
            return NULL
        if self.more and field["type"] in ("fields", "filter-set"):
            return Value("map", [*(value.data or []), (Value("symbol", "x:unknown"), UNKNOWN)])
        if self.more and name.endswith("capabilities"):
            known = value.data if value.kind == "array" else [] if value.is_null else [value]
            return Value("array", [*known, Value("symbol", "x:unknown")])
        if self.single and field.get("multiple"):
            # Of the offered mechanisms, the one that the client wants.
            return Value("symbol", "ANONYMOUS" if value.kind == "array" else "x:unknown")
        return self._changed(value)

    def write(self, value: Value) -> bytes:
        return encode(value, lambda ways: ways[-1 if self.longest else 0])


FORMS = {
    "the shortest values": Form(),
    "the longest values": Form(longest=True),
    "symbolic descriptors": Form(symbolic=True, longest=True),
    "without defaults and trailing nulls": Form(bare=True),
    "one symbol instead of an array": Form(single=True),
    "unknown properties, filters and capabilities": Form(more=True),
    "longer headers and empty frames": Form(padded=True),
}


@asynccontextmanager
async def rewritten(endpoint: Endpoint, form: Form) -> AsyncIterator[Endpoint]:
    """Serve a namespace whose frames, of both sides, have another form."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                start = await reader.readexactly(8)
                if not start.startswith(b"AMQP"):
                    body = await reader.readexactly(int.from_bytes(start[:4]) - 8)
                    start = form.frame(start[5], int.from_bytes(start[6:]), body[4 * start[4] - 8 :])
                writer.write(start)
        except asyncio.IncompleteReadError:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection(endpoint.host, endpoint.port)
        await asyncio.gather(carry(reader, downstream), carry(upstream, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield replace(endpoint, port=server.sockets[0].getsockname()[1])


async def told(endpoint: Endpoint) -> list[Any]:
    """Use the client in each way, and return what it was told."""
    in_session = Sections(properties=Properties(message_id="s", group_id="a").encode(), body=data_body(b"x"))
    async with connect(endpoint) as wire:
        sender = await wire.sender("orders")
        for number, size in enumerate((10, 200_000)):
            await sender.send(message(number, size))
        receiver = await wire.receiver("orders")
        receiver.grant(10)
        one, two = await take(receiver, 2)
        found: list[Any] = [ids([one, two]), len(two.payload), sender.max_message_size, sender.max_batch_size]
        found.append(len(await wire.peek("orders", 0, 10)))
        found.append(len(await wire.renew_locks("orders", [lock_token(one.tag)])))
        await receiver.settle([one], dead_letter("reason", "text"))
        again = two
        for outcome in (RELEASED, ABANDONED):
            await receiver.settle([again], outcome)
            (again,) = await take(receiver, 1)
            found.append(Sections.split(again.payload).read_header().delivery_count or 0)
        await receiver.settle([again], ACCEPTED)
        found += [await receiver.stop(), receiver.credit]
        await (await wire.sender("sessions")).send(in_session.join())
        session = await wire.next_session("sessions", 5.0)
        await wire.set_session_state(session, b"state")
        found += [session.session_id, session.locked_until_ms > 0, await wire.session_state("sessions", "a")]
        with pytest.raises(EntityMissing):
            await wire.receiver("missing")
    return found


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_every_encoding_of_a_frame_means_the_same(form: Form) -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        namespace.create_queue("sessions", QueueDescription(requires_session=True))
        async with rewritten(endpoint_of(emulator), form) as endpoint:
            found = await told(endpoint)
        assert found == [["m0", "m1"], found[1], 262_144, 262_144, 2, 1, 0, 1, [], 0, "a", True, b"state"]
        assert found[1] > 200_000
        queue = namespace.queue("orders")
        [dead] = [message.dead_letter for message in queue.dead_letters.peek(0, 9)]
        assert dead
        assert (len(queue.messages), dead.reason, dead.description) == (0, "reason", "text")
