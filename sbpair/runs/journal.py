"""The journal of a run: messages that their destination accepted, not yet completed in the backlog, and those in doubt.

Invariants: a batch is on disk before it is sent, and again when its destination accepted it. After a crash, accepted
messages are completed without a second send, and only the batches then in flight are in doubt. A message counts as
accepted only if all five parts of its key match, and only for the namespace that accepted it: a run to another one
sends it again, and both acceptances stay on disk. A doubt stays open on disk until a run that ended its message, by a
send or otherwise, has named it in its receipt. No entry grows old by the local clock, which may be wrong: its age is
the service's time now, less the service's time when its batch was sent, or when a run first knew that time.
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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from sbpair.errors import SbpairError

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
    """A message that a namespace may have, or has, besides this run's destination. `run` is the run that sent it."""

    run: Annotated[str, "Run that sent it"]
    queue: Annotated[str, "Queue that it came from"]
    sequence_number: Annotated[int, "Its sequence number there", {"minimum": -(2**63)}]
    message_id: Annotated[str | None, "Its message id; null for none"]
    destination: Annotated[str, "Its destination"]
    namespace: Annotated[str, "Namespace of the destination"] = ""


class OpenDoubts:
    """Batches of earlier sends by their number, in doubt or accepted by another namespace, and which of their messages
    ended in this run. A `limit` bounds the messages.

    A message ends when it is sent again and accepted, completed, or dead-lettered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: dict[int, Sequence[Key]] = {}
        self._open: dict[Key, Doubt] = {}
        self._ended: dict[Key, tuple[Doubt, bool]] = {}

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def __contains__(self, key: Key) -> bool:
        return key in self._open or key in self._ended

    def add(self, batch: int, keys: Sequence[Key], run: str, destination: str, namespace: str) -> None:
        """Add a batch in doubt. Beyond the limit, no more is added: such a message is not named again."""
        if len(self._open) + len(keys) <= self._limit:
            self._batches[batch] = keys
            for key in keys:
                self._ended.pop(key, None)
                self._open[key] = Doubt(run, key[1], key[2], key[4], destination, namespace)

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
"""How long an accepted message is remembered across runs, at least: the last of them has named it in its receipt."""

MAX_OPENERS = 1 << 31
"""The number of a batch has that of its opener in the high half: SQLite has no integers of more than 64 bits."""

SENDING, ACCEPTED, DOUBTFUL, NAMED, TWICE = 0, 1, 2, 3, 4
"""The state of a batch: no outcome yet; accepted by the destination; no outcome received; the same, but its messages
ended in a run whose receipt names them; accepted, and by another namespace, too, as a receipt says.
"""

INSERT = "INSERT INTO flights VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE = "UPDATE flights SET state = ? WHERE id = ?"
DELETE = "DELETE FROM flights WHERE id = ?"
STAMP = "UPDATE flights SET at_ms = ? WHERE at_ms = 0"
FORGET = "DELETE FROM flights WHERE state = ? AND at_ms BETWEEN 1 AND ?"
KEEP = "UPDATE flights SET keys = ? WHERE id = ?"
SPLIT = (
    "INSERT INTO flights SELECT ?, run, namespace, queue, destination, ?, at_ms, ?, destination_namespace"
    " FROM flights WHERE id = ?"
)

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
        destination_namespace: str = "",
        earlier_doubts: Iterable[Doubt] = (),
        unreported: Collection[str] = (),
        may_send: Callable[[], None] = lambda: None,
        limit: int = MAX_REMEMBERED,
        service_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Load the entries of earlier runs. `destination_namespace` is the `namespace_id` of this run's destination.

        `earlier_doubts` are messages they left in doubt; `in_doubt` includes them.

        `unreported` are runs whose accepted messages no receipt has named: `unconfirmed` includes those.
        `may_send` is called before each batch, and raises if nothing may be sent, for good or for now. `service_ms`
        returns the service's time in ms since 1970, None while it is unknown.
        """
        self._state = state
        self._run = run
        self._destination_namespace = destination_namespace
        self._left_behind = tuple(earlier_doubts)
        self.may_send = may_send
        self._limit = limit
        self._service_ms = service_ms
        self._numbers = count()
        self._sending: dict[int, tuple[Sequence[Key], str]] = {}
        self._accepted: dict[Key, int] = {}
        self._uncompleted: dict[int, int] = {}  # uncompleted messages of each accepted batch
        self._reported: set[int] = set()  # accepted batches of runs whose receipts named their messages
        self._returned: dict[Key, None] = {}
        self._doubts: dict[Key, Doubt] = {}
        self._open_doubts = OpenDoubts(limit)
        self._elsewhere = OpenDoubts(2 * limit)
        self._completed_twice: dict[Key, None] = {}  # completed, and accepted elsewhere, too
        self._named = False
        self.forgotten: list[Key] = []
        """Messages such as those of `unconfirmed`, that the limit forgot: the first ones of `forgotten_total`."""
        self.forgotten_total = 0
        self._turn: asyncio.Future[None] | None = None
        self._folding: asyncio.Future[None] | None = None
        # Not on disk yet: new batches, changed states, and deletions. A crash that loses the last two leaves too much
        # on disk, never too little.
        self._new: dict[int, Row] = {}
        self._changed: list[tuple[int, int]] = []
        self._deleted: list[tuple[int]] = []
        self._has_unstamped = False  # an entry without the service's time
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
                at_ms = self._service_ms() or 0
                sent = (SENDING, at_ms, _encode_keys(keys), self._destination_namespace)
                self._new[number] = (number, self._run, namespace, queue, destination, *sent)
                self._has_unstamped = self._has_unstamped or not at_ms
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
            if self._elsewhere:
                self._elsewhere.end(keys, sent=True)
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
            doubt = Doubt(self._run, key[1], key[2], key[4], destination, self._destination_namespace)
            self._doubts.setdefault(key, doubt)
        _trim(self._doubts, self._limit)
        if self._state is not None:
            self._open_doubts.add(batch, keys, self._run, destination, self._destination_namespace)
            self._changed.append((DOUBTFUL, batch))

    def note_completed(self, keys: Sequence[Key]) -> None:
        """Record that the backlog confirmed completion: no redelivery follows. On disk with the next batch."""
        if self._open_doubts:
            self._open_doubts.end(keys, sent=False)
        if self._returned:
            for key in keys:
                self._returned.pop(key, None)
        if self._elsewhere:
            both = dict.fromkeys(key for key in keys if key in self._elsewhere and key in self._accepted)
            self._completed_twice |= both
            keys = [key for key in keys if key not in both]
        self._forget_accepted(keys)

    def _forget_accepted(self, keys: Iterable[Key]) -> None:
        batches = list(map(self._accepted.pop, keys, repeat(None)))
        for batch in dict.fromkeys(batches):  # few: `count` is faster than a Counter
            if batch is not None:
                self._forget(batch, batches.count(batch))

    def note_returned(self, keys: Sequence[Key]) -> None:
        """Record that the messages were released to the backlog, unsent."""
        self._returned.update(dict.fromkeys(keys))
        _trim(self._returned, self._limit)

    def was_accepted(self, key: Key) -> bool:
        """Return whether the destination has the message, from this run or an earlier one."""
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
        """Return messages that the destination accepted and the backlog may still have, unless a receipt named them.

        They are those of this run, and of runs that crashed.
        """
        return [
            key
            for key, batch in self._accepted.items()
            if batch not in self._reported and key not in self._completed_twice
        ]

    def accepted_twice(self) -> list[Doubt]:
        """Return earlier acceptances by other namespaces of messages that this run's destination has accepted, too."""
        return [each for each, sent in self._elsewhere.ended() if sent]

    def in_doubt(self) -> list[Doubt]:
        """Return messages in doubt: those of earlier runs first, then those of this run."""
        return [*self._left_behind, *self._doubts.values()]

    def ended_doubts(self) -> list[tuple[Doubt, bool]]:
        """Return doubts whose message ended in this run, and whether it was sent again and accepted."""
        return self._open_doubts.ended()

    def note_named(self) -> None:
        """Record that a receipt names the ended doubts and the unconfirmed messages; on disk after `close`.

        Until then, later runs name them, and nothing is too old to be remembered.
        """
        self._named = True

    def close(self) -> None:
        """Write deferred entries. If that fails, the next run remembers more than it needs, never less."""
        try:
            for batch in list(self._sending):
                self.note_in_doubt(batch)
            self._write(("UPDATE flights SET keys = ?1 WHERE id = ?2 AND keys <> ?1", self._remaining()))
            if self._named:
                self._forget_accepted(self._completed_twice)
                self._completed_twice.clear()
                named = (*self._named_in(self._open_doubts, NAMED), *self._named_in(self._elsewhere, TWICE))
                self._write(*named, *self._too_old())
        except SbpairError as error:
            log.warning("the journal could not be compacted: %s", error.message)

    def _remaining(self) -> list[tuple[str, int]]:
        """Return the accepted batches, each with its uncompleted messages only."""
        keys_by_batch: dict[int, list[Key]] = {}
        for key, batch in self._accepted.items():
            keys_by_batch.setdefault(batch, []).append(key)
        return [(_encode_keys(keys), batch) for batch, keys in keys_by_batch.items()]

    def _named_in(self, earlier: OpenDoubts, state: int) -> list[Change]:
        """Return the changes that separate ended messages, which get a state, from those that may still come again."""
        whole: list[Row] = []
        kept: list[Row] = []
        split: list[Row] = []
        for batch, ended, others in earlier.split_ended():
            if others:
                kept.append((_encode_keys(others), batch))
                split.append((next(self._numbers), state, _encode_keys(ended), batch))
            else:
                whole.append((state, batch))
        return [(UPDATE, whole), (KEEP, kept), (SPLIT, split)]

    def _too_old(self) -> list[Change]:
        """Return the change that forgets old messages; none while the service's time is unknown."""
        now_ms = self._service_ms()
        return [] if now_ms is None else [(FORGET, [(ACCEPTED, now_ms - REMEMBERED_DAYS * 86_400_000)])]

    def _load(self, state: RunDatabase, unreported: Collection[str]) -> None:
        self._has_unstamped = bool(state.read("SELECT 1 FROM flights WHERE at_ms = 0 LIMIT 1"))
        state.write(
            ("INSERT INTO journals DEFAULT VALUES", [()]),
            ("DELETE FROM journals WHERE number < (SELECT max(number) FROM journals)", [()]),
        )
        [[number]] = state.read("SELECT last_insert_rowid()")
        if number >= MAX_OPENERS:  # not written by this package
            [[number]] = state.read("SELECT (coalesce(max(id), 0) >> 32) + 1 FROM flights")
        self._numbers = count(number << 32)
        sent_again: dict[Key, None] = {}
        for batch in _batches(state, ACCEPTED):
            if batch.destination_namespace != self._destination_namespace:
                sent_again |= dict.fromkeys(key for key in batch.keys if key in self._elsewhere)
                self._elsewhere.add(*batch)
                continue
            if batch.run not in unreported:
                self._reported.add(batch.number)
            self._remember(batch.number, batch.keys)
        if self._elsewhere:  # a killed run sent these
            self._elsewhere.end(chain(self._accepted, sent_again), sent=True)
        for batch in reversed(list(_batches(state, DOUBTFUL))):
            self._open_doubts.add(*batch)

    def _remember(self, batch: int, keys: Sequence[Key]) -> None:
        before = len(self._accepted)
        taken = dict.fromkeys(keys, batch)
        self._accepted.update(taken)
        self._uncompleted[batch] = len(taken)
        if len(self._accepted) - before < len(taken):
            self._recount()
        for key, forgotten in _trim(self._accepted, self._limit):
            if forgotten not in self._reported:
                self.forgotten_total += 1
                if len(self.forgotten) < self._limit:
                    self.forgotten.append(key)
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
        if self._has_unstamped and (now_ms := self._service_ms()) is not None:
            self._has_unstamped = False
            noted.append((STAMP, [(now_ms,)]))
        changes = [change for change in (*noted, *more) if change[1]]
        if changes:
            self._state.write(*changes)
        self._new.clear()
        self._changed.clear()
        self._deleted.clear()


class _SentBatch(NamedTuple):
    number: int
    keys: list[Key]
    run: str
    destination: str
    destination_namespace: str

    def messages(self) -> list[Doubt]:
        return [Doubt(self.run, key[1], key[2], key[4], *self[3:]) for key in self.keys]


def accepted_keys(state: RunDatabase) -> Iterator[tuple[str, str, list[Key]]]:
    """Iterate over what earlier runs sent, and the backlog may still hold: by which namespace, queue, keys."""
    for batch in _batches(state, ACCEPTED):
        if batch.keys:
            yield batch.destination_namespace, batch.keys[0][1], batch.keys


def messages_accepted_twice(state: RunDatabase) -> list[Doubt]:
    """Return each acceptance of the messages that two namespaces have accepted, as far as it is recorded."""
    named = [each for batch in _batches(state, TWICE) for each in batch.messages()]
    accepted: dict[Key, list[Doubt]] = {}
    for batch in _batches(state, ACCEPTED):
        for key, message in zip(batch.keys, batch.messages(), strict=True):
            accepted.setdefault(key, []).append(message)
    return named + [each for found in accepted.values() if len({one.namespace for one in found}) > 1 for each in found]


def _batches(state: RunDatabase, wanted: int) -> Iterator[_SentBatch]:
    """Iterate over the batches in a state."""
    last = -1
    while rows := state.read(
        "SELECT id, namespace, queue, keys, run, destination, destination_namespace FROM flights"
        " WHERE state = ? AND id > ? ORDER BY id LIMIT 100",
        (wanted, last),
    ):
        last = rows[-1][0]
        for number, namespace, queue, keys, *sent in rows:
            yield _SentBatch(number, [(namespace, queue, *parts) for parts in _decode_keys(state, keys)], *sent)


def find_flights(state: RunDatabase, name: str) -> Iterator[tuple[Doubt, int, int, int]]:
    """Iterate over messages with this id or sequence number: when each was enqueued and sent, and its batch's state."""
    rows = state.read(
        "SELECT at_ms, state, keys, run, queue, destination, destination_namespace FROM flights WHERE instr(keys, ?)",
        (_to_json(name)[1:-1],),
    )
    for sent_ms, batch, keys, run, queue, *to in rows:
        for number, enqueued_ms, message_id in _decode_keys(state, keys):
            if name in (message_id, str(number)):
                yield Doubt(run, queue, number, message_id, *to), enqueued_ms, sent_ms, batch


def doubts_of(state: RunDatabase, run: str, *, ended: bool) -> dict[Doubt, bool]:
    """Return messages that a run left in doubt; once it has `ended`, in any way, also those it was sending.

    Each has whether it is settled: this run or a later one has ended it, and has named it in its receipt.
    """
    batches = state.read(
        "SELECT queue, destination, destination_namespace, keys, state = ?2 FROM flights WHERE run = ?1"
        " AND state IN (?2, ?3, ?4) ORDER BY state <> ?2, id",
        (run, NAMED, DOUBTFUL, SENDING if ended else DOUBTFUL),
    )
    return {
        Doubt(run, queue, number, message_id, destination, namespace): bool(settled)
        for queue, destination, namespace, keys, settled in batches
        for number, _, message_id in _decode_keys(state, keys)
    }


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


def _trim(remembered: dict[Key, Any], limit: int) -> list[tuple[Key, Any]]:
    """Remove the oldest entries beyond `limit`, and a tenth more: removing one at a time gets ever slower."""
    excess = len(remembered) - limit
    if excess <= 0:
        return []
    oldest = list(islice(remembered, excess + limit // 10))
    return [(key, remembered.pop(key)) for key in oldest]
