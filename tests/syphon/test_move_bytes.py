"""Moves between entities of every kind: every byte arrives, by the fast path and by its reference."""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Described, Map, Symbol, ULong
from sbpair.backlog import Aliases, queue_path, write_aliases
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import Ends
from sbpair.move.message import envelope
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
from sbpair.syphon import runner
from tests.amqp.test_codec import deeper, descriptors, scalars
from tests.kit.moves import World, bury, by_session, move_terms, run_syphon, stored
from tests.kit.running import Running
from tests.kit.stranded import put

TEXT = st.text(max_size=10)
VALUES = scalars | deeper(scalars)
SIMPLE = scalars | st.builds(Described, descriptors, scalars)
"""Application properties cannot be lists, maps or arrays."""

AMQP_SEQUENCE = 0x76
BODIES = {
    "empty data": st.just(data_body(b"")),
    "short data": st.binary(min_size=1, max_size=255).map(data_body),
    "long data": st.integers(256, 70_000).map(lambda size: data_body(b"x" * size)),
    "several data": st.lists(st.binary(max_size=9).map(data_body), min_size=2, max_size=3).map(b"".join),
    "value": VALUES.map(value_body),
    "sequence": st.lists(VALUES, max_size=3).map(lambda values: section(AMQP_SEQUENCE, codec.encode(values))),
    "several sequences": st.lists(scalars, min_size=2, max_size=3).map(
        lambda values: b"".join(section(AMQP_SEQUENCE, codec.encode([value])) for value in values)
    ),
}
SESSIONS = ("a", "b", "c")
SOURCES = ("queue", "session queue", "subscription", "session subscription", "partitioned")
DESTINATIONS = ("queue", "session queue", "partitioned", "topic")
KINDS = [*itertools.product(SOURCES, (False, True)), ("backlog", True)]
WAYS = [
    pytest.param(source, dead, to, (kind + place) % 2, id=f"{source}{'-dead' * dead}-to-{to}")
    for (kind, (source, dead)), (place, to) in itertools.product(enumerate(KINDS), enumerate(DESTINATIONS))
]
"""Each source with each destination, in turns in the same namespace and in the other one."""


def foreign_map(code: int, pairs: dict[Any, Any]) -> bytes:
    """Encode a map section in the long form, whatever its size."""
    items = b"".join(map(codec.encode, itertools.chain.from_iterable(pairs.items())))
    return section(code, b"\xd1" + (len(items) + 4).to_bytes(4) + (2 * len(pairs)).to_bytes(4) + items)


@st.composite
def message(draw: st.DrawFn, number: int, body: st.SearchStrategy[bytes]) -> Sections:
    """A message of a session, so that any entity accepts it, with sections that a foreign client may write."""

    def maps(code: int, keys: Callable[[str], Any]) -> bytes:
        kinds = SIMPLE if code == APPLICATION_PROPERTIES else VALUES
        values = draw(st.dictionaries(TEXT.map(lambda text: "own-" + ascii(text)).map(keys), kinds, max_size=3))
        return foreign_map(code, values) if draw(st.booleans()) else encode_map(code, values)

    optional = st.sampled_from
    return Sections(
        header=Header(
            ttl=draw(optional([None, 3_600_000])),
            priority=draw(optional([None, 7])),
            durable=draw(optional([None, True])),
        ).encode(),
        delivery_annotations=maps(DELIVERY_ANNOTATIONS, Symbol),
        message_annotations=maps(MESSAGE_ANNOTATIONS, Symbol),
        properties=Properties(
            message_id=draw(st.sampled_from([f"m{number}", f"m{number}", ULong(number), uuid.UUID(int=number)])),
            group_id=draw(st.sampled_from(SESSIONS)),
            subject=draw(st.none() | TEXT),
            content_type=draw(optional([None, Symbol("a/b")])),
            correlation_id=draw(st.none() | TEXT | st.uuids()),
            reply_to=draw(st.none() | TEXT),
        ).encode(),
        application_properties=maps(APPLICATION_PROPERTIES, str),
        body=draw(body),
        footer=maps(FOOTER, Symbol),
    )


MESSAGES = st.tuples(*(message(number, body) for number, body in enumerate([*BODIES.values()] * 2)))
"""Two messages with each kind of body."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[Running]:
    with Running() as running:
        yield running


_names = (f"name-{number}" for number in itertools.count())


@pytest.mark.odd_messages
@pytest.mark.parametrize(("source", "dead", "destination", "side"), WAYS)
@given(messages=MESSAGES)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_every_byte_arrives_from_any_source_at_any_destination(
    emulator: Running, source: str, dead: bool, destination: str, side: int, messages: tuple[Sections, ...]
) -> None:
    w, name = World(emulator.emulator), next(_names)
    to, _, there = emulator.do(lambda: w.create(destination, f"to-{name}", side))
    path, takes, has = emulator.do(lambda: _source(w, source, name))

    def fill() -> Any:
        for each in messages:
            put(takes, (in_backlog(each, to) if source == "backlog" else each).join())
        wanted = by_session([*messages] if source == "backlog" else stored(has), dead=dead)
        if dead:
            bury(has)
        return wanted

    wanted = emulator.do(fill)
    path = dead_letter_path(path) if dead else path
    moving = redrive(w, path, side) if source == "backlog" else w.move(path, to, sides=(0, side))
    result = asyncio.run(moving)
    arrived, left = emulator.do(lambda: (stored(there), stored(has, dead=dead)))
    emulator.do(lambda: [w.delete(takes.path), w.delete(to, side)])
    assert result.receipt.sent == len(messages)
    assert result.exit_code == 0
    assert by_session(arrived, dead=dead) == wanted
    assert not left


def _source(w: World, kind: str, name: str) -> Any:
    if kind != "backlog":
        return w.create(kind, f"from-{name}")
    return w.create("queue", queue_path(f"contoso-{name}", 0))


def in_backlog(message: Sections, to: str) -> Sections:
    """Return a message as a paired client leaves it in a backlog queue."""
    properties, header = message.read_properties(), message.read_header()
    session = properties.group_id
    ttl_ticks = None if header.ttl is None else header.ttl * 10_000
    pairs = [*message.read_application_properties().pairs, *write_aliases(Aliases(to, session, ttl_ticks)).items()]
    return Sections(
        header=Header(durable=header.durable, priority=header.priority).encode(),
        delivery_annotations=message.delivery_annotations,
        message_annotations=message.message_annotations,
        properties=replace(properties, group_id=None).encode(),
        application_properties=section(APPLICATION_PROPERTIES, codec.encode(Map(pairs))),
        body=message.body,
        footer=message.footer,
    )


async def redrive(w: World, source: str, side: int) -> runner.SyphonResult:
    ends = Ends(name="p", source=w.endpoints[0], destination=w.endpoints[side])
    return await run_syphon(ends, **move_terms("redrive", BACKLOG_DEAD_LETTERS, source))


@pytest.mark.parametrize("dead", [False, True], ids=["active", "dead"])
@pytest.mark.parametrize("source", SOURCES)
def test_ordinary_messages_take_the_fast_path(
    emulator: Running, source: str, dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    general = envelope.read_facts
    learnt: list[bytes] = []

    def counted(queue: str, payload: bytes, *form: Any) -> Any:
        learnt.append(payload)
        return general(queue, payload, *form)

    monkeypatch.setattr(envelope, "read_facts", counted)
    w, name = World(emulator.emulator), next(_names)
    to, _, there = emulator.do(lambda: w.create("queue", f"to-{name}"))
    path, takes, has = emulator.do(lambda: _source(w, source, name))
    with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
        for session in SESSIONS:
            # The service refuses a batch of several sessions.
            with client.get_topic_sender(takes.path) as sender:
                sender.send_messages([ordinary(number, session) for number in range(30)])
    if dead:
        emulator.do(lambda: bury(has))
        path = dead_letter_path(path)
    result = asyncio.run(w.move(path, to))
    assert (result.receipt.sent, len(emulator.do(lambda: stored(there)))) == (90, 90)
    assert len(learnt) <= 2


def ordinary(number: int, session: str) -> ServiceBusMessage:
    """A message as most applications send it; every other one has application properties."""
    return ServiceBusMessage(
        f"body {number}",
        message_id=f"{session}-{number}",
        session_id=session,
        content_type="application/json",
        time_to_live=timedelta(hours=1),
        application_properties={"number": number, "kind": "order"} if number % 2 else None,
    )
