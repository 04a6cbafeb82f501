"""Batches of encoded messages: how many fit, their payload, and the key that they share. Pure.

Messages of one batch share their session and partition key, as partitioned entities require.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from sbpair.amqp.message import BATCH_FORMAT, MESSAGE_ANNOTATIONS, Properties, encode_map, member_head
from sbpair.amqp.types import Symbol
from sbpair.move.message.envelope import PARTITION_KEY

ENVELOPE_BYTES, MEMBER_BYTES = 1_024, 8
"""Bytes of a batch beside its members, and of each member beside its message."""

Member: TypeAlias = tuple[int, Sequence[bytes]]
"""An encoded message: its size, and consecutive parts."""


class BatchKey(NamedTuple):
    """The session and the partition key of all messages of a batch: the service selects the partition by them."""

    session_id: str | None
    partition_key: str | None

    def encode(self) -> bytes:
        """Return the sections that a batch has before its members."""
        if self.session_id is not None:
            return Properties(group_id=self.session_id).encode()
        if self.partition_key is not None:
            return encode_map(MESSAGE_ANNOTATIONS, {Symbol(PARTITION_KEY): self.partition_key})
        return b""


class EncodedMessage(Protocol):
    """A message that is encoded for its destination."""

    @property
    def key(self) -> BatchKey: ...
    @property
    def payload(self) -> bytes: ...


Encoded = TypeVar("Encoded", bound=EncodedMessage)


def batches(messages: Iterable[Encoded], max_bytes: int) -> Iterator[list[Encoded]]:
    """Yield messages in order: as many as share a key and fit one batch, or a single one, however large."""
    for _, same in groupby(messages, lambda each: each.key):
        left = list(same)
        while left:
            count = len(first_members((_member(each) for each in left), max_bytes))
            yield left[:count]
            left = left[count:]


def encode_batch(batch: Sequence[EncodedMessage]) -> tuple[bytes, int]:
    """Return the payload of one of the `batches`, and its message-format."""
    if len(batch) == 1:
        return batch[0].payload, 0
    return join_members(batch[0].key.encode(), list(map(_member, batch)))


def first_members(members: Iterable[Member], max_bytes: int) -> list[Member]:
    """Return the first members that fit one batch, at least one. Reads no more than one further. Hot path."""
    found: list[Member] = []
    left = max_bytes - ENVELOPE_BYTES
    for member in members:
        left -= member[0] + MEMBER_BYTES
        if left < 0 and found:
            break
        found.append(member)
    return found


def join_members(envelope: bytes, members: Sequence[Member]) -> tuple[bytes, int]:
    """Return the payload of a batch, and its message-format. `envelope` is the encoded key. Hot path."""
    pieces = [envelope]
    for size, parts in members:
        pieces.append(member_head(size))
        pieces += parts
    return b"".join(pieces), BATCH_FORMAT


def _member(message: EncodedMessage) -> Member:
    return len(message.payload), (message.payload,)
