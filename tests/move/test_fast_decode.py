"""The fast path through backlog messages agrees with the general one, on what it knows and on what it does not."""

import uuid
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    section,
    value_body,
)
from sbpair.amqp.types import Int, Long, Map, Symbol, Timestamp
from sbpair.backlog import Aliases, write_aliases
from sbpair.errors import ProtocolError
from sbpair.move.message.decode import Decoder
from sbpair.move.message.envelope import locked_until, read_facts, restore
from sbpair.move.message.route import BACKLOG, BACKLOG_DEAD_LETTERS, MessageForm, Send, kept_for, route

BODY = data_body(b"x" * 300)
NOW = 1_767_225_600_000
TEXT = st.text(max_size=12)

ALIASES = st.none() | st.builds(
    Aliases,
    path=st.sampled_from(["orders", "Orders/eu", "a" * 200, "no path!"]),
    session_id=st.none() | TEXT | st.just("s" * 250),
    ttl_ticks=st.none() | st.sampled_from([1, 600_000_000, 2**63 - 1]) | st.integers(1, 2**63 - 1),
    scheduled_at=st.none() | st.integers(-(2**63), 2**63 - 1),
)
PROPERTIES = st.builds(
    Properties,
    message_id=TEXT | st.just("m" * 240) | st.none() | st.integers(0, 9).map(Int),
    subject=st.none() | TEXT,
    correlation_id=st.none() | st.uuids().map(str),
    content_type=st.none() | st.just(Symbol("application/json")),
    absolute_expiry_time=st.none() | st.sampled_from([NOW, NOW + 2**40]),
    creation_time=st.none() | st.sampled_from([NOW - 1, NOW + 1, NOW - 2**40]),
    group_id=st.none() | TEXT,
)
BODIES = st.one_of(
    st.sampled_from([0, 1, 247, 255, 256, 300]).map(lambda size: data_body(b"x" * size)),
    st.sampled_from([0, 5, 300]).map(lambda size: section(DATA, b"\xb0" + size.to_bytes(4) + b"y" * size)),
    st.sampled_from([value_body("text"), data_body(b"one") + data_body(b"two"), b""]),
)
BY_SOURCE = replace(kept_for(""), origins={"key": "orders", "another": ""})
FORMS = st.sampled_from([BACKLOG, BACKLOG, BACKLOG_DEAD_LETTERS, BY_SOURCE, kept_for("orders"), kept_for("a" * 200)])
CAUSES = st.sampled_from(["DeadLetterReason", "DeadLetterErrorDescription"])
OWN_VALUES = st.none() | TEXT | st.integers(0, 9).map(Int) | st.binary(max_size=300)
OWN = st.lists(st.tuples(TEXT | CAUSES, OWN_VALUES), max_size=3)


def numbers(sequence: int, enqueued: int, locked: int) -> list[tuple[Symbol, object]]:
    return [
        (Symbol("x-opt-enqueue-sequence-number"), Long(sequence // 2)),
        (Symbol("x-opt-message-state"), Int(0)),
        (Symbol("x-opt-sequence-number"), Long(sequence)),
        (Symbol("x-opt-enqueued-time"), Timestamp(enqueued)),
        (Symbol("x-opt-locked-until"), Timestamp(locked)),
    ]


def backlog_copy(
    sequence: int,
    properties: Properties,
    aliases: Aliases | None,
    own: object,
    extra: str | None,
    body: bytes = BODY,
    delivery: object = (),
    ttl: int | None = None,
) -> Sections:
    sequence += 1_000
    annotations = numbers(sequence, NOW + sequence, NOW + 60_000 + sequence)
    if extra is not None:
        annotations += [(Symbol(f"x-opt-{name}"), extra) for name in ("partition-key", "deadletter-source")]
    pairs = [*own, *(write_aliases(aliases) if aliases else {}).items()]
    return Sections(
        header=Header(ttl=ttl, delivery_count=0).encode(),
        delivery_annotations=section(
            DELIVERY_ANNOTATIONS, codec.encode(Map([*delivery, (Symbol("x-opt-lock-token"), uuid.UUID(int=sequence))]))
        ),
        message_annotations=section(MESSAGE_ANNOTATIONS, codec.encode(Map(annotations))),
        properties=properties.encode(),
        application_properties=section(APPLICATION_PROPERTIES, codec.encode(Map(pairs))) if pairs else b"",
        body=body,
    )


SEQUENCES = st.integers(0, 2**40) | st.integers(-1_000, -700)
MESSAGES = st.builds(
    backlog_copy,
    SEQUENCES,
    PROPERTIES,
    ALIASES,
    OWN,
    st.none() | st.sampled_from(["key", "another"]),
    BODIES,
    st.sampled_from([(), (), ((Symbol("x-opt-own"), uuid.UUID(int=1)),), ((Symbol("x-opt-own"), uuid.UUID(int=2)),)]),
    st.sampled_from([None, None, 0, 60_000, 2**32 - 1]),
)


def taught(*known: Sections, form: MessageForm = BACKLOG) -> Decoder:
    reader = Decoder("q", form)
    for sections in known:
        payload = sections.join()
        general, facts = read_facts("q", payload, form)
        if not facts.flaw:
            reader.learn(payload, general)
    return reader


def joined(restored: tuple[int, tuple[bytes, ...]]) -> bytes:
    size, parts = restored
    whole = b"".join(parts)
    assert size == len(whole)
    return whole


def compare(reader: Decoder, payload: bytes, form: MessageForm = BACKLOG) -> bool:
    """Whether the short cut was taken; that it led where the road does."""
    [read] = reader.read([payload])
    if read is None:
        return False
    facts, usual, partition_key, locked = read
    sections, told = read_facts("q", payload, form)
    assert facts == told
    assert locked == locked_until(sections)
    assert partition_key == sections.read_message_annotations().get("x-opt-partition-key")
    decision = route(facts)
    if isinstance(decision, Send):
        assert joined(usual.restore(decision, NOW)) == restore(sections, decision, NOW, form)
    return True


@given(SEQUENCES, PROPERTIES, ALIASES, OWN, BODIES, FORMS, st.data())
@settings(max_examples=150, deadline=None)
def test_similar_messages_decode_and_restore_as_on_the_general_path(
    sequence: int,
    properties: Properties,
    aliases: Aliases,
    own: object,
    body: bytes,
    form: MessageForm,
    data: st.DataObject,
) -> None:
    reader = taught(backlog_copy(sequence, properties, aliases, own, None, body), form=form)
    for _ in range(3):
        changed = data.draw(st.sampled_from(["message_id", "subject", "correlation_id", "group_id", "nothing"]))
        if changed != "nothing":
            properties = replace(properties, **{changed: data.draw(TEXT)})
        if data.draw(st.booleans()):
            aliases = data.draw(ALIASES)
        sequence += data.draw(st.integers(0, 2))
        compare(reader, backlog_copy(sequence, properties, aliases, own, None, data.draw(BODIES)).join(), form)


def damaged(payload: bytes, data: st.DataObject) -> bytes:
    raw = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    return bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)


@given(st.lists(MESSAGES, min_size=1, max_size=5), st.lists(st.integers(0, 9), max_size=12), FORMS, st.data())
@settings(max_examples=300, deadline=None)
def test_messages_are_read_as_one_by_one_and_as_on_the_general_path(
    some: list[Sections], order: list[int], form: MessageForm, data: st.DataObject
) -> None:
    reader = taught(*some[:3], form=form)
    payloads = [some[number % len(some)].join() for number in order]
    for each in some[: data.draw(st.integers(0, 2))]:
        payloads.insert(data.draw(st.integers(0, len(payloads))), damaged(each.join(), data))
    assert reader.read(payloads) == [reader.read([payload])[0] for payload in payloads]
    for each in payloads:
        try:
            read_facts("q", each, form)
        except ProtocolError:
            assert reader.read([each]) == [None]
        else:
            compare(reader, each, form)


def check_decoded(payloads: list[bytes], form: MessageForm = BACKLOG) -> None:
    """Check that messages that come together decode in their order as on the general path, also once they are known."""
    opener = Decoder("q", form)
    for _ in range(2):
        for payload, opened in zip(payloads, opener.decode(payloads), strict=True):
            try:
                sections, facts = read_facts("q", payload, form)
            except ProtocolError:
                numbers = (opened.facts.sequence_number, opened.facts.enqueued_at, opened.locked_until)
                assert (opened.content, bool(opened.facts.flaw), numbers) == (None, True, (0, 0, 0))
                continue
            assert (opened.facts, opened.locked_until) == (facts, locked_until(sections))
            if isinstance(decision := route(facts), Send):
                assert opened.content is not None
                assert joined(opened.content.restore(decision, NOW)) == restore(sections, decision, NOW, form)


@given(st.lists(MESSAGES, max_size=4), st.lists(st.integers(0, 9), max_size=12), FORMS, st.data())
@settings(max_examples=150, deadline=None)
def test_messages_that_come_together_decode_as_on_the_general_path(
    some: list[Sections], order: list[int], form: MessageForm, data: st.DataObject
) -> None:
    payloads = [some[number % len(some)].join() for number in order] if some else []
    if data.draw(st.booleans()):
        payloads.insert(data.draw(st.integers(0, len(payloads))), b"no message")
    check_decoded(payloads, form)


ODD = st.sampled_from(
    [
        {"message_annotations": b"\x00\x53\x72\xc1\x02\x02\x40"},
        {"message_annotations": b"\x00\x53\x72\xc1\x06\x02\xa3\x01a\x56\x07"},
        {"delivery_annotations": b"\x00\x53\x71\xc1\x02\x02\x40"},
        {"delivery_annotations": b"\x00\x53\x71\xc1\x05\x02\xa1\x01\xff\x40"},
    ]
)
NUMBERS = numbers(1, NOW, NOW + 60_000)
EXTRA = st.lists(
    st.sampled_from(
        [
            ([], "a list"),
            (Map([([], "a list in it")]), "a map"),
            (None, None),
            (Symbol("x-opt-sequence-number"), Long(5)),
            (Symbol("x-opt-sequence-number"), Long(2**40)),
            ("x-opt-locked-until", None),
            (Symbol("x-opt-enqueued-time"), Timestamp(NOW - 1)),
            (Symbol("x-opt-partition-key"), Symbol("key")),
            (Symbol("x-opt-partition-key"), Int(7)),
        ]
    ),
    max_size=3,
).flatmap(lambda extra: st.permutations([*NUMBERS, *extra]))
ANNOTATIONS = EXTRA.map(lambda pairs: {"message_annotations": section(MESSAGE_ANNOTATIONS, codec.encode(Map(pairs)))})


@given(st.lists(ODD | ANNOTATIONS, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_unusual_annotations_decode_as_on_the_general_path(annotations: list[dict[str, bytes]]) -> None:
    payloads = []
    for each in annotations:
        sections = Sections.split(PLAIN.join())
        for name, raw in each.items():
            setattr(sections, name, raw)
        payloads.append(sections.join())
    check_decoded(payloads)


PLAIN = backlog_copy(1, Properties(message_id="one"), Aliases("orders"), [], None)


def test_messages_that_differ_in_numbers_and_texts_take_the_short_cut() -> None:
    reader = taught(PLAIN)
    full = Aliases("billing/eu", "session 7", 600_000_000, NOW)
    for number, aliases in enumerate((Aliases("orders"), full, replace(full, session_id=None))):
        sections = backlog_copy(number, Properties(message_id=f"id-{number}"), aliases, [("mine", "kept")], None)
        assert compare(reader, sections.join())


def test_moved_messages_without_properties_of_their_own_take_the_short_cut() -> None:
    form = kept_for("orders")
    without, own = backlog_copy(1, Properties(message_id="one"), None, [], None), [("own", "text")]
    for reader in (taught(without, form=form), taught(PLAIN, form=form)):
        for number in range(3):
            named = Properties(message_id=f"id-{number}", group_id=f"session-{number}")
            alike = [backlog_copy(number, named, None, each, None).join() for each in (own, [])]
            assert all(compare(reader, payload, form) for payload in alike)
            assert None not in reader.read(alike)
            assert reader.read_alike(alike[1:]) is not None
            assert not compare(reader, replace_body(Sections.split(alike[1]), value_body("text")).join(), form)


def test_sequence_numbers_of_any_size_take_the_short_cut() -> None:
    copies = [backlog_copy(number, Properties(message_id="m"), Aliases("a"), [], None) for number in (-999, -800, 0)]
    reader = taught(*copies)
    for number in (-1_000, -900, -873, -872, -746, -745, 2**30, 2**50):
        assert compare(reader, backlog_copy(number, Properties(message_id="m"), Aliases("a"), [], None).join()), number


def test_a_reader_knows_more_than_one_way_to_write() -> None:
    keyed = backlog_copy(2, Properties(message_id="two"), Aliases("orders"), [], "key")
    reader = taught(PLAIN, keyed)
    assert compare(reader, PLAIN.join())
    assert compare(reader, keyed.join())


def test_ids_of_any_length_and_properties_of_any_kind_take_the_short_cut() -> None:
    reader = taught(PLAIN)
    for size in (0, 1, 36, 240, *range(2, 200), 36):
        for subject in (None, "one", "two", "three"):
            named = Properties(message_id="i" * size, subject=subject)
            aliases = Aliases("orders", "session", 600_000_000, NOW + size)
            taken = compare(reader, backlog_copy(size, named, aliases, [], None).join())
            assert taken == (named.encode()[3] == 0xC0)


def test_a_single_data_section_takes_the_fast_path_in_either_encoding() -> None:
    reader = taught(PLAIN)
    for size in (0, 5, 255, 256, 70_000):
        for body in (data_body(b"b" * size), section(DATA, b"\xb0" + size.to_bytes(4) + b"b" * size)):
            assert compare(reader, replace_body(PLAIN, body).join())


def test_a_reader_does_not_learn_what_it_knows() -> None:
    keyed = backlog_copy(2, Properties(message_id="two"), Aliases("orders"), [], "key")
    reader = taught(keyed, *[replace_body(PLAIN, value_body(f"text {number}")) for number in range(9)])
    assert compare(reader, keyed.join())


def test_what_is_written_in_another_way_is_left_to_the_general_road() -> None:
    reader = taught(PLAIN)
    assert not compare(reader, replace_body(PLAIN, value_body("text")).join())
    assert not compare(reader, replace_body(PLAIN, data_body(b"a") * 2).join())
    broken = Sections.split(
        backlog_copy(1, Properties(message_id="one"), Aliases("orders"), [("k", None)], None).join()
    )
    broken.application_properties = broken.application_properties.replace(b"k", b"\xff", 1)
    assert not compare(reader, broken.join())
    assert reader.read([]) == []
    assert reader.read([b"", PLAIN.join()[:-1]]) == [None, None]


def replace_body(sections: Sections, body: bytes) -> Sections:
    whole = Sections.split(sections.join())
    whole.body = body
    return whole
