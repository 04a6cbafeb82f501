"""The sends of a sender, step by step in virtual time: targets and times of attempts, doubts, and the outbox."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusServerBusyError,
)

from sbpair import sync_async
from sbpair.errors import UsageError
from sbpair.failover.clients import AsyncPairedClient, PairedClient
from sbpair.failover.entity_states import EntityEvent, State
from sbpair.failover.events import OutboxBegun, SendInDoubt, SizeUnknown
from sbpair.failover.failover_send import Delivered, SendPolicy, ShortTimeout, checked_timeout
from sbpair.failover.failures import NotSent, is_transient
from sbpair.failover.outbox import Outbox
from sbpair.failover.sdk_send import SdkFailoverSend as FailoverSend
from sbpair.failover.shared_state import FailoverState, SendTarget
from sbpair.failover.side_connections import MAX_BROKEN
from sbpair.model.tiers import SMALLEST_TIER_BYTES
from sbpair.sync_async import drive
from tests.failover.test_states import Middle, a_pair
from tests.kit.failover_rig import EventLog, a_message

End: TypeAlias = tuple[float, Callable[[], Exception] | None]
GONE_TEXT = "OperationTimeoutError: gone"


def gone() -> Exception:
    return OperationTimeoutError(message="gone")


def disabled() -> Exception:
    """Return an error that counts as no outage."""
    return MessagingEntityDisabledError(message="disabled")


class Attempts:
    """Attempts that end as given: each takes so many seconds, and may raise an error."""

    def __init__(self, *ends: End) -> None:
        self.now, self.ends = 0.0, list(ends)
        self.tried: list[tuple[str, float | None]] = []
        self.opened, self.closed = list[str](), list[str]()
        self.links_open, self.link_bytes = True, SMALLEST_TIER_BYTES

    def attempt(self, name: str, seconds: float | None) -> None:
        self.tried.append((name, None if seconds is None else round(seconds, 3)))
        took, error = self.ends.pop(0) if self.ends else (0.0, None)
        self.now += took
        if error is not None:
            raise error()

    def pause(self, seconds: float) -> None:
        self.tried.append(("pause", seconds))
        self.now += seconds


class Link:
    """An SDK sender."""

    def __init__(self, attempts: Attempts, path: str) -> None:
        self.sender, self.name = attempts, path.rpartition("/")[2]
        self._max_message_size_on_link = 0
        attempts.opened.append(self.name)

    def create_message_batch(self) -> Any:
        self.sender.attempt(f"open {self.name}", None)
        self._max_message_size_on_link = self.max_size_in_bytes = self.sender.link_bytes
        return self

    def send_messages(self, _content: object, *, timeout: float) -> None:
        self._max_message_size_on_link = self.sender.link_bytes if self.sender.links_open else 0
        self.sender.attempt(self.name, timeout)

    def schedule_messages(self, messages: list[Any], _at: object, *, timeout: float) -> list[int]:
        self.sender.attempt(f"schedule {self.name}", timeout)
        return list(range(7, 7 + len(messages)))

    def cancel_scheduled_messages(self, numbers: list[int], *, timeout: float) -> None:
        self.sender.attempt(f"cancel {numbers}", timeout)

    def close(self) -> None:
        self.sender.closed.append(self.name)


class AsyncLink(Link):
    async def send_messages(self, content: object, **options: Any) -> None:  # type: ignore[override]
        super().send_messages(content, **options)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


class Sender(Attempts, FailoverSend):
    """A sender whose attempts end as given."""

    _is_async = False

    def __init__(self, *ends: End, on_failure: Any = "raise", retries: int = 0, **terms: Any) -> None:
        Attempts.__init__(self, *ends)
        self.log = EventLog()
        outbox = terms.pop("outbox", None)
        self.state = FailoverState(a_pair(**{"failover_interval": 60, "backlog_queues": 2} | terms), self.log, Middle())
        self.state.register("orders")
        policy = SendPolicy(is_transient, on_failure, retries)
        FailoverSend.__init__(self, self.state, "orders", policy, lambda: self.now, outbox)

    def _sdk_sender(self, _side: str, path: str) -> Link:
        return Link(self, path)

    def _seconds(self, timeout: float | None) -> float:
        return 60.0 if timeout is None else timeout

    def send(self, *names: str, seconds: float = 60.0, size: int = 10, **options: Any) -> None:
        messages = [ServiceBusMessage(b"x" * size, message_id=name) for name in names or ("m",)]
        drive(self._send(messages if len(messages) > 1 else messages[0], seconds, **options))

    def command(self, event: EntityEvent) -> None:
        self.state.command(event, None, self.now)

    @property
    def entity(self) -> State:
        return self.state.states()["orders"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sender]:
    """Return a function that makes a sender, whose clock goes on when it pauses."""

    def make(*ends: End, **options: Any) -> Sender:
        sender = Sender(*ends, **options)
        monkeypatch.setattr(sync_async, "sleep", sender.pause)
        return sender

    return make


FAILS, DENIED, OK = (1.0, gone), (1.0, disabled), (0.0, None)
GONE, DISABLED = OperationTimeoutError, MessagingEntityDisabledError
ERRORS: dict[str, Any] = {"gone": gone, "disabled": disabled, "no message": TypeError}
SENDS = """
on failure|retries|failover interval|queues|seconds| ends of attempts | attempts and pauses | outcome
raise      |0|60|2|60| ok                     | orders 60                                   | primary, healthy
raise      |0|60|2|60| 1 gone                 | orders 60                                   | raised, failing
backlog-now|3| 0|2|60| 1 disabled             | orders 45                                   | raised, healthy
raise      |1|60|2|60| 1 gone, 1 gone         | orders 60, +0.8, orders 58.2                | raised, failing
raise      |3|60|2| 5| 1 gone, ok             | orders 5, +0.8, orders 3.2                  | primary, healthy
raise      |3|60|2| 4| 1 gone, 1 gone         | orders 4, +0.8, orders 2.2                  | raised, failing
wait       |0|60|2|20| 1 gone, ok             | orders 15, +0.8, orders 13.65               | primary, healthy
wait       |0| 2|2|20| 1 gone, 1 gone, ok     | orders 15, +0.8, orders 13.65, +1.6, 0 15.6 | backlog, failed over
wait       |0|60|2| 2| 1.2 gone               | orders 1.5                                  | raised, failing
backlog-now|0|60|2|60| 1 gone, ok             | orders 45, 0 29.5                           | backlog, failing
backlog-now|0|60|2|60| 60 gone                | orders 45                                   | raised, failing
raise      |1| 0|2|60| 1 gone, 1 gone, ok     | orders 45, +0.8, orders 43.65, 0 28.6       | backlog, failed over
raise      |0| 0|2|20| 1 gone, 1 gone, ok     | orders 15, 0 16, 1 18                       | backlog, failed over
raise      |0| 0|2|60| 1 gone, 1 gone, 1 gone | orders 45, 0 29.5, 1 58                     | raised, failed over
raise      |0| 0|2|60| 1 gone, 59 gone        | orders 45, 0 29.5                           | raised, failed over
raise      |0| 0|2|60| 1 gone, 1 no message   | orders 45, 0 29.5                           | raised, failed over
raise      |0| 0|1|60| 1 gone, ok             | orders 45, 0 59                             | backlog, failed over
"""
"""The attempts of a send, with their seconds and the pauses between them; the error of a last one may be raised."""


@pytest.mark.parametrize("row", SENDS.strip().splitlines()[1:], ids=lambda row: row.replace(" ", ""))
def test_a_send_makes_its_attempts_within_its_time(made: Callable[..., Sender], row: str) -> None:
    on_failure, retries, interval, queues, seconds, ends, tried, outcome = re.split(r" *\| *", row)
    endings = [each.partition(" ") for each in ends.split(", ")]
    sender = made(
        *(OK if each == "ok" else (float(each), ERRORS[name]) for each, _, name in endings),
        on_failure=on_failure,
        retries=int(retries),
        failover_interval=float(interval),
        backlog_queues=int(queues),
    )
    accepted, _, entity = outcome.partition(", ")
    with pytest.raises(type(ERRORS[endings[-1][2]]())) if accepted == "raised" else nullcontext():
        sender.send(seconds=float(seconds))
    assert ", ".join(f"{name} {time:g}".replace("pause ", "+") for name, time in sender.tried) == tried
    assert sender.entity.value == entity
    assert sender.delivered == Delivered(**({} if accepted == "raised" else {accepted: 1}))
    # Messages that are sent again after an attempt without an answer may arrive twice.
    doubts = sender.log.of(SendInDoubt)
    assert [event.reason for event in doubts] == [GONE_TEXT] * (len(endings) - 1)
    assert {event.message_ids for event in doubts} <= {("m",)}
    assert sender.unanswered is (ends != "ok")


@pytest.mark.parametrize("kind", [PairedClient, AsyncPairedClient])
async def test_a_send_over_an_open_link_has_the_same_time_and_counts(kind: Any) -> None:
    attempts = Attempts(OK, OK, (5.0, gone))
    client = kind(a_pair(failover_interval=60, backlog_queues=2), on_failure="backlog-now", retries=0)
    client.now, client.failover_state.timers.on_earlier = (lambda: attempts.now), lambda: None
    sender = client.get_queue_sender("orders")
    sender._connections._make = lambda _side, path: (Link if kind is PairedClient else AsyncLink)(attempts, path)

    async def send() -> None:
        sending = sender.send_messages(a_message("m"))
        await (sending if sending is not None else asyncio.sleep(0))

    for _ in range(5):
        await send()
    _, _, _, (queue, _), _, _ = attempts.tried
    assert attempts.tried == [("orders", 45)] * 3 + [(queue, 27.5)] + [("orders", 45)] * 2
    assert (sender.delivered, client.states()) == (Delivered(primary=4, backlog=1), {"orders": State.HEALTHY})
    closing = client.close()
    await (closing if closing is not None else asyncio.sleep(0))
    assert sorted(attempts.closed) == sorted(attempts.opened)
    with pytest.raises(ValueError, match="closed"):
        await send()


def test_a_send_goes_on_after_an_attempt_of_its_caller(made: Callable[..., Sender]) -> None:
    sender = made(retries=1)
    sender.send("before")
    sender.send("m", since=-5.0, failed=gone())
    assert sender.tried == [("orders", 60), ("pause", 0.8), ("orders", 54.2)]
    assert sender.log.doubtful_ids == {"m"}
    with pytest.raises(NotSent):
        sender.send(since=-60.0)


@pytest.mark.parametrize(("seconds", "warned"), [(0.1, True), (15, True), (15.1, False)])
def test_a_caller_is_warned_of_a_short_timeout(seconds: float, warned: bool) -> None:
    with pytest.warns(ShortTimeout) if warned else nullcontext():
        assert checked_timeout(seconds) == seconds


def test_a_link_that_never_opened_leaves_no_doubt(made: Callable[..., Sender]) -> None:
    sender = made(FAILS, FAILS, failover_interval=0)
    sender.links_open = False
    sender.send()
    assert (sender.delivered.backlog, sender.log.doubtful_ids, sender.unanswered) == (1, set(), False)


def test_few_broken_connections_wait_to_be_closed(made: Callable[..., Sender]) -> None:
    sender = made(*[FAILS] * 9)
    sender.command(EntityEvent.FORCE)
    for _ in range(9):
        with suppress(GONE):
            sender.send()
        assert 0 <= len(sender.tried) - len(sender.closed) <= MAX_BROKEN + 1
    sender.command(EntityEvent.FAILBACK)
    sender.send()
    assert len(sender.closed) == 9
    sender.command(EntityEvent.FORCE)
    for queue in sender.state._queues:
        sender.state.queue_accepted(queue, sender.now)
    for _ in range(2):
        sender.send()
        sender.state.queue_failed(str(sender.backlog_queue), gone(), sender.now)
    assert [name for name, _ in sender.tried[-2:]] == ["0", "1"]
    drive(sender._connections.close())
    assert sorted(sender.closed) == sorted(sender.opened)


@pytest.mark.parametrize("error", [MessageSizeExceededError, TypeError])
def test_a_message_that_is_refused_leaves_its_link_open(made: Callable[..., Sender], error: Any) -> None:
    sender = made(OK, (1.0, error))
    sender.send()
    with pytest.raises(error):
        sender.send()
    assert sender.unanswered is (error is TypeError)
    sender.send()
    assert (sender.opened, sender.closed) == (["orders"], [])


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with closing(Outbox(tmp_path / "outbox.db", a_pair(), max_messages=3)) as opened:
        yield opened


def test_the_outbox_takes_what_neither_side_accepts(made: Callable[..., Sender], outbox: Outbox) -> None:
    sender = made(*[FAILS] * 3, failover_interval=0, outbox=outbox)
    sender.send("m0")
    assert [name for name, _ in sender.tried] == ["orders", "0", "1"]
    assert [event.message_ids for event in sender.log.of(SendInDoubt)] == [("m0",)] * 3
    assert sender.log.of(OutboxBegun) == [OutboxBegun("orders", GONE_TEXT)]
    sender.send("m1")
    outbox.remove("orders", outbox.peek("orders", 2, 10_000))
    # Both queues have failed, and none has answered since.
    sender.send("m2", "m3")
    assert (len(sender.tried), len(outbox), sender.delivered) == (3, 2, Delivered(outbox=4))
    assert sender.log.doubtful_ids == {"m0"}
    sender.state.outbox_remains("orders", disabled(), SendTarget("primary", "orders"), 0)
    with pytest.raises(DISABLED):
        sender.send("m4")
    sender.state.outbox_remains("orders", None, None, 0)
    with pytest.raises(ServiceBusServerBusyError, match="'orders' are still in the outbox") as raised:
        sender.send("m5", "m6")
    assert "is full: it has 2 messages" in raised.value.__notes__[0]
    assert (len(sender.tried), len(outbox)) == (3, 2)


def test_a_sender_with_an_outbox_stays_with_its_backlog_queue(made: Callable[..., Sender], outbox: Outbox) -> None:
    sender = made(FAILS, FAILS, OK, on_failure="backlog-now", outbox=outbox)
    sender.send()
    sender.state.queue_accepted(sender.state._queues[0], sender.now)
    sender.send()
    assert [name for name, _ in sender.tried] == ["orders", "0", "1", "orders"]
    sender.command(EntityEvent.FORCE)
    sender.send()
    assert sender.tried[4:] == [("1", 30)]


def test_a_message_that_cannot_be_sent_is_kept_in_no_outbox(made: Callable[..., Sender], outbox: Outbox) -> None:
    sender = made(FAILS, (0.0, MessageSizeExceededError), failover_interval=0, outbox=outbox)
    with pytest.raises(MessageSizeExceededError):
        sender.send()
    assert (len(outbox), sender.state.queues_out) == (0, set())


@pytest.mark.parametrize("with_outbox", [False, True])
def test_batches_after_a_failed_one_are_not_in_the_backlog(
    made: Callable[..., Sender], outbox: Outbox, with_outbox: bool
) -> None:
    sender = made(OK, FAILS, FAILS, outbox=outbox if with_outbox else None)
    sender.command(EntityEvent.FORCE)
    with nullcontext() if with_outbox else pytest.raises(GONE) as raised:
        sender.send("a", "b", "c", size=100_000)
    assert sender.delivered == Delivered(backlog=2, outbox=with_outbox)
    assert [event.message_ids for event in sender.log.of(SendInDoubt)] == [("c",)] * (1 + with_outbox)
    if raised is not None:
        notes = raised.value.__notes__
        assert "no backlog queue" in notes[0]
        assert notes[1:] == ["2 of the 3 messages, the first ones, are in the backlog."]


def test_scheduled_messages_have_numbers_only_in_the_primary(made: Callable[..., Sender]) -> None:
    sender = made()
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert drive(sender._schedule_messages([a_message("a"), a_message("b")], at, timeout=30)) == [7, 8]
    drive(sender._cancel_scheduled_messages(8, timeout=20))
    sender.command(EntityEvent.FORCE)
    assert [drive(sender._schedule_messages([a_message("c")] * count, at)) for count in (2, 1, 0)] == [
        [-1, -2],
        [-3],
        [],
    ]
    with pytest.raises(UsageError):
        drive(sender._cancel_scheduled_messages([8, -1]))
    drive(sender._cancel_scheduled_messages([]))
    assert sender.tried == [("schedule orders", 30), ("cancel [8]", 20), ("0", 30), ("0", 30)]


def test_a_batch_is_as_large_as_the_entity_permits(made: Callable[..., Sender]) -> None:
    sender = made(OK, OK, OK, FAILS, DENIED)
    sender.link_bytes = 1_000_000

    def largest(*wanted: int) -> int:
        return drive(sender._create_message_batch(*wanted)).max_size_in_bytes

    assert [largest(), largest(1_000_000)] == [1_000_000] * 2
    with pytest.raises(ValueError, match="at most 1000000 bytes"):
        largest(1_000_001)
    assert largest() == SMALLEST_TIER_BYTES
    with pytest.raises(DISABLED):
        largest()
    sender.command(EntityEvent.FORCE)
    assert (largest(), largest(500), len(sender.tried)) == (SMALLEST_TIER_BYTES, 500, 5)


@pytest.mark.parametrize(("limit", "taken"), [(262_144, 262_144), (0, 262_144), (1_000_000, 1_000_000)])
def test_a_message_too_large_for_the_backlog_goes_nowhere(made: Callable[..., Sender], limit: int, taken: int) -> None:
    sender = made()
    sender.link_bytes = limit
    for size in (200_000, 300_000, 900_000, 1_100_000):
        with nullcontext() if size < taken else pytest.raises(MessageSizeExceededError, match=f"accepts {taken}"):
            sender.send(size=size)
    with pytest.raises(MessageSizeExceededError):
        drive(sender._send([a_message("small"), ServiceBusMessage(b"x" * 1_100_000)], 60))
    accepted = [("orders", 60)] * sum(size < taken for size in (300_000, 900_000))
    assert sender.tried == [("orders", 60), ("open 0", None), *accepted]


def test_an_unknown_limit_of_the_backlog_is_asked_for_once_a_minute(made: Callable[..., Sender]) -> None:
    sender = made(FAILS, OK, OK, FAILS)
    for now in (0.0, 59.9, 61.0):
        sender.now = now
        sender.send(size=300_000)
    assert [name for name, _ in sender.tried] == ["open 0", "orders", "orders", "open 0", "orders"]
    assert [(event.entity, event.reason) for event in sender.log.of(SizeUnknown)] == [("orders", GONE_TEXT)] * 2
    assert sender.log.of(SizeUnknown)[0].size_with_aliases > 300_000
