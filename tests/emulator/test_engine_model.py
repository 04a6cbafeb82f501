"""Random operations on the engine and on a simple model, one list searched for every question, with equal results."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from sbpair import timespan
from sbpair.amqp.message import Sections
from sbpair.amqp_server.refusals import NotAllowed
from sbpair.emulator.clock import NEVER, ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.sessions import HeldSession
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.service_errors import (
    MessageLockExpired,
    MessageNotFound,
    SessionCannotBeLocked,
    SessionLockExpired,
)
from tests.emulator.consumers import SessionWaiter

LOCK_MS = 1_000
MAX_DELIVERIES = 3
QUEUE_TTL_MS = 5_000


@dataclass
class ModelMessage:
    """The model of one message."""

    number: int
    size: int
    state: str = "active"
    failed: int = 0
    ttl_ms: int | None = None
    due_ms: int = NEVER
    expires_ms: int = NEVER
    locked_until_ms: int = 0
    deferred: bool = False
    token: bytes = b""
    reason: str | None = None


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.last = 0
        self.held: list[ModelMessage] = []
        self.dead: list[ModelMessage] = []

    def send(self, size: int, ttl_ms: int | None, delay_ms: int | None) -> None:
        self.last += 1
        entry = ModelMessage(self.last, size, ttl_ms=ttl_ms)
        self.held.append(entry)
        if delay_ms:
            entry.state, entry.due_ms = "scheduled", self.now + delay_ms
        else:
            entry.expires_ms = self.now + min(QUEUE_TTL_MS, ttl_ms or QUEUE_TTL_MS)

    def send_reserved(self, number: int, size: int, due_ms: int) -> None:
        """Store a scheduled message under a number that was reserved, or send it if it is due."""
        if due_ms <= self.now:
            self.send(size, None, None)
        else:
            self.held.append(ModelMessage(number, size, "scheduled", due_ms=due_ms))

    def to_dead_letters(self, entry: ModelMessage, reason: str | None) -> None:
        self.held.remove(entry)
        self.dead.append(replace(entry, reason=reason, state="active", deferred=False, expires_ms=NEVER))

    def put_back(self, entry: ModelMessage) -> None:
        if entry.expires_ms <= self.now:
            self.to_dead_letters(entry, "TTLExpiredException")
        else:
            entry.state = "deferred" if entry.deferred else "active"

    def fail(self, entry: ModelMessage) -> None:
        entry.failed += 1
        if entry.failed >= MAX_DELIVERIES:
            self.to_dead_letters(entry, "MaxDeliveryCountExceeded")
        else:
            self.put_back(entry)

    def settle(self, entry: ModelMessage, how: str) -> None:
        if how == "complete":
            self.held.remove(entry)
        elif how in ("abandon", "defer"):
            entry.deferred = entry.deferred or how == "defer"
            self.fail(entry)
        elif how == "dead_letter":
            self.to_dead_letters(entry, None)
        else:
            self.put_back(entry)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        for entry in [each for each in self.held if each.state in ("active", "deferred")]:
            if entry.expires_ms <= self.now:
                self.to_dead_letters(entry, "TTLExpiredException")
        for entry in [each for each in self.held if each.state == "locked"]:
            if entry.locked_until_ms <= self.now:
                self.fail(entry)
        for entry in [each for each in self.dead if each.state == "locked"]:
            if entry.locked_until_ms <= self.now:
                entry.state = "active"
        due = [each for each in self.held if each.state == "scheduled" and each.due_ms <= self.now]
        for entry in sorted(due, key=lambda each: (each.due_ms, each.number)):
            self.held.remove(entry)
            self.send(entry.size, entry.ttl_ms, None)

    def receive(self, limit: int, where: list[ModelMessage]) -> list[ModelMessage]:
        ready = sorted((each for each in where if each.state == "active"), key=lambda each: each.number)
        return [self.lock(each) for each in ready[:limit]]

    def lock(self, entry: ModelMessage) -> ModelMessage:
        entry.state, entry.locked_until_ms = "locked", self.now + LOCK_MS
        return entry

    def holder(self, token: bytes, where: list[ModelMessage]) -> ModelMessage | None:
        return next((each for each in where if each.state == "locked" and each.token == token), None)


def description() -> QueueDescription:
    return replace(
        QueueDescription(),
        lock_duration=LOCK_MS * timespan.TICKS_PER_MS,
        max_delivery_count=MAX_DELIVERIES,
        default_message_time_to_live=QUEUE_TTL_MS * timespan.TICKS_PER_MS,
        dead_lettering_on_message_expiration=True,
    )


def facts(messages: list[StoredMessage]) -> list[tuple[int, int]]:
    return [(message.sequence_number, message.delivery_count) for message in messages]


def entry_facts(entry: list[ModelMessage]) -> list[tuple[int, int]]:
    return [(each.number, each.failed) for each in entry]


def under_lock(entry: ModelMessage | None, operation: Callable[[bytes], object], token: bytes) -> bool:
    """Run an operation, which must fail for a token without a message; return whether it did not."""
    with nullcontext() if entry else pytest.raises(MessageLockExpired):
        operation(token)
    return entry is not None


class EngineBesideModel(RuleBasedStateMachine):
    """Messages of a queue. test_transaction_model.py runs it, with transactions."""

    tokens = Bundle("tokens")
    dead_tokens = Bundle("dead_tokens")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_000_000)
        self.namespace = Namespace("contoso", self.clock)
        self.queue = self.namespace.create_queue("orders", description())
        self.model = Model()
        self.model.now = self.clock.now_ms()
        self.is_behind = False
        """Whether the engine has not yet seen that time has passed."""

    @rule(
        sizes=st.lists(st.integers(1, 500), min_size=1, max_size=5),
        ttl_ms=st.none() | st.integers(1, 8_000),
        delay_ms=st.none() | st.integers(1, 3_000),
    )
    def send(self, sizes, ttl_ms, delay_ms) -> None:
        at = None if delay_ms is None else self.clock.now_ms() + delay_ms
        self.queue.send([StoredMessage(Sections(), size, ttl_ms=ttl_ms, scheduled_at_ms=at) for size in sizes])
        for size in sizes:
            self.model.send(size, ttl_ms, delay_ms)

    @rule(ms=st.integers(1, 2_500), timer=st.booleans())
    def time_passes(self, ms, timer) -> None:
        """Advance the clock, with or without running timers: the result of the next operation must not depend on it."""
        self.pass_time(ms)
        if timer:
            self.namespace.timers.advance(self.clock.now_ms())
        self.is_behind = not timer

    def pass_time(self, ms: int) -> None:
        self.queue.counts()  # so that the engine is behind by this time only
        self.clock.advance(ms)
        self.model.pass_time(ms)

    @rule(target=tokens, limit=st.integers(1, 4))
    def receive(self, limit):
        return self._receive(self.queue.messages, self.model.held, limit)

    @rule(target=dead_tokens, limit=st.integers(1, 4))
    def receive_dead(self, limit):
        self.queue.counts()
        return self._receive(self.queue.dead_letters, self.model.dead, limit)

    def _receive(self, subqueue, where, limit):
        taken, expected = subqueue.receive(limit), self.model.receive(limit, where)
        assert facts(taken) == entry_facts(expected)
        for message, entry in zip(taken, expected, strict=True):
            entry.token = message.lock_token
            assert message.locked_until_ms == entry.locked_until_ms
        return multiple(*(message.lock_token for message in taken))

    @rule(token=consumes(tokens), how=st.sampled_from(["complete", "abandon", "release", "defer", "dead_letter"]))
    def settle(self, token, how) -> None:
        entry = self.model.holder(token, self.model.held)
        if not under_lock(entry, getattr(self.queue.messages, how), token):
            return
        self.model.settle(entry, how)

    @rule(token=consumes(dead_tokens), how=st.sampled_from(["complete", "abandon"]))
    def settle_dead(self, token, how) -> None:
        entry = self.model.holder(token, self.model.dead)
        if not under_lock(entry, getattr(self.queue.dead_letters, how), token):
            return
        if how == "complete":
            self.model.dead.remove(entry)
        else:
            entry.state = "active"

    @rule(token=tokens)
    def renew(self, token) -> None:
        entry = self.model.holder(token, self.model.held)
        if under_lock(entry, self.queue.messages.renew, token):
            self.model.lock(entry)

    @rule(target=tokens, number=st.integers(1, 40))
    def receive_deferred(self, number):
        entry = next((each for each in self.model.held if each.number == number and each.state == "deferred"), None)
        if entry is None:
            with pytest.raises(MessageNotFound):
                self.queue.messages.receive_deferred([number])
            return multiple()
        token = self.queue.messages.receive_deferred([number])[0].lock_token
        self.model.lock(entry).token = token
        return token

    @precondition(lambda self: any(each.state == "scheduled" for each in self.model.held))
    @rule(data=st.data())
    def cancel_scheduled(self, data) -> None:
        entry = data.draw(st.sampled_from([each for each in self.model.held if each.state == "scheduled"]))
        self.queue.cancel_scheduled([entry.number])
        self.model.held.remove(entry)

    @rule(start=st.integers(0, 30), limit=st.integers(0, 10))
    def peek(self, start, limit) -> None:
        expected = sorted((each for each in self.model.held if each.number >= start), key=lambda each: each.number)
        assert facts(self.queue.messages.peek(start, limit)) == entry_facts(expected[:limit])

    @invariant()
    def the_engine_and_the_model_agree(self) -> None:
        if self.is_behind:  # A look would run what is due.
            self.is_behind = False
            return
        counts, held, dead = self.queue.counts(), self.model.held, self.model.dead
        scheduled = sum(each.state == "scheduled" for each in held)
        assert (counts.active, counts.scheduled, counts.dead_letter) == (len(held) - scheduled, scheduled, len(dead))
        assert self.queue.size_bytes == sum(each.size for each in held + dead)
        assert self.queue.messages.locked_count == sum(each.state == "locked" for each in held)
        dead_lettered = [
            (message.sequence_number, message.dead_letter.reason) for message in self.queue.dead_letters.peek(0, 999)
        ]
        assert dead_lettered == sorted((each.number, each.reason) for each in dead)
        deadline = self.namespace.timers.next_deadline_ms()
        locked = [each.locked_until_ms for each in held + dead if each.state == "locked"]
        waiting = [each for each in held if each.state != "locked"]
        due = min([*locked, *(min(each.expires_ms, each.due_ms) for each in waiting)], default=NEVER)
        assert due == NEVER or (deadline is not None and deadline <= due), "a deadline would be missed"


@dataclass
class SessionEntry:
    """The second model's record of one message of one session."""

    number: int
    session: str
    token: bytes = b""
    failed: int = 0
    deferred: bool = False


class SessionsBesideModel(RuleBasedStateMachine):
    """Sessions, their state and deferral, and duplicates in a queue of one piece: holders, waiters and order."""

    PARTITIONED = False
    WINDOW_MS = 20_000
    NAMES = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_000_000)
        self.soon: list[Callable[[], object]] = []
        """What the server's loop would call in its next turn."""
        self.namespace = Namespace("contoso", self.clock, call_soon=self.soon.append)
        self.queue = self.namespace.create_queue(
            "orders",
            replace(
                QueueDescription(),
                lock_duration=LOCK_MS * timespan.TICKS_PER_MS,
                max_delivery_count=1_000,
                requires_session=True,
                enable_partitioning=self.PARTITIONED,
                requires_duplicate_detection=not self.PARTITIONED,
                duplicate_detection_history_time_window=self.WINDOW_MS * timespan.TICKS_PER_MS,
            ),
        )
        self.last: Counter[int] = Counter()
        """The last number of each partition."""
        self.entries: list[SessionEntry] = []
        self.seen: dict[int, int] = {}
        self.held_sessions: dict[str, tuple[HeldSession, int]] = {}
        self.available: list[set[str]] = []
        """Sessions with messages and no holder, in the order in which they became so: those of one step have none."""
        self.waiters: list[SessionWaiter] = []
        self.states: dict[str, bytes] = {}

    def waiting(self, session: str) -> list[SessionEntry]:
        return sorted(
            (each for each in self.entries if each.session == session and not each.token and not each.deferred),
            key=lambda each: each.number,
        )

    @rule(session=st.sampled_from(NAMES), ids=st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=4))
    def send(self, session, ids) -> None:
        self.queue.send(
            [
                StoredMessage(Sections(), 1, session_id=session, message_id=None if each is None else str(each))
                for each in ids
            ]
        )
        partition = self.queue.partitions.for_key(session) + 1 if self.queue.partitions else 0
        for each in ids:
            if each is not None and not self.PARTITIONED:
                if self.clock.now_ms() < self.seen.get(each, 0) + self.WINDOW_MS:
                    continue
                self.seen[each] = self.clock.now_ms()
            self.last[partition] += 1
            self.entries.append(SessionEntry(partition << 48 | self.last[partition], session))
        self._became_available(session)
        self._serve_waiters()

    def _became_available(self, *sessions: str) -> None:
        known = set(self.held_sessions).union(*self.available)
        if new := {session for session in sessions if session not in known and self.waiting(session)}:
            self.available.append(new)

    def _serve_waiters(self) -> None:
        while self.soon:
            self.soon.pop(0)()
        while self.waiters and self.available:
            held = self.waiters.pop(0).held
            assert held is not None
            assert held.id in self.available[0]
            self._on_locked(held)

    @rule(session=st.sampled_from(NAMES))
    def accept(self, session) -> None:
        if session in self.held_sessions:
            with pytest.raises(SessionCannotBeLocked):
                self.queue.messages.accept(session)
        else:
            self._on_locked(self.queue.messages.accept(session))

    def _on_locked(self, held: HeldSession) -> None:
        self.held_sessions[held.id] = (held, self.clock.now_ms() + LOCK_MS)
        self.available = [left for each in self.available if (left := each - {held.id})]

    @rule(stays=st.booleans())
    def accept_next(self, stays) -> None:
        """Accept the session that has been available for longest; if there is none, wait for one, or leave."""
        waiter = SessionWaiter()
        held = self.queue.messages.accept_next(waiter)
        assert held.id in self.available[0] if held else not self.available
        if held:
            self._on_locked(held)
        elif stays:
            self.waiters.append(waiter)
        else:
            self.queue.messages.remove_waiter(waiter)

    @precondition(lambda self: self.held_sessions)
    @rule(data=st.data(), limit=st.integers(1, 3))
    def receive(self, data, limit) -> None:
        held, _ = data.draw(st.sampled_from(list(self.held_sessions.values())))
        taken, expected = held.receive(limit), self.waiting(held.id)[:limit]
        assert facts(taken) == [(each.number, each.failed) for each in expected]
        for message, each in zip(taken, expected, strict=True):
            each.token = message.lock_token

    @precondition(lambda self: any(each.token for each in self.entries))
    @rule(data=st.data(), how=st.sampled_from(["complete", "abandon", "release", "defer"]))
    def settle(self, data, how) -> None:
        each = data.draw(st.sampled_from([each for each in self.entries if each.token]))
        getattr(self.held_sessions[each.session][0].checked(), how)(each.token)
        if how == "complete":
            self.entries.remove(each)
        each.failed += how in ("abandon", "defer")
        each.deferred = each.deferred or how == "defer"
        each.token = b""

    @precondition(lambda self: self.held_sessions)
    @rule(data=st.data())
    def receive_deferred(self, data) -> None:
        held, _ = data.draw(st.sampled_from(list(self.held_sessions.values())))
        number = data.draw(st.sampled_from([*(each.number for each in self.entries), 999]))
        with pytest.raises(NotAllowed):
            self.queue.messages.receive_deferred([number])
        each = next((each for each in self.entries if each.number == number), None)
        if each is None or not each.deferred or each.token or each.session != held.id:
            with pytest.raises(MessageNotFound):
                held.receive_deferred([number])
        else:
            each.token = held.receive_deferred([number])[0].lock_token

    @precondition(lambda self: self.held_sessions)
    @rule(data=st.data(), how=st.sampled_from(["renew", "close"]))
    def renew_or_close(self, data, how) -> None:
        held, _ = data.draw(st.sampled_from(list(self.held_sessions.values())))
        if how == "renew":
            assert held.renew() == self.clock.now_ms() + LOCK_MS
            self._on_locked(held)
            for each in [each for each in self.entries if each.session == held.id and each.token]:
                assert held.checked().get_locked(each.token).locked_until_ms == self.clock.now_ms() + LOCK_MS
                with pytest.raises(NotAllowed):
                    self.queue.messages.renew(each.token)
        else:
            held.close()
            self._over(held.id, failed=False)
            self._became_available(held.id)
            self._serve_waiters()

    @precondition(lambda self: self.held_sessions)
    @rule(data=st.data(), state=st.sampled_from([None, b"", b"state", b"more state"]))
    def set_state(self, data, state) -> None:
        held, _ = data.draw(st.sampled_from(list(self.held_sessions.values())))
        held.set_state(state)
        self.states.pop(held.id, None)
        if state is not None:
            self.states[held.id] = state

    @rule(session=st.sampled_from(NAMES), start=st.integers(0, 5), limit=st.integers(0, 4))
    def peek_session(self, session, start, limit) -> None:
        mine = sorted((each for each in self.entries if each.session == session), key=lambda each: each.number)
        first = mine[start].number if start < len(mine) else 0
        expected = [(each.number, each.failed) for each in mine if each.number >= first]
        assert facts(self.queue.messages.peek_session(session, first, limit)) == expected[:limit]

    @rule()
    def expire_locks(self) -> None:
        self.queue.messages.expire_locks()
        self._run_out(NEVER)

    def _over(self, session: str, *, failed: bool) -> None:
        del self.held_sessions[session]
        for each in self.entries:
            if each.session == session and each.token:
                each.token = b""
                each.failed += failed

    def _run_out(self, now_ms: int) -> None:
        lost = [held for held, until in self.held_sessions.values() if until <= now_ms]
        for held in lost:
            self._over(held.id, failed=True)
            with pytest.raises(SessionLockExpired):
                held.receive(1)
        self._became_available(*(held.id for held in lost))
        self._serve_waiters()

    @rule(ms=st.integers(1, 900), timer=st.booleans())
    def time_passes(self, ms, timer) -> None:
        self.clock.advance(ms)
        if timer:
            self.namespace.timers.advance(self.clock.now_ms())
        self._run_out(self.clock.now_ms())

    @invariant()
    def all_is_there(self) -> None:
        assert self.queue.counts().active == len(self.entries)
        assert self.queue.messages.locked_count == sum(bool(each.token) for each in self.entries)
        assert self.queue.size_bytes == len(self.entries) + sum(map(len, self.states.values()))
        listed = {each.session for each in self.entries if each.token or not each.deferred} | self.states.keys()
        assert self.queue.messages.list_sessions() == sorted(listed)
        assert self.queue.messages._sessions.sessions.keys() == listed | self.held_sessions.keys()
        assert all(held.state == self.states.get(held.id) for held, _ in self.held_sessions.values())


class PartitionedSessionsBesideModel(SessionsBesideModel):
    PARTITIONED = True


for machine in (SessionsBesideModel, PartitionedSessionsBesideModel):
    machine.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
test_sessions_and_their_model_agree = SessionsBesideModel.TestCase
test_partitioned_sessions_and_their_model_agree = PartitionedSessionsBesideModel.TestCase
