"""What a batch for a destination holds: as many messages as fit, and the key that they share."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.amqp.message import BATCH_FORMAT, Sections, batch_members
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.move.interface import Batch, RoutedMessage
from sbpair.move.message.batches import ENVELOPE_BYTES, MEMBER_BYTES
from sbpair.move.message.decode import Decoder
from sbpair.move.message.route import Send
from sbpair.move.raw_destination import RawDestinationLink
from tests.kit.stranded import numbered

SEND = Send("orders", None, None, None)


def routed(number: int, size: int = 20, session: str | None = None, key: str | None = None) -> RoutedMessage:
    [decoded] = Decoder("q").decode([numbered(number, "orders", size=size)])
    identity = ("ns", "q", number, 0, None)
    message: Any = SimpleNamespace(content=decoded.content, partition_key=key, facts=decoded.facts, key=identity)
    return RoutedMessage(message, SEND._replace(session_id=session), number)


def encoded(many: Sequence[RoutedMessage], max_batch_size: int = 100_000) -> tuple[Batch, list[int]]:
    """Return a batch, and the numbers of its messages."""
    sender: Any = SimpleNamespace(max_batch_size=max_batch_size)
    batch = RawDestinationLink(sender, NamespaceClock()).encode(many)
    members = batch_members(batch.payload) if batch.format == BATCH_FORMAT else [batch.payload]
    numbers = [Sections.split(each).read_application_properties()["number"] for each in members]
    assert batch.count == len(members)
    return batch, numbers


def test_a_batch_has_as_many_messages_as_fit_and_at_least_one() -> None:
    many = [routed(number, size=1_000) for number in range(1, 6)]
    [size] = {sum(map(len, each.message.content.restore(SEND, 0)[1])) for each in many}
    for count in (1, 2, 4):
        room = ENVELOPE_BYTES + count * (size + MEMBER_BYTES)
        for limit, fit in ((room, count), (room - 1, max(1, count - 1)), (room + size, count)):
            batch, numbers = encoded(many, limit)
            assert numbers == list(range(1, fit + 1))
            assert len(batch.payload) <= limit or count == 1
    batch, numbers = encoded(many, 10)
    assert (batch.format, numbers) == (0, [1])


@pytest.mark.parametrize(
    ("sessions", "keys", "group_id", "partition_key"),
    [
        ([None, None], [None, None], None, None),
        (["a", "a"], [None, None], "a", None),
        (["a", "b"], [None, None], None, None),
        ([None, None], ["k", "k"], None, "k"),
        ([None, None], ["k", "l"], None, None),
        ([None, None], [None, "k"], None, None),
    ],
)
def test_a_batch_names_the_key_that_all_its_messages_share(
    sessions: list[str | None], keys: list[str | None], group_id: str | None, partition_key: str | None
) -> None:
    """The service selects the partition, or the session, of a batch by it."""
    many = [routed(number, session=sessions[number], key=keys[number]) for number in (0, 1)]
    batch, numbers = encoded(many)
    common = Sections.split(batch.payload)
    assert numbers == [0, 1]
    assert common.read_properties().group_id == group_id
    assert common.read_message_annotations().get("x-opt-partition-key") == partition_key
