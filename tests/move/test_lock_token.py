"""The lock token is the only part of a delivery that the archive leaves out."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import DELIVERY_ANNOTATIONS, Header, Sections, data_body, encode_map
from sbpair.amqp.types import Map, Symbol, UInt, Value
from sbpair.errors import ProtocolError
from sbpair.move.message.envelope import LOCK_TOKEN, without_lock_token

HEADERS = [b"", Header(delivery_count=UInt(3)).encode(), Header().encode()]
BODIES = [data_body(b"body"), data_body(f"{LOCK_TOKEN} in a body".encode())]


def annotations(*pairs: tuple[str, Value]) -> bytes:
    return encode_map(DELIVERY_ANNOTATIONS, Map((Symbol(key), value) for key, value in pairs)) if pairs else b""


TOKEN = (LOCK_TOKEN, uuid.UUID(int=7))
MINE = ("x-opt-hop", "mine")


@pytest.mark.parametrize("header", HEADERS, ids=["none", "counted", "empty"])
@pytest.mark.parametrize("body", BODIES, ids=["plain", "with its name"])
@pytest.mark.parametrize(
    ("delivered", "kept"),
    [
        ((TOKEN,), ()),
        ((TOKEN, MINE), (MINE,)),
        ((MINE, TOKEN), (MINE,)),
        ((MINE,), (MINE,)),
        ((), ()),
        (((LOCK_TOKEN, "text"),), ()),
    ],
    ids=["alone", "first", "last", "none", "no annotations", "of another type"],
)
def test_only_the_lock_token_is_left_out(
    header: bytes, body: bytes, delivered: tuple[tuple[str, Value], ...], kept: tuple[tuple[str, Value], ...]
) -> None:
    payload = Sections(header=header, delivery_annotations=annotations(*delivered), body=body).join()
    expected = Sections(header=header, delivery_annotations=annotations(*kept), body=body).join()
    assert without_lock_token(payload) == expected


@given(st.binary(max_size=80), st.sampled_from([b"", LOCK_TOKEN.encode()]), st.sampled_from(HEADERS))
def test_any_other_bytes_stay(payload: bytes, added: bytes, header: bytes) -> None:
    whole = header + payload + added
    found = without_lock_token(whole)
    if found != whole:
        with suppress(ProtocolError):
            assert LOCK_TOKEN in Sections.split(whole).read_delivery_annotations()
            return
        raise AssertionError(whole)
