"""Encoded messages in batches: in order, with one key each, within the limit."""

from itertools import zip_longest
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import BATCH_FORMAT, Sections, batch_members
from sbpair.move.message.batches import ENVELOPE_BYTES, BatchKey, batches, encode_batch
from sbpair.move.message.envelope import partition_key


class Encoded(NamedTuple):
    payload: bytes
    key: BatchKey


KEYS = st.builds(BatchKey, st.none() | st.sampled_from("ab"), st.none() | st.sampled_from("kl"))
MESSAGES = st.lists(st.builds(Encoded, st.binary(max_size=200), KEYS), max_size=30)


@given(MESSAGES, st.integers(0, 800))
def test_batches_keep_order_key_and_limit(messages: list[Encoded], room: int) -> None:
    found = list(batches(messages, ENVELOPE_BYTES + room))
    assert [each for batch in found for each in batch] == messages
    for batch, following in zip_longest(found, found[1:], fillvalue=[]):
        payload, message_format = encode_batch(batch)
        if len(batch) == 1:
            assert (payload, message_format) == (batch[0].payload, 0)
        else:
            envelope, key = Sections.split(payload), batch[0].key
            assert {each.key for each in batch} == {key}
            assert envelope.read_properties().group_id == key.session_id
            assert partition_key(envelope) == (key.partition_key if key.session_id is None else None)
            assert (batch_members(payload), message_format) == ([each.payload for each in batch], BATCH_FORMAT)
            assert len(payload) <= ENVELOPE_BYTES + room
        if following and following[0].key == batch[0].key:
            more = sum(len(each.payload) + 8 for each in [*batch, following[0]])
            assert more > room  # as many as fit
