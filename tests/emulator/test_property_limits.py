"""Application properties that the service refuses: by their types, the size of one, and of all."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Properties,
    Sections,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp.performatives import Accepted, Rejected
from sbpair.amqp.types import Array, Described, Int, Long, Map, Symbol, Timestamp, Value
from sbpair.amqp_server.refusals import MessageTooLarge
from sbpair.emulator.entities.service_envelope import MAX_PROPERTIES_BYTES, MAX_PROPERTY_BYTES, read_message
from tests.emulator.peer import Peer, plain

TOO_LARGE, INTERNAL = "amqp:link:message-size-exceeded", "amqp:internal-error"
UNSUPPORTED = "Serialization operation failed due to unsupported type "
QUOTA = "A serialization error occurred while processing the message header stream. "


def carrying(properties: dict[str, Value], text: str = "x", **others: Any) -> bytes:
    return Sections(
        properties=Properties(message_id="id", **others).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map(properties.items())),
        body=data_body(text.encode()),
    ).join()


def strings(count: int, size: int) -> dict[str, Value]:
    return {f"p{number}": "x" * size for number in range(count)}


REFUSED = {
    "list": ({"p": ["x"]}, TOO_LARGE, f"{UNSUPPORTED}System.Collections.Generic.List`1[System.Object]."),
    "empty list": ({"p": []}, TOO_LARGE, f"{UNSUPPORTED}System.Collections.Generic.List`1[System.Object]."),
    "long list": ({"p": ["x" * 300] * 300}, TOO_LARGE, f"{UNSUPPORTED}System.Collections.Generic.List"),
    "map": ({"p": Map([("a", "b")])}, TOO_LARGE, f"{UNSUPPORTED}Microsoft.Azure.Amqp.Encoding.AmqpMap."),
    "array": ({"p": Array([Int(1)], of=Int)}, TOO_LARGE, f"{UNSUPPORTED}System.Array."),
    "last of many": ({**strings(9, 10), "p": ["x"]}, TOO_LARGE, UNSUPPORTED),
    "described list": ({"p": Described(Symbol("own:list"), ["x"])}, TOO_LARGE, UNSUPPORTED),
    "string over 32 KB": (strings(1, MAX_PROPERTY_BYTES + 1), INTERNAL, "The service was unable to process the requ"),
    "bytes over 32 KB": ({"p": bytes(MAX_PROPERTY_BYTES + 1)}, INTERNAL, "The service was unable to process"),
    "all over 64 KB": (strings(3, 30_000), TOO_LARGE, QUOTA),
    "many over 64 KB": (strings(700, 100), TOO_LARGE, QUOTA),
}
ACCEPTED: dict[str, dict[str, Value]] = {
    "string of 32 KB": strings(1, MAX_PROPERTY_BYTES),
    "bytes of 32 KB": {"p": bytes(MAX_PROPERTY_BYTES)},
    "nearly 64 KB": strings(2, 32_700),
    # Refused in 2023; whether today is not known: https://github.com/Azure/azure-sdk-for-python/issues/30140
    "bytes": {"p": b"\x45\xc0"},
    "text with such bytes": {"p": "E: Список"},
    "described long": {"p": Described(Symbol("com.microsoft:timespan"), Long(0x45))},
    "time and null": {"p": Timestamp(0x45C0), "q": None},
}


@pytest.mark.parametrize("case", REFUSED)
async def test_properties_are_refused_as_by_the_service(peer: Peer, case: str) -> None:
    properties, condition, text = REFUSED[case]
    bad, link = carrying(properties), await peer.attach_sender("orders")
    batch = batch_of([plain("good"), bad])
    for payload, message_format in ((bad, 0), (batch, 0x80013700)):
        (answer,) = await peer.send(link, payload, message_format=message_format)
        assert isinstance(answer.state, Rejected)
        assert answer.state.error.condition == condition
        assert answer.state.error.description.startswith(text)
    assert peer.stage.queue.counts().total == 0


@pytest.mark.parametrize("case", ACCEPTED)
async def test_properties_within_the_limits_arrive_unchanged(peer: Peer, case: str) -> None:
    (delivery,) = await peer.lock("orders", carrying(ACCEPTED[case]))
    assert Sections.split(delivery.payload).read_application_properties() == Map(ACCEPTED[case].items())


@pytest.mark.parametrize("name", ["MessageId", "SessionId", "PartitionKey"])
async def test_an_id_has_128_characters_at_most(peer: Peer, name: str) -> None:
    def message(length: int) -> bytes:
        text = "é" * length
        ids = {"MessageId": {"message_id": text}, "SessionId": {"group_id": text}}.get(name, {})
        annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): text})
        properties = Properties(**ids).encode()
        return Sections(
            message_annotations=b"" if ids else annotations, properties=properties, body=data_body(b"x")
        ).join()

    link = await peer.attach_sender("orders")
    (longest,), (longer,) = await peer.send(link, message(128)), await peer.send(link, message(129))
    assert longest.state == Accepted()
    assert longer.state.error.condition == "com.microsoft:argument-error"
    assert longer.state.error.description == f"The {name} has 129 characters: the maximum is 128."


async def test_a_fault_refuses_bytes_as_the_service_did_in_2023(peer: Peer) -> None:
    link, payload = await peer.attach_sender("orders"), carrying({"text": "x", "p": b"bytes"})
    body = Map([("messages", [Map([("message", payload)])])])
    with peer.stage.emulator.faults.during("refuse-binary-properties", "contoso", entity="orders"):
        for refused in await peer.send(link, payload, payload):
            assert refused.state.error.condition == TOO_LARGE
            assert refused.state.error.description == f"{UNSUPPORTED}System.Byte[]."
        answer = await peer.ask("orders/$management", "com.microsoft:schedule-message", body)
        assert (answer["statusCode"], answer["errorCondition"]) == (413, TOO_LARGE)
        (text,) = await peer.send(link, carrying({"text": "x"}))
    (answer,) = await peer.send(link, payload)
    assert text.state == answer.state == Accepted()


async def test_the_limits_count_for_each_message_of_a_batch(peer: Peer) -> None:
    members = [carrying(strings(2, 30_000)) for _ in range(3)]
    (answer,) = await peer.send(await peer.attach_sender("orders"), batch_of(members), message_format=0x80013700)
    assert (answer.state, peer.stage.queue.counts().active) == (Accepted(), 3)


async def test_a_refused_message_of_a_transaction_or_schedule_is_not_stored(peer: Peer) -> None:
    control, txn_id, link = await peer.begin_sending("orders")
    bad = carrying({"p": ["x"]})
    state = (await peer.send_in(txn_id, link, bad)).outcome
    assert state.error.condition == TOO_LARGE
    await peer.discharge(control, txn_id)
    body = Map([("messages", [Map([("message", bad)])])])
    answer = await peer.ask("orders/$management", "com.microsoft:schedule-message", body)
    assert (answer["statusCode"], answer["errorCondition"]) == (413, TOO_LARGE)
    assert peer.stage.queue.counts().total == 0


SIMPLE = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1).map(Long), st.text(), st.binary())


@given(
    st.dictionaries(st.text(max_size=8), SIMPLE, max_size=8),
    st.one_of(st.just([]), st.lists(SIMPLE, min_size=1), st.just(Map()), st.just(Array([Int(1)], of=Int))),
    st.booleans(),
)
def test_only_values_that_are_not_simple_are_refused(properties, other, hidden: bool) -> None:
    read_message(carrying(properties))
    if hidden:
        other = Described(Symbol("own"), other)
    with pytest.raises(MessageTooLarge, match="unsupported type"):
        read_message(carrying({**properties, "other": other}))


@pytest.mark.parametrize("over", [0, 1])
def test_the_properties_and_annotations_of_the_sender_count_too(over: int) -> None:
    counted = Sections(
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-own"): "x" * 20_000}),
        properties=Properties(message_id="id", subject="s" * 20_000).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map([("p", "x" * 300)])),
    )
    rest = "x" * (MAX_PROPERTIES_BYTES - len(counted) + 300 + over)
    message = replace(counted, application_properties=encode_map(APPLICATION_PROPERTIES, Map([("p", rest)])))
    assert len(message) == MAX_PROPERTIES_BYTES + over
    payload = replace(message, body=data_body(b"x")).join()
    if over:
        with pytest.raises(MessageTooLarge, match="size quota"):
            read_message(payload)
    else:
        assert read_message(payload) is not None
