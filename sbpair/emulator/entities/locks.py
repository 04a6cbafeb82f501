"""The locks of a sub-queue: the message that each token holds, and the lock that expires first.

Locks of one duration expire in the order in which they were taken or renewed, so an ordered table needs no heap and
leaves nothing behind when a lock is settled. Only a change of LockDuration breaks that order; locks taken before the
change are kept apart until they are gone.
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
    """Lock tokens and their messages."""

    __slots__ = ("_by_token", "_earlier_duration", "_last", "_lock_ms", "_prefix")

    def __init__(self, lock_ms: int) -> None:
        self._lock_ms = lock_ms
        self._by_token: OrderedDict[bytes, StoredMessage] = OrderedDict()
        self._earlier_duration: OrderedDict[bytes, StoredMessage] = OrderedDict()
        # A random half and a counting half: unique like a GUID (with the version and variant bits of a random one, in
        # .NET's byte order), at a tenth of the cost of making one.
        random = secrets.token_bytes(8)
        self._prefix = random[:7] + bytes([0x40 | random[7] & 0x0F])
        self._last = 1 << 63

    def __len__(self) -> int:
        return len(self._by_token) + len(self._earlier_duration)

    @property
    def duration_ms(self) -> int:
        return self._lock_ms

    def change_duration(self, lock_ms: int) -> None:
        """Use `lock_ms` for new locks. Locks already taken keep their deadline."""
        if lock_ms == self._lock_ms:
            return
        self._lock_ms = lock_ms
        both = [*self._earlier_duration.values(), *self._by_token.values()]
        both.sort(key=lambda message: message.locked_until_ms)
        self._earlier_duration = OrderedDict((message.lock_token, message) for message in both)
        self._by_token = OrderedDict()

    def take(self, messages: Iterable[StoredMessage], now_ms: int) -> int:
        """Lock each message under a new token; return when these locks expire."""
        until = now_ms + self._lock_ms
        by_token, prefix, last = self._by_token, self._prefix, self._last
        for message in messages:
            last += 1
            token = prefix + last.to_bytes(8, "big")
            message.lock_token = token
            message.locked_until_ms = until
            message.state = LOCKED
            by_token[token] = message
        self._last = last
        return until

    def get(self, token: bytes) -> StoredMessage | None:
        return self._by_token.get(token) or self._earlier_duration.get(token)

    def pop(self, token: bytes) -> StoredMessage | None:
        """End the lock of this token; return its message, or None."""
        message = self._by_token.pop(token, None)
        if message is None and self._earlier_duration:
            message = self._earlier_duration.pop(token, None)
        return message

    def renew(self, token: bytes, now_ms: int) -> StoredMessage | None:
        message = self.pop(token)
        if message is not None:
            message.locked_until_ms = now_ms + self._lock_ms
            self._by_token[token] = message
        return message

    def first_ms(self) -> int:
        """Return when the next lock expires."""
        first = NEVER
        for table in (self._by_token, self._earlier_duration):
            if table:
                first = min(first, table[next(iter(table))].locked_until_ms)
        return first

    def pop_expired(self, now_ms: int) -> list[StoredMessage]:
        """Remove and return the messages whose locks have expired, in that order."""
        expired: list[StoredMessage] = []
        for table in (self._earlier_duration, self._by_token):
            while table and table[next(iter(table))].locked_until_ms <= now_ms:
                expired.append(table.popitem(last=False)[1])
        return expired

    def clear(self) -> None:
        self._by_token.clear()
        self._earlier_duration.clear()
