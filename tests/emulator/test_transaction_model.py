"""Random operations in and out of transactions, on the engine and on the simple model of its other operations."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.transaction import TIMEOUT_MS, Transaction
from sbpair.emulator.service_errors import MessageLockExpired, MessageNotFound, TransactionRolledBack
from tests.emulator.test_engine_model import EngineBesideModel, ModelMessage

MAX_OPEN = 3


@dataclass
class ModelTransaction:
    """What one transaction is to do: settlements and cancellations first, then sends."""

    engine: Transaction
    begun_ms: int | None = None
    settled: dict[bytes, tuple[ModelMessage, str]] = field(default_factory=dict)
    cancelled: list[ModelMessage] = field(default_factory=list)
    sent: list[tuple[int, int | None, int | None, int]] = field(default_factory=list)
    """(size, time to live, due time, reserved number or 0)"""


class TransactionsBesideModel(EngineBesideModel):
    """The rules of the engine, and those of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[ModelTransaction] = []

    def is_over(self, transaction: ModelTransaction) -> bool:
        return transaction.begun_ms is not None and self.model.now >= transaction.begun_ms + TIMEOUT_MS

    def chosen(self, data: st.DataObject) -> ModelTransaction:
        """Draw a transaction whose time is not over; the others are forgotten."""
        for each in [each for each in self.open if self.is_over(each)]:
            assert each.engine.is_over
            self.open.remove(each)
        if not self.open:
            self.open.append(ModelTransaction(Transaction(self.namespace, b"txn")))
        transaction = data.draw(st.sampled_from(self.open))
        assert not transaction.engine.is_over
        return transaction

    def began(self, transaction: ModelTransaction) -> None:
        if transaction.begun_ms is None:
            transaction.begun_ms = self.model.now

    @precondition(lambda self: len(self.open) < MAX_OPEN)
    @rule()
    def begin(self) -> None:
        self.open.append(ModelTransaction(Transaction(self.namespace, b"txn")))

    @rule(
        data=st.data(),
        sizes=st.lists(st.integers(1, 500), min_size=1, max_size=3),
        ttl_ms=st.none() | st.integers(1, 8_000),
    )
    def send_in(self, data, sizes, ttl_ms) -> None:
        transaction = self.chosen(data)
        transaction.engine.send(self.queue, [StoredMessage(Sections(), size, ttl_ms=ttl_ms) for size in sizes])
        self.began(transaction)
        transaction.sent += [(size, ttl_ms, None, 0) for size in sizes]

    @rule(data=st.data(), size=st.integers(1, 500), delay_ms=st.integers(1, 3_000))
    def schedule_in(self, data, size, delay_ms) -> None:
        transaction = self.chosen(data)
        at = self.clock.now_ms() + delay_ms
        numbers = transaction.engine.schedule(self.queue, [StoredMessage(Sections(), size, scheduled_at_ms=at)])
        self.began(transaction)
        self.model.last += 1
        assert numbers == [self.model.last]
        transaction.sent.append((size, None, at, self.model.last))

    @rule(
        data=st.data(),
        token=EngineBesideModel.tokens,
        how=st.sampled_from(["complete", "abandon", "release", "defer", "dead_letter"]),
    )
    def settle_in(self, data, token, how) -> None:
        """Settle; the token stays in the bundle, so that it is settled once more, here or elsewhere."""
        transaction = self.chosen(data)
        entry = self.model.holder(token, self.model.held)
        works = entry is not None and token not in transaction.settled

        def settlement(messages: Any, token: bytes) -> None:
            getattr(messages, how)(token)

        with nullcontext() if works else pytest.raises(MessageLockExpired):
            transaction.engine.settle(self.queue, self.queue.messages, [token], settlement)
        if works:
            self.began(transaction)
            transaction.settled[token] = entry, how

    @precondition(lambda self: any(each.state == "scheduled" for each in self.model.held))
    @rule(data=st.data())
    def cancel_in(self, data) -> None:
        transaction = self.chosen(data)
        entry = data.draw(st.sampled_from([each for each in self.model.held if each.state == "scheduled"]))
        works = all(each is not entry for each in transaction.cancelled)
        with nullcontext() if works else pytest.raises(MessageNotFound):
            transaction.engine.cancel_scheduled(self.queue, [entry.number])
        if works:
            self.began(transaction)
            transaction.cancelled.append(entry)

    @rule(data=st.data())
    def commit(self, data) -> None:
        transaction = self.chosen(data)
        self.open.remove(transaction)
        if not self.is_possible(transaction):
            with pytest.raises(TransactionRolledBack):
                transaction.engine.commit()
            return
        transaction.engine.commit()
        for entry, how in transaction.settled.values():
            self.model.settle(entry, how)
        for entry in transaction.cancelled:
            self.model.held.remove(entry)
        for size, ttl_ms, due_ms, number in transaction.sent:
            if due_ms is None:
                self.model.send(size, ttl_ms, None)
            else:
                self.model.send_reserved(number, size, due_ms)

    def is_possible(self, transaction: ModelTransaction) -> bool:
        settled = transaction.settled.items()
        locked = all(self.model.holder(token, self.model.held) is entry for token, (entry, _) in settled)
        waiting = [each for each in self.model.held if each.state == "scheduled"]
        return locked and all(any(entry is each for each in waiting) for entry in transaction.cancelled)

    @rule(data=st.data())
    def roll_back(self, data) -> None:
        transaction = self.chosen(data)
        self.open.remove(transaction)
        transaction.engine.roll_back()

    @rule(ms=st.just(TIMEOUT_MS // 2))
    def much_time_passes(self, ms) -> None:
        self.pass_time(ms)
        self.namespace.timers.advance(self.clock.now_ms())


TransactionsBesideModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_transactions_and_the_model_agree = TransactionsBesideModel.TestCase
