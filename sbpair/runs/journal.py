"""What the primary has accepted and the backlog does not know yet, and what nobody knows: on disk, a row a batch.

The law: a batch is written down before it is sent, and again when the primary has accepted it. So after a crash what
was accepted is completed without being sent again, and only what was in flight is in doubt. A message counts as
accepted only where all five parts of its key match.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Sequence
from dataclasses import dataclass
from itertools import count, islice, repeat
from typing import TYPE_CHECKING, Any

from sbpair.errors import SbpairError, StateRefused
from sbpair.runs.database import now_ms

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.runs.database import Change, Row, RunDatabase

log = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000
"""Messages that another mover has taken since never come back here: beyond this many, the oldest are forgotten."""

REMEMBERED_DAYS = 30
"""How long an accepted message is remembered across runs: longer than anybody leaves an interrupted syphon alone."""

SENDING, ACCEPTED, DOUBTFUL = 0, 1, 2
"""The state of a flight: no answer yet; the primary has it; no answer came."""

INSERT = "INSERT INTO flights VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE = "UPDATE flights SET state = ? WHERE id = ?"
DELETE = "DELETE FROM flights WHERE id = ?"

_to_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Doubt:
    """A message that was sent, and no answer came: the primary may have it. `run` is who sent it."""

    run: str
    queue: str
    sequence_number: int
    message_id: str | None
    destination: str


class Journal:
    """What one run remembers, on top of what earlier ones left in the state file.

    Without a file, it remembers for as long as the process lives. It holds only messages that may be delivered again:
    those that were accepted or given back, and never confirmed as completed. So its size does not depend on the
    backlog's. Only `note_sending` raises, where nothing may be sent, and `flush`: MachineLacks where it cannot write.
    """

    def __init__(
        self,
        state: RunDatabase | None = None,
        *,
        run: str = "",
        earlier_doubts: Iterable[Doubt] = (),
        may_send: Callable[[], None] = lambda: None,
        limit: int = MAX_REMEMBERED,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`earlier_doubts` is what earlier runs left in doubt, to be told together with what this one does.

        `may_send` is asked before every flight, and raises where nothing more may be sent, or nothing for now.
        """
        self._state = state
        self._run = run
        self._left_behind = tuple(earlier_doubts)
        self.may_send = may_send
        self._limit = limit
        self._clock_ms = clock_ms
        self._flights = count()
        self._flying: dict[int, tuple[Sequence[Key], str]] = {}
        self._accepted: dict[Key, int] = {}
        self._left: dict[int, int] = {}  # how many messages of an accepted flight are not completed yet
        self._earlier: set[int] = set()
        self._returned: dict[Key, None] = {}
        self._doubts: dict[Key, Doubt] = {}
        self._turn: asyncio.Future[None] | None = None
        self._folding: asyncio.Future[None] | None = None
        # What is not on disk yet: new flights, what they became, and those that need not be there any more. Of the last
        # two a crash leaves too much on disk, and never too little.
        self._new: dict[int, Row] = {}
        self._changed: list[tuple[int, int]] = []
        self._gone: list[tuple[int]] = []
        if state is not None:
            self._load(state)

    def note_sending(self, flights: Sequence[Sequence[Key]], destination: str) -> list[int]:
        """Note flights: messages of one queue that are about to be sent together. Answers their numbers.

        None may leave before `flush` has returned. From then on a crash leaves them in doubt, until `note_accepted`
        or `note_unsent`. Raises where nothing may be sent.
        """
        self.may_send()
        numbers = list(islice(self._flights, len(flights)))
        for number, keys in zip(numbers, flights, strict=True):
            self._flying[number] = keys, destination
            if self._state is not None:
                namespace, queue = keys[0][:2]
                row = (number, self._run, namespace, queue, destination, SENDING, self._clock_ms(), _encode_keys(keys))
                self._new[number] = row
        return numbers

    def note_accepted(self, flights: Sequence[int]) -> None:
        """Only ever after the primary's accepted outcome. On disk once `flush` has returned, or with the next flight.

        They are remembered as accepted even where they cannot be written down.
        """
        for flight in flights:
            keys, _destination = self._flying.pop(flight)
            self._take(flight, keys)
            if self._returned:
                for key in keys:
                    self._returned.pop(key, None)
            if self._state is not None:
                self._changed.append((ACCEPTED, flight))

    async def flush(self) -> None:
        """Wait until all that was noted is on disk. What is noted in one turn of the loop is written in one go.

        While the log is folded into the file, nothing is written: only so can it begin anew.
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
        except SbpairError as error:
            turn.set_exception(error)
            turn.exception()  # whoever waits for it is told; nobody need be waiting any more
        else:
            turn.set_result(None)
            if self._state is not None and self._state.log_is_long:
                self._fold(self._state)

    def note_unsent(self, flight: int) -> None:
        """The primary refused them, or they never left."""
        del self._flying[flight]
        if self._new.pop(flight, None) is None:
            self._drop(flight)

    def note_in_doubt(self, flight: int) -> None:
        """No answer came. Its messages stay in doubt, also if they are sent again and accepted then."""
        keys, destination = self._flying.pop(flight)
        if all(key in self._doubts for key in keys):
            self._drop(flight)  # named before: once is enough
            return
        for key in keys:
            self._doubts.setdefault(key, Doubt(self._run, key[1], key[2], key[4], destination))
        _trim(self._doubts, self._limit)
        if self._state is not None:
            self._changed.append((DOUBTFUL, flight))

    def note_completed(self, keys: Sequence[Key]) -> None:
        """The backlog has confirmed: these will not be delivered again. On disk with the next flight."""
        if self._returned:
            for key in keys:
                self._returned.pop(key, None)
        for flight, completed in Counter(map(self._accepted.pop, keys, repeat(None))).items():
            if flight is not None:
                self._let_go(flight, completed)

    def note_returned(self, keys: Sequence[Key]) -> None:
        """The messages went back to the backlog, unsent."""
        self._returned.update(dict.fromkeys(keys))
        _trim(self._returned, self._limit)

    def was_accepted(self, key: Key) -> bool:
        """Whether the primary has the message, from this run or from an earlier one."""
        return key in self._accepted

    def seen(self, key: Key) -> bool:
        """Whether the message was accepted before, or returned in this run."""
        return key in self._accepted or key in self._returned

    def seen_any(self, keys: KeysView[Key]) -> bool:
        """Whether any of these messages was `seen`."""
        return not (keys.isdisjoint(self._accepted.keys()) and keys.isdisjoint(self._returned.keys()))

    def unconfirmed(self) -> list[Key]:
        """What the primary has from this run, and the backlog may still have too."""
        return [key for key, flight in self._accepted.items() if flight not in self._earlier]

    def in_doubt(self) -> list[Doubt]:
        """What was sent without an answer: by the earlier runs that left it behind, and by this one."""
        return [*self._left_behind, *self._doubts.values()]

    def close(self) -> None:
        """Write down what could wait. Where that fails, the next run remembers more than it needs, never less."""
        try:
            for flight in list(self._flying):
                self.note_in_doubt(flight)
            self._write(("UPDATE flights SET keys = ?1 WHERE id = ?2 AND keys <> ?1", self._remaining()))
        except SbpairError as error:
            log.warning("the journal could not be tidied up: %s", error.message)

    def _remaining(self) -> list[tuple[str, int]]:
        """The accepted flights, with the messages alone that are not completed."""
        keys_by_batch: dict[int, list[Key]] = {}
        for key, flight in self._accepted.items():
            keys_by_batch.setdefault(flight, []).append(key)
        return [(_encode_keys(keys), flight) for flight, keys in keys_by_batch.items()]

    def _load(self, state: RunDatabase) -> None:
        oldest = self._clock_ms() - REMEMBERED_DAYS * 86_400_000
        state.write(("DELETE FROM flights WHERE state = ? AND at_ms < ?", [(ACCEPTED, oldest)]))
        state.write(
            ("INSERT INTO journals DEFAULT VALUES", [()]),
            ("DELETE FROM journals WHERE number < (SELECT max(number) FROM journals)", [()]),
        )
        [[number]] = state.read("SELECT last_insert_rowid()")
        self._flights = count(number << 32)
        flights = state.read("SELECT id, namespace, queue, keys FROM flights WHERE state = ? ORDER BY id", (ACCEPTED,))
        for flight, namespace, queue, keys in flights:
            self._earlier.add(flight)
            self._take(flight, [(namespace, queue, *parts) for parts in _decode_keys(keys)])

    def _take(self, flight: int, keys: Sequence[Key]) -> None:
        """Remember the messages of a flight as accepted."""
        before = len(self._accepted)
        taken = dict.fromkeys(keys, flight)
        self._accepted.update(taken)
        self._left[flight] = len(taken)
        if len(self._accepted) - before < len(taken):
            self._count_again()
        for forgotten in _trim(self._accepted, self._limit):
            self._let_go(forgotten, 1)

    def _count_again(self) -> None:
        """A message was accepted twice: it is the later flight's, and the earlier one has less left."""
        left = Counter(self._accepted.values())
        for flight, messages in list(self._left.items()):
            if messages > left[flight]:
                self._let_go(flight, messages - left[flight])

    def _let_go(self, flight: int, messages: int) -> None:
        left = self._left[flight] - messages
        if left:
            self._left[flight] = left
        else:
            del self._left[flight]
            self._earlier.discard(flight)
            self._drop(flight)

    def _drop(self, flight: int) -> None:
        if self._state is not None:
            self._gone.append((flight,))

    def _write(self, *more: Change) -> None:
        """Write down all that is not on disk yet."""
        if self._state is None:
            return
        noted: list[Change] = [(INSERT, list(self._new.values())), (UPDATE, self._changed), (DELETE, self._gone)]
        changes = [change for change in (*noted, *more) if change[1]]
        if changes:
            self._state.write(*changes)
        self._new.clear()
        self._changed.clear()
        self._gone.clear()


def accepted_keys(state: RunDatabase) -> list[Key]:
    """What the primary has accepted of earlier runs, as far as the backlog may still hold it."""
    flights = state.read("SELECT namespace, queue, keys FROM flights WHERE state = ? ORDER BY id", (ACCEPTED,))
    return [(namespace, queue, *parts) for namespace, queue, keys in flights for parts in _decode_keys(keys)]


def doubts_of(state: RunDatabase, run: str, *, gone: bool) -> list[Doubt]:
    """What a run left in doubt. `gone` says that the run has ended, however: what it was sending is in doubt too."""
    flights = state.read(
        "SELECT queue, destination, keys FROM flights WHERE run = ? AND state IN (?, ?) ORDER BY id",
        (run, DOUBTFUL, SENDING if gone else DOUBTFUL),
    )
    found = (
        Doubt(run, queue, number, message_id, destination)
        for queue, destination, keys in flights
        for number, _, message_id in _decode_keys(keys)
    )
    return list(dict.fromkeys(found))


def _encode_keys(keys: Sequence[Key]) -> str:
    _namespaces, _queues, numbers, times, message_ids = zip(*keys, strict=True)
    # A list of numbers looks in Python as it does in JSON, and is written in half the time.
    return f"[{list(numbers)},{list(times)},{_to_json(message_ids)}]"


def _decode_keys(text: str) -> list[tuple[int, int, str | None]]:
    """(sequence number, enqueued ms, message id) of each message of a flight."""
    try:
        numbers, times, message_ids = json.loads(text)
        return list(zip(numbers, times, message_ids, strict=True))
    except (TypeError, ValueError) as error:
        raise StateRefused(
            "the journal holds a flight that cannot be read",
            hint="move the state away: messages that were in flight when it broke may then arrive twice",
        ) from error


def _trim(remembered: dict[Key, Any], limit: int) -> list[Any]:
    """Forget the oldest beyond `most`, and a tenth more: one at a time would look for the first one ever longer."""
    excess = len(remembered) - limit
    if excess <= 0:
        return []
    oldest = list(islice(remembered, excess + limit // 10))
    return [remembered.pop(key) for key in oldest]
