"""Messages as we read the original's clients: their bytes, their way through a whole drill, and alterations of them."""

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    Header,
    Sections,
    data_body,
    encode_map,
    section,
)
from sbpair.amqp.types import Int, Map, Symbol, Timestamp
from sbpair.backlog import ALIASES
from sbpair.drill.drill_messages import OriginalMessage, message_differences
from sbpair.drill.original_reading import BODIES, CLIENTS, READING, UNKNOWN_ANNOTATIONS, messages_as_read
from sbpair.move.message.dead_letters import CAUSE
from sbpair.move.message.envelope import read_facts, restore
from sbpair.move.message.route import BACKLOG, BACKLOG_DEAD_LETTERS, Send, route
from tests.kit.command import Here, environment, untimed
from tests.kit.json_schemas import parse_validated

# The SDK leaves sockets of failed connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NOW = 1_767_225_600_000
FORMS = len(CLIENTS) * len(BODIES)

# What .NET's DataContractSerializer wrote with a binary writer.
DOTNET = {
    "string": (
        "4006737472696e670833687474703a2f2f736368656d61732e6d6963726f736f66742e636f6d2f323030332f31302f536572"
        "69616c697a6174696f6e2f990568656c6c6f"
    ),
    "decimal": (
        "4007646563696d616c0833687474703a2f2f736368656d61732e6d6963726f736f66742e636f6d2f323030332f31302f5365"
        "7269616c697a6174696f6e2f95000004000000000015cd5b0700000000"
    ),
    "List<int>": (
        "400a41727261794f66696e740839687474703a2f2f736368656d61732e6d6963726f736f66742e636f6d2f323030332f3130"
        "2f53657269616c697a6174696f6e2f41727261797309016929687474703a2f2f7777772e77332e6f72672f323030312f584d"
        "4c536368656d612d696e7374616e63654003696e74834003696e74814003696e7489054003696e748da086010001"
    ),
    "a struct": (
        "4005506f696e74082c687474703a2f2f736368656d61732e64617461636f6e74726163742e6f72672f323030342f30372f53"
        "686f7009016929687474703a2f2f7777772e77332e6f72672f323030312f584d4c536368656d612d696e7374616e63654001"
        "588340015989fe01"
    ),
}


@pytest.mark.parametrize("name", DOTNET)
def test_binary_xml_is_that_of_dotnet(name: str) -> None:
    assert BODIES[name][1] == bytes.fromhex(DOTNET[name])


def test_a_stranded_message_has_the_bytes_of_the_reading() -> None:
    (long,) = [each for each in messages_as_read(2 * FORMS, now_ms=NOW) if each.number == 12]
    message = replace(long, session_id="s", ttl_ticks=600_000_000, scheduled_at=NOW, destination="orders")
    stranded = Sections.split(message.in_backlog())
    # A header with only a ttl, of 1,566,804,069 ms.
    assert stranded.header == bytes.fromhex("005370c00a054040705d6388654040")
    properties = stranded.read_properties()
    assert (properties.creation_time, properties.absolute_expiry_time) == (NOW, 253_402_214_399_999)
    assert properties.group_id is None
    for name, encoded in {
        "x-ms-path": b"\xa1\x06orders",
        "x-ms-sessionid": b"\xa1\x01s",
        "x-ms-timetolive": b"\x00\xa3\x16com.microsoft:timespan\x81\x00\x00\x00\x00\x23\xc3\x46\x00",
        "x-ms-scheduledenqueuetimeutc": b"\x83\x00\x00\x01\x9b\x76\xda\xa8\x00",
    }.items():
        assert bytes((0xA1, len(name))) + name.encode() + encoded in stranded.application_properties, name


def test_one_backlog_has_every_client_with_every_body() -> None:
    made = messages_as_read(1_000, now_ms=NOW, seed=3)
    assert made == messages_as_read(1_000, now_ms=NOW, seed=3)
    value_bodies = sum(value is not None for value, _ in BODIES.values())
    bodies = {each.sections.body for each in made}
    assert len(bodies) == len(BODIES) + value_bodies
    assert b"" in bodies
    assert {code for each in made for code, _ in each.sections.read_body()} == {DATA, VALUE}
    late = [each for each in made if each.expires]
    assert len(late) > 100
    for some in (late, [each for each in made if not each.expires]):
        facts = [read_facts("q", each.in_backlog())[1] for each in some]
        assert any(each.session_id and each.ttl_ticks and each.scheduled_at for each in facts)
        assert {"x-opt-message-state", "price", *ALIASES} <= {
            key for each in some for key, _ in Sections.split(each.in_backlog()).read_application_properties().pairs
        }
        assert {each.sections.body for each in some} == bodies
    # Those that wrapped, and no others, have a header; only a time to live wraps.
    assert {(bool(each.backlog_header), each.backlog_times is not None) for each in made} == {(True,) * 2, (False,) * 2}
    assert any(each.ttl_ticks and not each.backlog_header for each in made), "of the original's own protocol"
    assert all(each.ttl_ticks for each in made if each.backlog_header)


def arrived(original: OriginalMessage) -> Sections:
    """Return the message as the primary has it after a syphon, or after a redrive if it expired."""
    sections = Sections.split(original.in_backlog())
    if original.expires:
        pairs = [*sections.read_application_properties().pairs, *((name, "why") for name in CAUSE)]
        sections.application_properties = section(APPLICATION_PROPERTIES, codec.encode(Map(pairs)))
    form = BACKLOG_DEAD_LETTERS if original.expires else BACKLOG
    sections, facts = read_facts("q", sections.join(), form)
    decision = route(facts)
    assert isinstance(decision, Send)
    return Sections.split(restore(sections, decision, NOW + 5, form))


def test_every_message_as_read_is_restored() -> None:
    for original in messages_as_read(600, now_ms=NOW, seed=5):
        assert message_differences(original, arrived(original)) == []


def properties_with(at: int, value: object) -> Callable[[Sections], bytes]:
    def altered(whole: Sections) -> bytes:
        fields = codec.decode_all(whole.properties).value
        fields[at] = value
        return section(PROPERTIES, codec.encode(fields))

    return altered


def without_property(name: str) -> Callable[[Sections], bytes]:
    def altered(whole: Sections) -> bytes:
        pairs = [pair for pair in whole.read_application_properties().pairs if pair[0] != name]
        return section(APPLICATION_PROPERTIES, codec.encode(Map(pairs)))

    return altered


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize(
    ("name", "alter", "found"),
    [
        ("body", lambda whole: whole.body[:-1] + bytes((whole.body[-1] ^ 1,)), "the bytes of body differ"),
        # The same text as an AMQP value is another message.
        ("body", lambda _whole: section(VALUE, codec.encode("hello")), "the bytes of body differ"),
        (
            "header", lambda _whole: Header(ttl=1_566_804_069).encode(),
            "time to live: expected 60000 ms, got 1566804069",
        ),
        ("header", lambda _whole: b"", "time to live: expected 60000 ms, got None"),
        ("properties", properties_with(10, None), "the property group_id differs"),
        ("properties", properties_with(5, "other"), "the property correlation_id differs"),
        (
            "properties", properties_with(8, Timestamp(NOW + 6)),
            "absolute-expiry-time minus creation-time: expected 60000 ms, got 1",
        ),
        ("message_annotations", lambda _whole: b"", f"schedule: expected {NOW + 9}, got None"),
        (
            "application_properties", without_property("x-opt-message-state"),
            "the bytes of application properties differ",
        ),
        ("application_properties", without_property("price"), "the bytes of application properties differ"),
    ],
)  # fmt: skip
def test_each_altered_field_is_reported(
    expires: bool, name: str, alter: Callable[[Sections], bytes], found: str
) -> None:
    own = {"price": Int(1), **UNKNOWN_ANNOTATIONS}
    original = OriginalMessage(
        number=0,
        message_id="m",
        destination="orders",
        sections=Sections(
            properties=section(PROPERTIES, codec.encode(["m", *[None] * 9, "session", None, None])),
            application_properties=encode_map(APPLICATION_PROPERTIES, own),
            body=data_body(bytes.fromhex(DOTNET["string"])),
        ),
        session_id="session",
        ttl_ticks=600_000_000,
        scheduled_at=NOW + 9,
        backlog_header=Header(ttl=1_566_804_069).encode(),
        backlog_times=(253_402_214_399_999, NOW),
        expires=expires,
    )
    whole = arrived(original)
    assert message_differences(original, whole) == []
    setattr(whole, name, alter(whole))
    assert message_differences(original, whole) == [found]


@pytest.mark.odd_messages  # without a body
def test_a_drill_brings_messages_of_the_original_back(here: Here) -> None:
    code, out, err = here("drill", "--as-original", "--messages", "120", "-o", "json", **environment(None))
    gc.collect()
    found = parse_validated(out)
    assert (code, found["sent"], found["received"], found["altered"]) == (0, 120, 120, 0), found["alterations"]
    expired = sum(each.expires for each in messages_as_read(120, now_ms=NOW))
    assert (found["receipt"]["sent"], found["redriven"], found["reading"]) == (120 - expired, expired, READING)
    assert [each["name"] for each in found["timeline"] if each["name"] != "sender"] == [
        *("start", "provision", "strand", "syphon", "primary-down", "queue-down", "primary-up", "syphon", "compare"),
        *("expire", "redrive"),
    ]
    assert f"stranding {120 - expired} messages in the backlog, {READING}\n" in untimed(err)
    assert "clock differs" not in err
    assert "this machine's clock" not in err


@pytest.mark.odd_messages  # without a body
def test_a_drill_names_the_messages_of_the_original_that_changed(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    strand = OriginalMessage.in_backlog
    altered: dict[int, dict[str, bytes]] = {
        0: {"body": data_body(b"other")},  # it expires
        3: {"message_annotations": encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-more"): Int(1)})},
        5: {"body": data_body(b"other")},
    }

    def strand_altered(message: OriginalMessage) -> bytes:
        sections = Sections.split(strand(message))
        for name, raw in altered.get(message.number, {}).items():
            setattr(sections, name, raw)
        return sections.join()

    monkeypatch.setattr(OriginalMessage, "in_backlog", strand_altered)
    words = ("--messages", "20", "--count", "1", "--failover-interval", "0", "-q")
    code, out, _ = here("drill", "--as-original", *words, **environment(None))
    gc.collect()
    made = messages_as_read(20, now_ms=NOW)
    lines = out.splitlines()
    assert (code, made[0].expires) == (3, True)
    assert sorted(line for line in lines if line.startswith("altered: ")) == [
        f"altered: {made[0].message_id}: the bytes of body differ",
        f"altered: {made[3].message_id}: unexpected annotation x-opt-more",
        f"altered: {made[5].message_id}: the bytes of body differ",
    ]
    assert lines[-1].startswith("the drill failed, in ")
