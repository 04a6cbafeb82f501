"""The locks of a sub-queue: which message each token holds, and which lock runs out first.

Locks of one duration run out in the order in which they were taken or renewed, so an ordered table needs no heap and
leaves nothing behind when a lock is settled. Only a change of LockDuration breaks that order; the locks taken
before it are kept apart until they are gone.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.stored_message import LOCKED, StoredMessage

if TYPE_CHECKING:
    from collections.abc import Iterable


class Locks:
    __slots__ = ("_former", "_held", "_last", "_lock_ms", "_prefix")

    def __init__(self, lock_ms: int) -> None:
        self._lock_ms = lock_ms
        self._held: OrderedDict[bytes, StoredMessage] = OrderedDict()
        self._former: OrderedDict[bytes, StoredMessage] = OrderedDict()
        # A random half and a counting half: unique like a GUID (with the version and variant bits of a random one, in
        # .NET's byte order), at a tenth of the cost of making one.
        random = secrets.token_bytes(8)
        self._prefix = random[:7] + bytes([0x40 | random[7] & 0x0F])
        self._last = 1 << 63

    def __len__(self) -> int:
        return len(self._held) + len(self._former)

    @property
    def duration_ms(self) -> int:
        return self._lock_ms

    def change_duration(self, lock_ms: int) -> None:
        """Locks already taken keep the deadline they were given."""
        if lock_ms == self._lock_ms:
            return
        self._lock_ms = lock_ms
        both = [*self._former.values(), *self._held.values()]
        both.sort(key=lambda message: message.locked_until_ms)
        self._former = OrderedDict((message.lock_token, message) for message in both)
        self._held = OrderedDict()

    def take(self, messages: Iterable[StoredMessage], now_ms: int) -> int:
        """Locks each message under a new token; returns when these locks run out."""
        until = now_ms + self._lock_ms
        held, prefix, last = self._held, self._prefix, self._last
        for message in messages:
            last += 1
            token = prefix + last.to_bytes(8, "big")
            message.lock_token = token
            message.locked_until_ms = until
            message.state = LOCKED
            held[token] = message
        self._last = last
        return until

    def get(self, token: bytes) -> StoredMessage | None:
        return self._held.get(token) or self._former.get(token)

    def pop(self, token: bytes) -> StoredMessage | None:
        """The message that this token holds, its lock ended."""
        message = self._held.pop(token, None)
        if message is None and self._former:
            message = self._former.pop(token, None)
        return message

    def renew(self, token: bytes, now_ms: int) -> StoredMessage | None:
        message = self.pop(token)
        if message is not None:
            message.locked_until_ms = now_ms + self._lock_ms
            self._held[token] = message
        return message

    def first_ms(self) -> int:
        """When the next lock runs out."""
        first = NEVER
        for table in (self._held, self._former):
            if table:
                first = min(first, table[next(iter(table))].locked_until_ms)
        return first

    def expired(self, now_ms: int) -> list[StoredMessage]:
        """Takes out the messages whose locks have run out, in that order."""
        out: list[StoredMessage] = []
        for table in (self._former, self._held):
            while table and table[next(iter(table))].locked_until_ms <= now_ms:
                out.append(table.popitem(last=False)[1])
        return out

    def clear(self) -> None:
        self._held.clear()
        self._former.clear()
