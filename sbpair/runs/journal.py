"""The journal of a run: messages accepted by the primary but not yet completed in the backlog, and messages in doubt.

Invariants: a batch is on disk before it is sent, and again when the primary has accepted it. After a crash, accepted
messages are completed without a second send, and only the batches then in flight are in doubt. A message counts as
accepted only if all five parts of its key match. A doubt stays open on disk until a run that ended its message, by a
send or otherwise, has named it in its receipt.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count, islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.errors import SbpairError
from sbpair.runs.database import now_ms

if TYPE_CHECKING:
    from sbpair.runs.database import Change, Row, RunDatabase


Key: TypeAlias = tuple[str, str, int, int, str | None]
"""(namespace, queue, sequence number, enqueued at, message id): unique to a message.

All five are needed: a queue that was deleted and created again restarts its sequence numbers.
"""

NO_KEY: Key = ("", "", 0, 0, None)

_lower = lru_cache(4_096)(str.lower)


def message_key(namespace: str, facts: tuple[Any, ...]) -> Key:
    """Return the key of a message. `facts` begins with queue, sequence number, enqueued at and message id."""
    queue, sequence_number, enqueued_at, message_id = facts[:4]
    return (namespace, queue.lower(), sequence_number, enqueued_at, message_id)


def message_keys(namespace: str, facts: Sequence[tuple[Any, ...]]) -> list[Key]:
    """Return the key of each message, faster than `message_key` would."""
    if not facts:
        return []
    queues, numbers, times, ids, *_ = zip(*facts, strict=True)
    return list(zip(repeat(namespace), map(_lower, queues), numbers, times, ids, strict=False))


@dataclass(frozen=True, slots=True)
class Doubt:
    """A message sent without an outcome: the primary may have it. `run` is the run that sent it."""

    run: str
    queue: str
    sequence_number: int
    message_id: str | None
    destination: str


class OpenDoubts:
    """Batches in doubt by their number, and which of their messages ended in this run. A `limit` bounds the messages.

    A message ends when it is sent again and accepted, completed, or dead-lettered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: dict[int, Sequence[Key]] = {}
        self._open: dict[Key, Doubt] = {}
        self._ended: dict[Key, tuple[Doubt, bool]] = {}

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def add(self, batch: int, keys: Sequence[Key], run: str, destination: str) -> None:
        """Add a batch in doubt. Beyond the limit, no more is added: such a message is not named again."""
        if len(self._open) + len(keys) <= self._limit:
            self._batches[batch] = keys
            for key in keys:
                self._ended.pop(key, None)
                self._open[key] = Doubt(run, key[1], key[2], key[4], destination)

    def end(self, keys: Iterable[Key], *, sent: bool) -> None:
        """Record that messages ended. `sent`: by another send, which the primary accepted."""
        for key in keys:
            doubt = self._open.pop(key, None)
            if doubt is not None:
                self._ended[key] = doubt, sent

    def ended(self) -> list[tuple[Doubt, bool]]:
        """Return doubts whose message ended in this run, and whether by another send."""
        return list(self._ended.values())

    def split_ended(self) -> list[tuple[int, list[Key], list[Key]]]:
        """Return each batch with ended messages: its number, those, and its other messages."""
        split = []
        for batch, keys in self._batches.items():
            ended = [key for key in keys if key in self._ended]
            if ended:
                split.append((batch, ended, [key for key in keys if key not in self._ended]))
        return split


log = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000
"""Limit of remembered messages. Beyond it the oldest are forgotten: another mover may have taken them, so they would
never return.
"""

REMEMBERED_DAYS = 30
"""How long an accepted message is remembered across runs: longer than any syphon stays interrupted."""

MAX_OPENERS = 1 << 31
"""The number of a batch has that of its opener in the high half: SQLite has no integers of more than 64 bits."""

SENDING, ACCEPTED, DOUBTFUL, NAMED = 0, 1, 2, 3
"""The state of a batch: no outcome yet; accepted by the primary; no outcome received; the same, but its messages ended
in a run whose receipt names them.
"""

INSERT = "INSERT INTO flights VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE = "UPDATE flights SET state = ? WHERE id = ?"
DELETE = "DELETE FROM flights WHERE id = ?"
KEEP = "UPDATE flights SET keys = ? WHERE id = ?"
SPLIT = "INSERT INTO flights SELECT ?, run, namespace, queue, destination, ?, at_ms, ? FROM flights WHERE id = ?"

_to_json = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """The journal of one run, on top of the entries that earlier runs left in the state file.

    Without a file, the entries live as long as the process. The journal holds only messages that may be delivered
    again: accepted or released ones, not yet confirmed as completed. So its size does not depend on the backlog's. Only
    two methods raise: `note_sending` if nothing may be sent, and `flush` if it cannot write (MachineLacks).
    """

    def __init__(
        self,
        state: RunDatabase | None = None,
        *,
        run: str = "",
        earlier_doubts: Iterable[Doubt] = (),
        unreported: Collection[str] = (),
        may_send: Callable[[], None] = lambda: None,
        limit: int = MAX_REMEMBERED,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """Load the entries of earlier runs. `earlier_doubts` are messages they left in doubt; `in_doubt` includes them.

        `unreported` are runs whose accepted messages no receipt has named: `unconfirmed` includes those.
        `may_send` is called before each batch, and raises if nothing may be sent, for good or for now.
        """
        self._state = state
        self._run = run
        self._left_behind = tuple(earlier_doubts)
        self.may_send = may_send
        self._limit = limit
        self._clock_ms = clock_ms
        self._numbers = count()
        self._sending: dict[int, tuple[Sequence[Key], str]] = {}
        self._accepted: dict[Key, int] = {}
        self._uncompleted: dict[int, int] = {}  # uncompleted messages of each accepted batch
        self._reported: set[int] = set()  # accepted batches of runs whose receipts named their messages
        self._returned: dict[Key, None] = {}
        self._doubts: dict[Key, Doubt] = {}
        self._open_doubts = OpenDoubts(limit)
        self._named = False
        self._turn: asyncio.Future[None] | None = None
        self._folding: asyncio.Future[None] | None = None
        # Not on disk yet: new batches, changed states, and deletions. A crash that loses the last two leaves too much
        # on disk, never too little.
        self._new: dict[int, Row] = {}
        self._changed: list[tuple[int, int]] = []
        self._deleted: list[tuple[int]] = []
        if state is not None:
            self._load(state, unreported)

    def note_sending(self, batches: Sequence[Sequence[Key]], destination: str) -> list[int]:
        """Record batches about to be sent, each of one queue, and return their numbers.

        Send none before `flush` has returned. From then on a crash leaves them in doubt, until `note_accepted` or
        `note_unsent`. Raises if nothing may be sent.
        """
        self.may_send()
        numbers = list(islice(self._numbers, len(batches)))
        for number, keys in zip(numbers, batches, strict=True):
            self._sending[number] = keys, destination
            if self._state is not None:
                namespace, queue = keys[0][:2]
                row = (number, self._run, namespace, queue, destination, SENDING, self._clock_ms(), _encode_keys(keys))
                self._new[number] = row
        return numbers

    def note_accepted(self, batches: Sequence[int]) -> None:
        """Record that the primary accepted the batches; on disk after the next `flush` or batch.

        They count as accepted even if they cannot be written.
        """
        for batch in batches:
            keys, _destination = self._sending.pop(batch)
            self._remember(batch, keys)
            if self._open_doubts:
                self._open_doubts.end(keys, sent=True)
            if self._returned:
                for key in keys:
                    self._returned.pop(key, None)
            if self._state is not None:
                self._changed.append((ACCEPTED, batch))

    async def flush(self) -> None:
        """Wait until all entries are on disk. Entries of one turn of the loop are written together.

        While the log is folded into the file, nothing is written: only then can the log start again.
        """
        if self._state is None:
            return
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            if self._folding is None:
                loop.call_soon(self._write_turn, self._turn)
        await asyncio.shield(self._turn)

    def _fold(self, state: RunDatabase) -> None:
        self._folding = asyncio.get_running_loop().run_in_executor(None, state.fold_log)
        self._folding.add_done_callback(self._folded)

    def _folded(self, _: asyncio.Future[None]) -> None:
        self._folding = None
        if self._turn is not None:
            self._write_turn(self._turn)

    def _write_turn(self, turn: asyncio.Future[None]) -> None:
        self._turn = None
        try:
            self._write()
        except Exception as error:  # noqa: BLE001  those who wait for the turn must end with it
            turn.set_exception(error)
            turn.exception()  # mark as retrieved: there may be no waiter
        else:
            turn.set_result(None)
            if self._state is not None and self._state.log_is_long:
                self._fold(self._state)

    def note_unsent(self, batch: int) -> None:
        """Record that the primary refused the batch, or that it was never sent."""
        del self._sending[batch]
        if self._new.pop(batch, None) is None:
            self._drop(batch)

    def note_in_doubt(self, batch: int) -> None:
        """Record that no outcome came. The messages stay in doubt, even if they are sent again and accepted."""
        keys, destination = self._sending.pop(batch)
        if all(key in self._doubts for key in keys):
            self._drop(batch)  # already in doubt
            return
        for key in keys:
            self._doubts.setdefault(key, Doubt(self._run, key[1], key[2], key[4], destination))
        _trim(self._doubts, self._limit)
        if self._state is not None:
            self._open_doubts.add(batch, keys, self._run, destination)
            self._changed.append((DOUBTFUL, batch))

    def note_completed(self, keys: Sequence[Key]) -> None:
        """Record that the backlog confirmed completion: no redelivery follows. On disk with the next batch."""
        if self._open_doubts:
            self._open_doubts.end(keys, sent=False)
        if self._returned:
            for key in keys:
                self._returned.pop(key, None)
        batches = list(map(self._accepted.pop, keys, repeat(None)))
        for batch in dict.fromkeys(batches):  # few: `count` is faster than a Counter
            if batch is not None:
                self._forget(batch, batches.count(batch))

    def note_returned(self, keys: Sequence[Key]) -> None:
        """Record that the messages were released to the backlog, unsent."""
        self._returned.update(dict.fromkeys(keys))
        _trim(self._returned, self._limit)

    def was_accepted(self, key: Key) -> bool:
        """Return whether the primary has the message, from this run or an earlier one."""
        return key in self._accepted

    def seen(self, key: Key) -> bool:
        """Return whether the message was accepted before, or returned in this run."""
        return key in self._accepted or key in self._returned

    def seen_any(self, keys: KeysView[Key]) -> bool:
        return not (keys.isdisjoint(self._accepted.keys()) and keys.isdisjoint(self._returned.keys()))

    def count_seen(self) -> int:
        """Return how many messages `seen` is true for, at most."""
        return len(self._accepted) + len(self._returned)

    def all_seen(self) -> Iterator[Key]:
        """Iterate over the messages for which `seen` is true; some twice."""
        return chain(self._accepted, self._returned)

    def unconfirmed(self) -> list[Key]:
        """Return messages that the primary accepted and the backlog may still have, unless a receipt has named them.

        They are those of this run, and of runs that crashed.
        """
        return [key for key, batch in self._accepted.items() if batch not in self._reported]

    def in_doubt(self) -> list[Doubt]:
        """Return messages in doubt: those of earlier runs first, then those of this run."""
        return [*self._left_behind, *self._doubts.values()]

    def ended_doubts(self) -> list[tuple[Doubt, bool]]:
        """Return doubts whose message ended in this run, and whether it was sent again and accepted."""
        return self._open_doubts.ended()

    def note_named(self) -> None:
        """Record that a receipt names the ended doubts; on disk after `close`. Until then, later runs name them."""
        self._named = True

    def close(self) -> None:
        """Write deferred entries. If that fails, the next run remembers more than it needs, never less."""
        try:
            for batch in list(self._sending):
                self.note_in_doubt(batch)
            self._write(("UPDATE flights SET keys = ?1 WHERE id = ?2 AND keys <> ?1", self._remaining()))
            if self._named:
                self._write(*self._doubts_named())
        except SbpairError as error:
            log.warning("the journal could not be compacted: %s", error.message)

    def _remaining(self) -> list[tuple[str, int]]:
        """Return the accepted batches, each with its uncompleted messages only."""
        keys_by_batch: dict[int, list[Key]] = {}
        for key, batch in self._accepted.items():
            keys_by_batch.setdefault(batch, []).append(key)
        return [(_encode_keys(keys), batch) for batch, keys in keys_by_batch.items()]

    def _doubts_named(self) -> list[Change]:
        """Return the changes that separate ended messages in doubt from those that may still come again."""
        whole: list[Row] = []
        kept: list[Row] = []
        split: list[Row] = []
        for batch, ended, others in self._open_doubts.split_ended():
            if others:
                kept.append((_encode_keys(others), batch))
                split.append((next(self._numbers), NAMED, _encode_keys(ended), batch))
            else:
                whole.append((NAMED, batch))
        return [(UPDATE, whole), (KEEP, kept), (SPLIT, split)]

    def _load(self, state: RunDatabase, unreported: Collection[str]) -> None:
        oldest = self._clock_ms() - REMEMBERED_DAYS * 86_400_000
        state.write(("DELETE FROM flights WHERE state = ? AND at_ms < ?", [(ACCEPTED, oldest)]))
        state.write(
            ("INSERT INTO journals DEFAULT VALUES", [()]),
            ("DELETE FROM journals WHERE number < (SELECT max(number) FROM journals)", [()]),
        )
        [[number]] = state.read("SELECT last_insert_rowid()")
        if number >= MAX_OPENERS:  # not written by this package
            [[number]] = state.read("SELECT (coalesce(max(id), 0) >> 32) + 1 FROM flights")
        self._numbers = count(number << 32)
        for batch, run, keys in _accepted_batches(state):
            if run not in unreported:
                self._reported.add(batch)
            self._remember(batch, keys)
        doubtful = "SELECT id, run, namespace, queue, destination, keys FROM flights WHERE state = ? ORDER BY id DESC"
        for batch, run, namespace, queue, destination, text in state.read(doubtful, (DOUBTFUL,)):
            keys = [(namespace, queue, *parts) for parts in _decode_keys(state, text)]
            self._open_doubts.add(batch, keys, run, destination)

    def _remember(self, batch: int, keys: Sequence[Key]) -> None:
        before = len(self._accepted)
        taken = dict.fromkeys(keys, batch)
        self._accepted.update(taken)
        self._uncompleted[batch] = len(taken)
        if len(self._accepted) - before < len(taken):
            self._recount()
        for forgotten in _trim(self._accepted, self._limit):
            self._forget(forgotten, 1)

    def _recount(self) -> None:
        """Correct the counts after a message was accepted twice: it now belongs to the later batch only."""
        left = Counter(self._accepted.values())
        for batch, messages in list(self._uncompleted.items()):
            if messages > left[batch]:
                self._forget(batch, messages - left[batch])

    def _forget(self, batch: int, messages: int) -> None:
        left = self._uncompleted[batch] - messages
        if left:
            self._uncompleted[batch] = left
        else:
            del self._uncompleted[batch]
            self._reported.discard(batch)
            self._drop(batch)

    def _drop(self, batch: int) -> None:
        if self._state is not None:
            self._deleted.append((batch,))

    def _write(self, *more: Change) -> None:
        if self._state is None:
            return
        noted: list[Change] = [(INSERT, list(self._new.values())), (UPDATE, self._changed), (DELETE, self._deleted)]
        changes = [change for change in (*noted, *more) if change[1]]
        if changes:
            self._state.write(*changes)
        self._new.clear()
        self._changed.clear()
        self._deleted.clear()


def accepted_keys(state: RunDatabase) -> list[Key]:
    """Return messages accepted in earlier runs that the backlog may still hold."""
    return [key for _, _, keys in _accepted_batches(state) for key in keys]


def _accepted_batches(state: RunDatabase) -> Iterator[tuple[int, str, list[Key]]]:
    """Iterate over (number, run, keys) of the accepted batches."""
    rows = state.read("SELECT id, run, namespace, queue, keys FROM flights WHERE state = ? ORDER BY id", (ACCEPTED,))
    for batch, run, namespace, queue, keys in rows:
        yield batch, run, [(namespace, queue, *parts) for parts in _decode_keys(state, keys)]


def doubts_of(state: RunDatabase, run: str, *, ended: bool) -> list[Doubt]:
    """Return messages that a run left in doubt; once it has `ended`, in any way, also those it was sending."""
    batches = state.read(
        "SELECT queue, destination, keys FROM flights WHERE run = ? AND state IN (?, ?, ?) ORDER BY id",
        (run, DOUBTFUL, NAMED, SENDING if ended else DOUBTFUL),
    )
    found = (
        Doubt(run, queue, number, message_id, destination)
        for queue, destination, keys in batches
        for number, _, message_id in _decode_keys(state, keys)
    )
    return list(dict.fromkeys(found))


def _encode_keys(keys: Sequence[Key]) -> str:
    _namespaces, _queues, numbers, times, message_ids = zip(*keys, strict=True)
    # A list of numbers has the same form in Python and JSON, and str() takes half the time.
    return f"[{list(numbers)},{list(times)},{_to_json(message_ids)}]"


def _decode_keys(state: RunDatabase, text: str) -> list[tuple[int, int, str | None]]:
    """Return (sequence number, enqueued ms, message id) of each message of a batch."""
    with state.decoding():
        numbers, times, message_ids = json.loads(text)
        keys = list(zip(numbers, times, message_ids, strict=True))
        hash(tuple(keys))  # lists of JSON cannot be parts of a key
        return keys


def _trim(remembered: dict[Key, Any], limit: int) -> list[Any]:
    """Remove the oldest entries beyond `limit`, and a tenth more: removing one at a time gets ever slower."""
    excess = len(remembered) - limit
    if excess <= 0:
        return []
    oldest = list(islice(remembered, excess + limit // 10))
    return [remembered.pop(key) for key in oldest]
