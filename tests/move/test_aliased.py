"""The copy of a client's message for a backlog queue: what the syphon makes of it are the client's bytes again."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Properties,
    Sections,
    data_body,
    section,
)
from sbpair.amqp.types import Map, Symbol, Timestamp, UByte, UInt, Value
from sbpair.backlog import ALIASES
from sbpair.errors import ProtocolError, UsageError
from sbpair.failover import sdk_encoding, sdk_messages
from sbpair.move.message.envelope import SCHEDULE, aliased, read_facts, restore
from sbpair.move.message.route import Send, route
from tests.amqp.test_codec import scalars, values
from tests.failover.test_sdk_messages import MESSAGES, encoded
from tests.move.test_envelope import BODIES, LAST_EXPIRY, MAXIMUM, NAMES, NOW, part

STYLES = st.sampled_from(["usual", "wide", "symbolic"])
LIVES = st.none() | st.sampled_from([1, MAXIMUM - 1, MAXIMUM]) | st.integers(1, MAXIMUM)
TIMES = st.none() | st.tuples(st.integers(1, NOW), st.integers(NOW + 1, LAST_EXPIRY))


@dataclass(frozen=True)
class ClientMessage:
    """A message as a client sends it. Of the lists, trailing fields may be missing; the fields here are replaced."""

    style: str
    header: list[Value] | None
    ttl: int | None
    annotations: list[tuple[Value, Value]]
    properties: list[Value] | None
    group_id: str | None
    times: tuple[int | None, int | None]
    own: list[tuple[Value, Value]]
    body: bytes
    rest: list[tuple[Value, Value]]
    has_header: bool = True
    has_properties: bool = True

    def sections(self) -> Sections:
        found = Sections(body=self.body)
        ttl = None if self.ttl is None else UInt(self.ttl)
        if (header := placed(self.header, {2: ttl})) is not None:
            found.header = part(HEADER, "amqp:header:list", header, self.style if self.has_header else "usual")
        if (properties := self.placed_properties()) is not None:
            style = self.style if self.has_properties else "usual"
            found.properties = part(PROPERTIES, "amqp:properties:list", properties, style)
        if self.annotations:
            # The schedule alone leaves no section, whose form could be kept.
            style = "usual" if [key for key, _ in self.annotations] == [SCHEDULE] else self.style
            name = "amqp:message-annotations:map"
            found.message_annotations = part(MESSAGE_ANNOTATIONS, name, Map(self.annotations), style)
        if self.own:
            # A map that grew by the aliases gets the shortest size.
            style = self.style.replace("wide", "usual")
            name = "amqp:application-properties:map"
            found.application_properties = part(APPLICATION_PROPERTIES, name, Map(self.own), style)
        if self.rest:
            annotations = Map(self.rest)
            found.delivery_annotations = part(
                DELIVERY_ANNOTATIONS, "amqp:delivery-annotations:map", annotations, self.style
            )
            found.footer = part(FOOTER, "amqp:footer:map", annotations, self.style)
        return found

    def placed_properties(self) -> list[Value] | None:
        created, expires = (None if each is None else Timestamp(each) for each in self.times)
        return placed(self.properties, {8: expires, 9: created, 10: self.group_id})

    @property
    def life_ms(self) -> int | None:
        """How long it lives: its times decide, unless the header can hold it."""
        if self.times[0] is not None and self.times[1] is not None and self.ttl in (None, MAXIMUM):
            return self.times[1] - self.times[0]
        return self.ttl

    def restored(self) -> "ClientMessage":
        """Return the message that `restore` may give back in its place."""
        life_ms, kept = self.life_ms, [pair for pair in self.annotations if pair[0] != SCHEDULE]
        found = replace(self, annotations=[*kept, *(pair for pair in self.annotations if pair[0] == SCHEDULE)])
        if life_ms is None:
            return found
        times = (NOW, min(NOW + life_ms, LAST_EXPIRY)) if life_ms >= MAXIMUM else (None, None)
        ttl, properties = min(life_ms, MAXIMUM), self.placed_properties()
        has_header, has_properties = self.ttl is not None or self.header is not None, properties is not None
        found = replace(found, ttl=ttl, times=times, properties=properties, has_properties=has_properties)
        return found if has_header else replace(found, header=[None] * 5, has_header=False)


def placed(fields: list[Value] | None, values: dict[int, Value]) -> list[Value] | None:
    """Return the fields of a list with these values in their places, and None for no list."""
    given = {position: value for position, value in values.items() if value is not None}
    if fields is None and not given:
        return None
    found = list(fields or [])
    found += [None] * (max(given, default=-1) + 1 - len(found))
    for position in values:
        if position < len(found):
            found[position] = given.get(position)
    return found


def pairs(keys: st.SearchStrategy[Any], max_size: int) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(keys, values), max_size=max_size)


@st.composite
def client_messages(draw: st.DrawFn) -> ClientMessage:
    annotations = draw(pairs(NAMES.map(lambda name: Symbol(f"x-opt-{name}")), 3))
    if draw(st.booleans()):
        at = (SCHEDULE, Timestamp(draw(st.integers(0, LAST_EXPIRY))))
        annotations.insert(draw(st.integers(0, len(annotations))), at)
    fields = st.tuples(scalars, st.none() | st.binary(), scalars, st.none() | st.text(), scalars, scalars)
    return ClientMessage(
        draw(STYLES),
        draw(st.none() | st.lists(st.none(), max_size=5) | st.tuples(st.booleans(), st.just(UByte(4))).map(list)),
        draw(LIVES),
        annotations,
        draw(st.none() | st.lists(st.none(), max_size=13) | fields.map(list)),
        draw(st.none() | st.text(max_size=128)),
        draw(TIMES) or (None, None),
        draw(pairs(NAMES | scalars.filter(lambda key: key not in ALIASES), 5)),
        draw(BODIES),
        draw(pairs(NAMES.map(Symbol), 2)),
    )


def restored(payload: bytes) -> bytes:
    """Return what the syphon sends for a message of a backlog queue."""
    sections, facts = read_facts("q", payload)
    decision = route(facts)
    assert isinstance(decision, Send), facts.flaw
    assert decision.destination == "billing/Invoices"
    return restore(sections, decision, NOW)


@settings(max_examples=300, deadline=None)
@given(client_messages())
def test_the_syphon_restores_the_bytes_of_the_client(message: ClientMessage) -> None:
    sent = message.sections()
    copy = aliased(sent, "billing/Invoices")
    assert copy.body is sent.body
    assert (copy.footer, len(copy)) == (sent.footer, len(copy.join()))
    own = copy.read_properties()
    assert (own.group_id, copy.read_header().ttl if message.life_ms else None) == (None, None)
    assert SCHEDULE not in copy.read_message_annotations()
    assert restored(copy.join()) == message.restored().sections().join()


@settings(max_examples=200, deadline=None)
@given(MESSAGES)
def test_the_copy_equals_that_of_a_message_of_the_sdk(message: ServiceBusMessage) -> None:
    sent = sdk_messages.prepare_one(message)
    wanted = Sections.split(sdk_encoding.encode(sdk_messages.for_backlog(sent, "orders")))
    assert meaning(aliased(Sections.split(encoded(sent)), "orders")) == meaning(wanted)


def meaning(sections: Sections) -> tuple[Any, ...]:
    maps = sections.read_message_annotations(), sections.read_application_properties()
    return (
        sections.read_header(),
        sections.read_properties(),
        *(sorted(map(repr, each.pairs)) for each in maps),
        sections.read_body(),
    )


def test_a_message_without_sections_gets_only_the_aliases() -> None:
    copy = aliased(Sections(body=data_body(b"x")), "billing/Invoices")
    assert copy.join() == copy.application_properties + data_body(b"x")
    assert restored(copy.join()) == data_body(b"x")


def test_counts_of_deliveries_are_left_out() -> None:
    sent = Sections(header=Header(durable=True, ttl=7, delivery_count=2).encode(), body=data_body(b"x"))
    found = Sections.split(restored(aliased(sent, "billing/Invoices").join()))
    assert found.header == Header(durable=True, ttl=7).encode()


@pytest.mark.parametrize("name", sorted(ALIASES))
@pytest.mark.parametrize("kind", [str, Symbol])
def test_a_message_with_an_alias_cannot_go_to_the_backlog(name: str, kind: Any) -> None:
    own = section(APPLICATION_PROPERTIES, codec.encode(Map([(["a list"], 1.0), (kind(name), "elsewhere")])))
    with pytest.raises(UsageError, match=f"already has a property {name}"):
        aliased(Sections(application_properties=own, body=data_body(b"x")), "orders")


@pytest.mark.parametrize(
    "broken",
    [
        {"header": section(HEADER, codec.encode(["no"]))},
        {"properties": section(PROPERTIES, codec.encode([None] * 14))},
        {"message_annotations": section(MESSAGE_ANNOTATIONS, b"\xc1\x02\x02\x40")},
        {"application_properties": section(APPLICATION_PROPERTIES, b"\xc1\x00")},
    ],
)
def test_a_message_that_a_syphon_cannot_read_is_refused(broken: dict[str, bytes]) -> None:
    with pytest.raises(ProtocolError):
        aliased(Sections(**broken, body=data_body(b"x")), "orders")


def test_the_times_of_a_message_that_lives_for_ever_stay() -> None:
    properties = Properties(absolute_expiry_time=NOW, creation_time=None, group_id="s").encode()
    sent = Sections(properties=properties, body=data_body(b"x"))
    assert restored(aliased(sent, "billing/Invoices").join()) == sent.join()
