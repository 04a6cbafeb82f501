"""Copies given, held or completed as duplicates, in any sequence of two queues, an application and its failures."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbpair.model.pair import SIDES, Side
from sbpair.replication.copies import Copies, LockedMessage, Verdict
from sbpair.replication.keys import KeyStore, Window

LOCK_SECONDS = 10.0
KEYS = ("a", "b", "c")


def locked_message(side: Side, number: int, key: str | None, until: float) -> LockedMessage:
    fields: Any = SimpleNamespace(sequence_number=number, locked_until_utc=datetime.fromtimestamp(until, UTC))
    return LockedMessage(side, fields, None, key)


class World(RuleBasedStateMachine):
    """Two queues of the service, and the messages that the application has completed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.store = KeyStore(None, Window(seconds=None, count=100), {})
        self.copies = Copies(self.store)
        self.queues: dict[tuple[Side, int], str | None] = {}
        self.locked: dict[tuple[Side, int], LockedMessage] = {}
        self.hand: list[LockedMessage] = []
        self.unanswered: list[LockedMessage] = []
        self.sent: set[str] = set()
        self.completed: set[str] = set()
        self.dead: set[str] = set()
        self.numbers = 0

    # The service

    def _is_locked(self, delivery: LockedMessage) -> bool:
        return self.locked.get((delivery.side, delivery.number)) is delivery and delivery.until > self.now

    def _remove(self, delivery: LockedMessage) -> bool:
        """Settle a delivery, and return whether it was in time."""
        if not self._is_locked(delivery):
            return False
        del self.queues[delivery.side, delivery.number], self.locked[delivery.side, delivery.number]
        return True

    def _unlock(self, delivery: LockedMessage) -> None:
        if self._is_locked(delivery):
            del self.locked[delivery.side, delivery.number]

    # The receiver's two halves: a copy comes, and one that waited comes up

    def _judge(self, delivery: LockedMessage, *, again: bool = False) -> None:
        is_duplicate = delivery.key is not None and self.copies.is_duplicate(delivery.key, self.now)
        verdict = self.copies.admit(delivery, self.now)
        assert is_duplicate is (verdict is Verdict.DUPLICATE)
        if verdict is Verdict.DUPLICATE:
            assert delivery.key in self.completed
            self._remove(delivery)
        elif verdict is Verdict.HOLD:
            assert [each for each in (*self.hand, *self.unanswered) if each.key == delivery.key]
        else:
            named = again or verdict is Verdict.GIVE_AGAIN
            assert named or delivery.key is None or delivery.key not in self.completed
            held = [each for each in self.hand if each.key == delivery.key and self._is_locked(each)]
            assert delivery.key is None or not held
            self.hand.append(delivery)

    def _bring_up(self) -> None:
        self.copies.expire(self.now)
        while found := self.copies.next(self.now):
            self._judge(found[0], again=found[1])

    @rule(key=st.sampled_from((*KEYS, None)), sides=st.sampled_from((SIDES, SIDES, SIDES[:1], (SIDES[1], SIDES[1]))))
    def send(self, key: str | None, sides: tuple[Side, ...]) -> None:
        for side in sides:
            self.numbers += 1
            self.queues[side, self.numbers] = key
        if key is not None:
            self.sent.add(key)

    @rule(side=st.sampled_from(SIDES), data=st.data())
    def deliver(self, side: Side, data: st.DataObject) -> None:
        free = [place for place in self.queues if place[0] == side and place not in self.locked]
        if free:
            self._deliver(data.draw(st.sampled_from(free)))

    def _deliver(self, place: tuple[Side, int]) -> None:
        delivery = locked_message(*place, self.queues[place], self.now + LOCK_SECONDS)
        self.locked[place] = delivery
        self._judge(delivery)

    # What the application does with one that it has

    def _take(self, data: st.DataObject) -> LockedMessage:
        delivery = data.draw(st.sampled_from(self.hand))
        self.hand.remove(delivery)
        return delivery

    @precondition(lambda self: self.hand)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self._complete(self._take(data))

    def _complete(self, delivery: LockedMessage) -> None:
        self.copies.completing(delivery, self.now)
        if not self._remove(delivery):
            self.copies.release(delivery, lock_lost=True)
        else:
            if delivery.key is not None:
                self.completed.add(delivery.key)
            for each in self.copies.completed(delivery, self.now):
                self._remove(each)
        self._bring_up()

    @precondition(lambda self: self.hand)
    @rule(data=st.data(), applied=st.booleans(), crashes=st.booleans())
    def complete_without_an_answer(self, data: st.DataObject, applied: bool, crashes: bool) -> None:
        delivery = self._take(data)
        self.unanswered.append(delivery)
        self.copies.completing(delivery, self.now)
        if applied and self._remove(delivery) and delivery.key is not None:
            self.completed.add(delivery.key)
        if crashes:
            self.crash()

    @precondition(lambda self: self.hand)
    @rule(data=st.data(), dead=st.booleans())
    def give_up(self, data: st.DataObject, dead: bool) -> None:
        delivery = self._take(data)
        if not dead:
            self._unlock(delivery)
        elif self._remove(delivery) and delivery.key is not None:
            self.dead.add(delivery.key)
        self.copies.release(delivery)
        self._bring_up()

    @rule(seconds=st.sampled_from((1.0, 6.0, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.locked = {place: each for place, each in self.locked.items() if each.until > self.now}
        self.unanswered = [each for each in self.unanswered if each.until > self.now]
        self._bring_up()

    @rule()
    def crash(self) -> None:
        self.copies, self.hand, self.unanswered, self.locked = Copies(self.store), [], [], {}

    @rule(data=st.data())
    def the_service_takes_a_lock_away(self, data: st.DataObject) -> None:
        if self.locked:
            del self.locked[data.draw(st.sampled_from(sorted(self.locked)))]

    @invariant()
    def nothing_is_gone_that_nobody_dealt_with(self) -> None:
        assert self.sent <= {*self.completed, *self.dead, *self.queues.values()}

    def teardown(self) -> None:
        """Complete everything: the application gets all messages, and the queues become empty."""
        for _ in range(len(self.queues) + 2):
            self.time_passes(LOCK_SECONDS + 1)
            self.hand.clear()
            for place in [each for each in self.queues if each not in self.locked]:
                self._deliver(place)
            while self.hand:
                self._complete(self.hand.pop())
        assert not self.queues
        assert self.sent <= self.completed | self.dead
        self.store.close()


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCopies = World.TestCase
