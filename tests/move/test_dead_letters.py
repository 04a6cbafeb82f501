"""What is taken off a dead letter of the backlog when it is sent again, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Char, Long, Value
from sbpair.move.message import dead_letters
from sbpair.move.message.dead_letters import DeadLetterCause

OURS = {"DeadLetterReason": "DestinationNotFound", "DeadLetterErrorDescription": "there is no orders"}


def payload(said: dict[Value, Value]) -> bytes:
    own = encode_map(APPLICATION_PROPERTIES, said) if said else b""
    return Sections(
        properties=Properties(message_id="m").encode(), application_properties=own, body=data_body(b"body")
    ).join()


@given(
    st.dictionaries(st.text(max_size=20).filter(lambda key: key not in OURS), st.text(max_size=20) | st.booleans()),
    st.sampled_from([OURS, {"DeadLetterReason": "x"}, {"DeadLetterErrorDescription": "y"}, {}]),
)
def test_only_the_reason_goes_and_every_other_byte_stays(theirs: dict[Value, Value], ours: dict[Value, Value]) -> None:
    assert dead_letters.without_cause(payload({**theirs, **ours})) == payload(theirs)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (OURS, DeadLetterCause("DestinationNotFound", "there is no orders")),
        ({"DeadLetterReason": "only"}, DeadLetterCause("only", None)),
        ({}, DeadLetterCause()),
        ({"DeadLetterReason": Long(3)}, DeadLetterCause()),
        ({"DeadLetterReason": Char("\ud800")}, DeadLetterCause("?", None)),
    ],
)
def test_the_reason_is_read(said: dict[Value, Value], why: DeadLetterCause) -> None:
    assert dead_letters.cause_of(payload(said)) == why


@pytest.mark.parametrize("broken", [b"", b"\0", b"nonsense", payload(OURS)[:-20], b"\x00\x53\x74\xc1\x05\x02\xa1\xff"])
def test_what_cannot_be_read_says_nothing_and_stays(broken: bytes) -> None:
    assert dead_letters.cause_of(broken) == DeadLetterCause()
    assert dead_letters.without_cause(broken) == broken
