"""A primary that is declared lost: messages go to the secondary's own entities, and nothing to the primary."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
)

from sbpair import PairedClient, sync_async
from sbpair.drill import drill_against
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.errors import PrimaryLost, UsageError
from sbpair.failover import timer_runner
from sbpair.failover.client_syphon import AsyncBackgroundSyphon, BackgroundSyphon
from sbpair.failover.entity_states import EntityEvent, Ping, State
from sbpair.failover.events import OutboxEmptied, SendInDoubt
from sbpair.failover.failover_send import Delivered, SecondaryNumber
from sbpair.failover.outbox import Outbox
from sbpair.model.pair import Identity, Pair, pair_variables
from sbpair.move.events import QueueProgress
from sbpair.replay.run_description import ReplayRequest
from sbpair.spark.write_run import _endpoint
from sbpair.sync_async import drive
from sbpair.syphon.run_request import syphon_request
from tests.failover.test_failover_send import FAILS, OK, End, Link, Sender, gone
from tests.failover.test_states import a_pair
from tests.failover.test_timer_runner import SILENCE, Contacts
from tests.faults.simulation.loop import in_virtual_time
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PRIMARY, SECONDARY, Rig, a_message, ids
from tests.kit.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]
HOUR = timedelta(hours=1)
AT = datetime(2030, 1, 1, tzinfo=UTC)


class LostPrimary:
    """An address whose first connection ends at once. Later ones are held, and never answered."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._held: list[socket.socket] = []
        self._accepted = threading.Condition()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._held)

    def wait_for(self, connections: int) -> None:
        with self._accepted:
            assert self._accepted.wait_for(lambda: self.connections >= connections, PATIENCE_SECONDS)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for each in self._held:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            with self._accepted:
                if not self._held:
                    accepted.close()
                self._held.append(accepted)
                self._accepted.notify_all()


@pytest.fixture
def lost(rig: Rig) -> Iterator[LostPrimary]:
    """Put a lost primary in the place of the pair's."""
    with closing(LostPrimary()) as found:
        rig.pair = replace(rig.pair, primary=replace(rig.pair.primary, host="127.0.0.1", port=found.port))
        yield found


@pytest.fixture
def there(rig: Rig) -> QueueEntity:
    """The secondary's own queue of that name."""
    queue: QueueEntity = rig.do(lambda: rig.running.other.create_queue("orders"))
    return queue


def aliases(message: Any) -> set[str]:
    return {str(name) for name in message.read_application_properties() if str(name).startswith("x-ms-")}


@KINDS
def test_a_client_sends_to_the_secondary_once_the_primary_is_lost(
    rig: Rig, lost: LostPrimary, there: QueueEntity, kind: str
) -> None:
    with rig.sending(kind) as (sender, client, log):
        with pytest.raises(UsageError, match="nothing is held"):
            client.release()
        sender.send_messages(a_message("stranded"), timeout=5)
        lost.wait_for(2)  # a ping
        client.primary_lost()
        sender.send_messages(a_message("m0"))
        sender.send_messages([a_message("m1"), a_message("m2", session_id="s", time_to_live=HOUR)])
        batch: ServiceBusMessageBatch = sender.create_message_batch()
        batch.add_message(a_message("m3"))
        sender.send_messages(batch)
        kept, cancelled = sender.schedule_messages([a_message("m4"), a_message("cancelled")], AT)
        sender.cancel_scheduled_messages(cancelled)
        client.force_failover()
        client.failback("orders")
        client.primary_lost()
        client.get_queue_sender("later")
        assert client.states() == {"orders": State.LOST, "later": State.LOST}
        assert log.path == [State.FAILING, State.FAILED_OVER, State.LOST, State.LOST]
        assert sender.delivered == Delivered(backlog=1, secondary=6)
        with pytest.raises(UsageError, match="was not scheduled in the secondary by this program"):
            sender.cancel_scheduled_messages(int(kept))
        with pytest.raises(PrimaryLost):
            client.syphon(syphon_request(client.pair, once=False))
    assert lost.connections == 2
    arrived = {each.read_properties().message_id: each for each in rig.in_queue(there)}
    assert list(arrived) == ["m0", "m1", "m2", "m3", "m4"]
    assert not any(map(aliases, arrived.values()))
    assert arrived["m2"].read_properties().group_id == "s"
    assert arrived["m2"].read_header().ttl == 3_600_000
    assert arrived["m4"].read_message_annotations().get("x-opt-scheduled-enqueue-time") == AT.timestamp() * 1000
    assert ids(rig.in_backlog()) == ["stranded"]


@KINDS
@pytest.mark.parametrize("when_lost", ["secondary", "hold"])
def test_a_declared_loss_is_that_of_every_client(
    rig: Rig, lost: LostPrimary, there: QueueEntity, kind: str, when_lost: Any
) -> None:
    rig.pair = replace(rig.pair, lost="primary", when_lost=when_lost)
    held = ["held"] if when_lost == "hold" else []
    with rig.client(kind) as (client, log):
        orders, news = client.get_queue_sender("orders"), client.get_topic_sender("news")
        orders.send_messages(a_message("held"))
        assert ids(rig.in_backlog()) == held
        client.release("ORDERS")
        orders.send_messages(a_message("direct"))
        assert client.states()["news"] is (State.HELD if held else State.LOST)
        client.release()
        client.get_queue_sender("later")
        assert set(client.states().values()) == {State.LOST}
        rig.do(lambda: rig.running.other.create_topic("news"))
        news.send_messages(a_message("n"))
        assert news.delivered == Delivered(secondary=1)
        assert log.path[:2] == [State.HELD if held else State.LOST] * 2
    assert ids(rig.in_queue(there)) == ["direct"] if held else ["held", "direct"]
    assert {each.read_application_properties().get("x-ms-path") for each in rig.in_backlog()} == {"orders"} & {
        "orders" for _ in held
    }
    assert lost.connections == 0


@KINDS
@pytest.mark.parametrize("when_lost", ["secondary", "hold"])
def test_an_outbox_is_delivered_to_the_secondary(
    rig: Rig, there: QueueEntity, tmp_path: Path, kind: str, when_lost: Any
) -> None:
    path = tmp_path / "outbox.db"
    with (
        rig.sending(kind, outbox=path, when_lost=when_lost) as (sender, client, log),
        rig.broken("namespace_down", PRIMARY),
    ):
        with rig.broken("namespace_down", SECONDARY):
            sender.send_messages([a_message("m0"), a_message("m1", session_id="s", time_to_live=HOUR)], timeout=8)
            sender.schedule_messages(a_message("m2"), AT, timeout=8)
            client.primary_lost()
            sender.send_messages(a_message("m3"), timeout=8)
        log.wait_for(lambda event: isinstance(event, OutboxEmptied))
        assert sender.delivered == Delivered(outbox=4)
    if when_lost == "hold":
        assert ids(rig.in_backlog()) == ["m0", "m1", "m2", "m3"]
        return
    arrived = {each.read_properties().message_id: each for each in rig.in_queue(there)}
    assert list(arrived) == ["m0", "m1", "m2", "m3"]
    assert not any(map(aliases, arrived.values()))
    assert arrived["m1"].read_properties().group_id == "s"
    assert 3_500_000 < arrived["m1"].read_header().ttl <= 3_600_000
    assert arrived["m2"].read_message_annotations().get("x-opt-scheduled-enqueue-time") == AT.timestamp() * 1000


@KINDS
def test_the_syphon_of_a_client_ends_with_the_primary(rig: Rig, kind: str) -> None:
    with rig.client(kind) as (client, _log):
        if kind == "sync":
            syphon: BackgroundSyphon = client.syphon()
            client.primary_lost()
            syphon._thread.join(PATIENCE_SECONDS)
        else:

            async def end() -> AsyncBackgroundSyphon:
                found: AsyncBackgroundSyphon = client._wrapped.syphon()
                client._wrapped.primary_lost()
                await asyncio.wait((found._task,), timeout=PATIENCE_SECONDS)
                return found

            syphon = client._run(end())
        assert not syphon.running


@KINDS
def test_the_syphon_of_a_client_delivers_to_the_secondary_after_a_loss(
    rig: Rig, lost: LostPrimary, there: QueueEntity, kind: str
) -> None:
    with rig.sending(kind) as (sender, client, _log):
        sender.send_messages(a_message("stranded"), timeout=5)
        lost.wait_for(2)
        client.primary_lost()
        gone = threading.Event()

        def note(event: Any) -> None:
            if isinstance(event, QueueProgress) and event.sent:
                gone.set()

        if kind == "sync":
            client.syphon(on_event=note)
        else:

            async def begin() -> None:
                client._wrapped.syphon(on_event=note)

            client._run(begin())
        assert gone.wait(PATIENCE_SECONDS)
    [arrived] = rig.in_queue(there)
    assert (arrived.read_properties().message_id, aliases(arrived)) == ("stranded", set())
    assert lost.connections == 2


@in_virtual_time
async def test_pings_in_progress_end_and_no_other_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    contacts = Contacts(monkeypatch, SILENCE)
    for entity in ("orders", "news"):
        contacts.state.primary_failed(entity, TimeoutError(), 0.0)
    await contacts.until(70)
    contacts.state.command(EntityEvent.LOST, None, 70.0)
    contacts.runner.wake()
    await contacts.until(71)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("Ping")]
    assert contacts.state.next_due() is None
    await contacts.until(400)
    assert sorted(contacts.made) == [("news", 60), ("orders", 60)]
    await contacts.end()


@in_virtual_time
async def test_a_ping_that_ends_before_it_starts_leaves_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_runner, "MAX_CONCURRENT_TASKS", 1)
    contacts = Contacts(monkeypatch)
    pop_due = contacts.state.pop_due

    def lost_meanwhile(now: float) -> Any:
        task = pop_due(now)
        if isinstance(task, Ping):
            contacts.state.command(EntityEvent.LOST, None, now)
            contacts.loop.call_soon(contacts.runner.wake)
        return task

    monkeypatch.setattr(contacts.state, "pop_due", lost_meanwhile)
    contacts.state.primary_failed("orders", TimeoutError(), 0.0)
    await contacts.until(70)
    contacts.state.outbox_stored("news", None, 70.0)
    await contacts.until(80)
    assert contacts.made == [("outbox of news", 70)]
    await contacts.end()


class SidedSender(Sender):
    """A sender whose attempts name the side, but for backlog queues."""

    def _sdk_sender(self, side: str, path: str) -> Link:
        return Link(self, path if side == "backlog" else f"{side} {path}")

    def loses(self, event: EntityEvent = EntityEvent.LOST, error: Any = gone) -> Callable[[], Exception]:
        """Return an end of an attempt: an error, while the primary is declared lost."""

        def end() -> Exception:
            self.command(event)
            raised: Exception = error()
            return raised

        return end


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SidedSender]:
    def make(*ends: End, **options: Any) -> SidedSender:
        sender = SidedSender(*ends, **options)
        monkeypatch.setattr(sync_async, "sleep", sender.pause)
        return sender

    return make


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with closing(Outbox(tmp_path / "outbox.db", a_pair())) as opened:
        yield opened


@pytest.mark.parametrize("error", [gone, MessagingEntityDisabledError])
@pytest.mark.parametrize(
    ("event", "then"), [(EntityEvent.LOST, ("secondary orders", 59)), (EntityEvent.HOLD, ("0", 59 / 2))]
)
def test_a_send_in_progress_goes_on_elsewhere(
    made: Callable[..., SidedSender], event: EntityEvent, then: Any, error: Any
) -> None:
    sender = made(retries=3)
    sender.ends = [(1.0, sender.loses(event, error)), OK]
    sender.send()
    assert sender.tried == [("primary orders", 60), ("pause", 0), then]
    assert [each.message_ids for each in sender.log.of(SendInDoubt)] == [("m",)]


def test_a_send_that_waits_goes_on_to_the_secondary(
    monkeypatch: pytest.MonkeyPatch, made: Callable[..., SidedSender]
) -> None:
    sender = made(FAILS, OK, on_failure="wait")
    pause = sender.pause

    def declare(seconds: float) -> None:
        sender.command(EntityEvent.LOST)
        pause(seconds)

    monkeypatch.setattr(sync_async, "sleep", declare)
    sender.send()
    assert [name for name, _ in sender.tried] == ["primary orders", "pause", "secondary orders"]


@pytest.mark.parametrize("on_failure", ["raise", "backlog-now"])
def test_the_secondary_is_tried_again_and_never_by_its_backlog(
    made: Callable[..., SidedSender], on_failure: Any
) -> None:
    sender = made(FAILS, FAILS, on_failure=on_failure, retries=1, failover_interval=0)
    sender.command(EntityEvent.LOST)
    with pytest.raises(OperationTimeoutError) as raised:
        sender.send()
    assert "The primary is declared lost" in raised.value.__notes__[0]
    assert [name for name, _ in sender.tried] == ["secondary orders", "pause", "secondary orders"]
    assert (sender.entity, sender.delivered) == (State.LOST, Delivered())


def test_the_outbox_takes_what_the_secondary_does_not(made: Callable[..., SidedSender], outbox: Outbox) -> None:
    sender = made((0.0, MessageSizeExceededError), (1.0, MessagingEntityDisabledError), FAILS, outbox=outbox)
    sender.command(EntityEvent.LOST)
    for error in (MessageSizeExceededError, MessagingEntityDisabledError):
        with pytest.raises(error):
            sender.send()
    sender.send("a", "b")
    assert (len(outbox), sender.delivered, sender.log.doubtful_ids) == (2, Delivered(outbox=2), {"a", "b"})
    sender.send("behind")
    assert (len(outbox), len(sender.tried)) == (3, 3)


def test_only_the_limits_of_the_secondary_apply(made: Callable[..., SidedSender]) -> None:
    sender = made()
    sender.link_bytes = 1_000_000
    sender.command(EntityEvent.LOST)
    assert drive(sender._create_message_batch()).max_size_in_bytes == 1_000_000
    drive(sender._send(ServiceBusMessage(b"x" * 1_100_000), 60))
    assert [name for name, _ in sender.tried] == ["open secondary orders", "secondary orders"]


def test_a_number_of_one_side_cancels_nothing_of_the_other(made: Callable[..., SidedSender]) -> None:
    sender = made()
    (before,) = drive(sender._schedule_messages(a_message("a"), AT))
    with pytest.raises(UsageError, match="not declared lost"):
        drive(sender._cancel_scheduled_messages(SecondaryNumber(before)))
    sender.command(EntityEvent.LOST)
    (after,) = drive(sender._schedule_messages(a_message("b"), AT))
    assert before == after
    for wrong in (before, [after, before], -1):
        with pytest.raises(UsageError):
            drive(sender._cancel_scheduled_messages(wrong))
    drive(sender._cancel_scheduled_messages(after))
    assert [name for name, _ in sender.tried] == [
        "schedule primary orders",
        "schedule secondary orders",
        f"cancel {[after]}",
    ]


@pytest.mark.parametrize(
    "send",
    [
        lambda pair: syphon_request(pair, once=True),
        lambda pair: ReplayRequest(pair, "/archive", Path("state"), master="local[1]", tasks=1).check(),
        lambda pair: asyncio.run(drill_against(pair, "tag")),
    ],
    ids=["syphon", "replay", "drill"],
)
def test_nothing_is_sent_to_a_lost_primary(send: Callable[[Pair], object]) -> None:
    with pytest.raises(PrimaryLost, match="the primary contoso is declared lost") as raised:
        send(a_pair(lost="primary"))
    assert raised.value.exit_code == 4


def test_a_replay_to_the_secondary_needs_no_primary() -> None:
    pair = a_pair(lost="primary")
    pair = replace(pair, secondary=replace(pair.secondary, credential=Identity()))
    request = ReplayRequest(pair, "/archive", Path("state"), master="local[1]", tasks=1, to=pair.secondary)
    request.check()
    assert request.destination == pair.secondary


def test_spark_sends_nothing_to_a_lost_primary() -> None:
    environ = {f"SBPAIR_{side}_NAMESPACE": side for side in ("PRIMARY", "SECONDARY")}
    assert _endpoint({}, environ).name == "primary"
    environ["SBPAIR_LOST"] = "primary"
    with pytest.raises(PrimaryLost):
        _endpoint({}, environ)
    assert _endpoint({"side": "secondary"}, environ).name == "secondary"


def test_a_declaration_is_checked() -> None:
    pair = a_pair(lost="primary")
    assert syphon_request(pair, once=True, preview=True).ends == pair.ends
    assert pair_variables(pair)[0]["SBPAIR_LOST"] == "primary"
    syphon_request(a_pair(), once=True)
    for wrong in ({"lost": "secondary"}, {"when_lost": ""}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            a_pair(**wrong)
    with pytest.raises(UsageError, match="when_lost"):
        PairedClient(a_pair(), when_lost="later")  # type: ignore[arg-type]
