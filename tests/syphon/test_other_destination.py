"""A syphon to another namespace than the primary, and under new names: what arrives there, and what is refused."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.errors import LeaseHeld, SbpairError, UsageError
from sbpair.model.pair import Endpoint
from sbpair.move import events
from sbpair.move.message.renames import read_renames
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import message_key, messages_accepted_twice
from sbpair.syphon.preview import make_forecast
from sbpair.syphon.run_request import RampPlan, syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from sbpair.testing import Emulator
from sbpair.timespan import TICKS_PER_SECOND
from tests.kit.moves import ids, run_syphon, stored
from tests.kit.moves import peeked as held_in
from tests.kit.pairs import UNDER_CONTOSO, endpoint_on
from tests.syphon.test_syphon_lease import LEASES, sessions
from tests.syphon.worlds import HASTY, World, names


class LostWorld(World):
    """The address of the primary counts connections, and refuses to serve them."""

    connections = 0

    def to(self, name: str) -> Endpoint:
        return endpoint_on(self.emulator, name)

    def lose_primary(self, port: int) -> None:
        self.pair = replace(self.pair, primary=replace(self.pair.primary, host="127.0.0.1", port=port))


@asynccontextmanager
async def lost_world(queues: int = 1) -> AsyncIterator[LostWorld]:
    async with Emulator([("contoso", 0), ("contoso-dr", 0), ("fabrikam", 0)]) as emulator:
        made = LostWorld(emulator, queues)
        for index in range(queues):
            made.backlog(index)

        def count(_reader: Any, writer: asyncio.StreamWriter) -> None:
            made.connections += 1
            writer.transport.abort()

        async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
            made.lose_primary(server.sockets[0].getsockname()[1])
            yield made
            assert made.connections == 0


def strand(w: LostWorld, due_ms: int) -> None:
    w.strand(0, 1, ttl_ticks=90 * TICKS_PER_SECOND)
    w.strand(2, index=1, scheduled_at=due_ms)
    w.strand(3, 4, to="By-Session", session_id="s")
    w.strand(5, to="nowhere")


def prepare(namespace: Any) -> tuple[QueueEntity, QueueEntity]:
    return namespace.create_queue("orders"), namespace.create_queue(
        "by-session", QueueDescription(requires_session=True)
    )


def in_order(queue: QueueEntity) -> list[tuple[Sections, int | None]]:
    found = [(each.sections, each.scheduled_at_ms) for each in held_in(queue)]
    return sorted(found, key=lambda each: each[0].properties)


# What arrives


@pytest.mark.parametrize("name", ["contoso-dr", "fabrikam"])
async def test_a_backlog_arrives_elsewhere_as_it_would_have_in_the_primary(name: str) -> None:
    async with lost_world(2) as w:
        would, does = prepare(w.primary), prepare(w.emulator.namespaces[name])
        due_ms = w.emulator.clock.now_ms() + 3_600_000
        strand(w, due_ms)
        await run_syphon(replace(w.pair, primary=w.to("contoso")), once=True, timings=HASTY)
        strand(w, due_ms)
        forecast = await make_forecast(syphon_request(w.pair, once=True, to=w.to(name)))
        assert sorted((flow.destination, flow.messages) for flow in forecast.flows) == [
            *(("By-Session", 2), ("nowhere", 1), ("orders", 1), ("orders", 2)),
        ]
        result = await w.run(to=w.to(name))
        assert (result.receipt.sent, result.receipt.dead_lettered, result.to) == (5, 1, name)
        for text in (result.receipt.dead_letters[0].reason, forecast.dead_letters[0].description):
            assert f"'nowhere' does not exist in the {name} namespace" in text
        for wanted, found in zip(would, does, strict=True):
            assert in_order(found) == in_order(wanted)
        assert len(stored(does[0])) == 3


async def test_names_that_changed_are_used_for_all_that_a_run_does() -> None:
    async with lost_world(2) as w:
        there = w.emulator.namespaces["contoso-dr"]
        merged, topic = there.create_queue("orders"), there.create_topic("events")
        subscribed = topic.create_subscription("all", SubscriptionDescription())
        renames = read_renames(["Orders-V1=orders-v2", "orders-v2=orders", "news=events", "unused=orders"])
        w.strand(0, 2, to="orders-v1")
        w.strand(1, to="ORDERS")
        w.strand(3, to="news", index=1)
        request = syphon_request(w.pair, once=True, to=w.to("contoso-dr"), renames=renames, timings=HASTY)
        forecast = await make_forecast(request)
        assert {(flow.destination or "").lower(): flow.messages for flow in forecast.flows} == {
            "orders": 3,
            "events": 1,
        }
        assert forecast.exit_code == 0
        result = await w.run(to=w.to("contoso-dr"), renames=renames)
        assert ids(merged) == names(0, 2, 1)
        assert ids(subscribed) == names(3)
        assert {name.lower(): number for name, number in result.receipt.destinations.items()} == {
            "orders": 3,
            "events": 1,
        }
        assert renames.unused() == ["unused=orders"]


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["a=b", "b=a"], "goes round in a circle: a -> b -> a"),
        (["a=A"], "goes round in a circle: a -> a"),
        (["a=b", "A=c"], "two new names"),
        (["a=contoso/x-servicebus-transfer/0"], "is a backlog queue"),
        (["a="], "expected OLD=NEW"),
        (["=b"], "expected OLD=NEW"),
        (["a=b c"], "--map a=b c"),
        (["nowhere.txt"], "nowhere.txt cannot be read"),
    ],
)
def test_a_map_that_leads_nowhere_is_refused(pairs: list[str], says: str) -> None:
    with pytest.raises(SbpairError) as refused:
        read_renames(pairs)
    assert says in refused.value.message
    assert refused.value.exit_code == 2
    assert refused.value.hint


def test_a_map_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text("# renamed in March\n/billing/invoices = invoices # merged\n\norders=sales\n")
    renames = read_renames([str(file), "sales=sales-v2"])
    assert [renames(path) for path in ("Billing/Invoices", "orders", "other")] == ["invoices", "sales-v2", "other"]
    file.write_text("orders\n\na b=c\n")
    with pytest.raises(UsageError, match=r"map.txt:1: expected OLD=NEW") as refused:
        read_renames([str(file)])
    assert [each.message.partition("'")[0] for each in refused.value.others] == [f"{file}:3: "]


async def test_a_ramp_and_a_watch_go_elsewhere_too() -> None:
    async with lost_world() as w:
        there = w.secondary.create_queue("orders")
        w.strand(0, 1, 2)
        timings = replace(HASTY, long_poll_seconds=0.1)
        terms = {"to": w.to("contoso-dr"), "timings": timings, "ramp": RampPlan((1, 2), observe_seconds=0.01)}
        async with w.watching(**terms):
            await w.told_of(events.QueueProgress, lambda event: event.sent == 3)
        assert ids(there) == names(0, 1, 2)
        assert [each.total for each in w.of(events.RampProgress)][-1] == 2


# What would come back


async def test_what_would_come_back_to_the_backlog_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    async with lost_world() as w:
        there, back = w.secondary, f"{UNDER_CONTOSO}0"
        there.create_queue("orders")
        there.create_queue("loop", QueueDescription(forward_to="second"))
        there.create_queue("second", QueueDescription(forward_to=back))
        topic = there.create_topic("events")
        subscribed = topic.create_subscription("all", SubscriptionDescription())
        topic.create_subscription("back", SubscriptionDescription(forward_to=back))
        w.strand(0, 1)
        w.strand(2, to="loop")
        w.strand(3, to=back)
        forecast = await make_forecast(syphon_request(w.pair, once=True, to=w.to("contoso-dr")))
        assert f"messages for loop would come back to the backlog: loop -> second -> {back}" in forecast.notes
        result = await w.run(to=w.to("contoso-dr"))
        assert (result.exit_code, result.receipt.sent) == (3, 2)
        assert sorted(ids(w.backlog())) == names(2, 3)
        reasons = {each.destination: each.reason for each in result.receipt.backing_off}
        assert f"come back to the backlog: loop -> second -> {back}" in reasons["loop"]
        assert f"come back to the backlog: {back}" in reasons[back]
        w.backlog().messages.delete(9, w.emulator.clock.now_ms() + 1, None)
        w.strand(4, to="events")
        with caplog.at_level(logging.WARNING):
            assert (await w.run(to=w.to("contoso-dr"))).receipt.sent == 1
        assert ids(subscribed) == names(4)
        assert f"come back to the backlog: events -> events/subscriptions/back -> {back}" in caplog.text


# Acceptances and leases


async def test_what_the_primary_had_accepted_is_sent_again_and_named(tmp_path: Path) -> None:
    async with lost_world() as w:
        there = w.secondary.create_queue("orders")
        w.strand(0, 1, 2)
        here = replace(w.pair, primary=w.to("contoso"))
        with RunStore(syphon_request(here, once=True, lease=False), tmp_path, LiveRun()) as first:
            facts = [
                (w.backlog().path, each.sequence_number, each.enqueued_at_ms, f"m{n}")
                for n, each in enumerate(held_in(w.backlog()))
            ]
            accepted, doubtful = first.journal.note_sending(
                [[message_key("contoso-dr", facts[0])], [message_key("contoso-dr", facts[1])]], "orders"
            )
            first.journal.note_accepted([accepted])
            first.journal.note_in_doubt(doubtful)
        result = await w.run(to=w.to("contoso-dr"), state=tmp_path)
        assert (ids(there), result.receipt.sent, result.receipt.already_sent) == (names(0, 1, 2), 3, 0)
        named = {each.message_id: each.reason for each in result.receipt.doubtful}
        assert named == {
            "m0": f"also accepted by contoso, to which run {first.run} sent it",
            "m1": f"run {first.run} ended before they were confirmed",
        }
        with RunDatabase(tmp_path, w.pair.ends) as state:
            assert [each.message_id for each in messages_accepted_twice(state)] == ["m0"]


@pytest.mark.parametrize("lease", ["this machine", LEASES])
@pytest.mark.parametrize("first_to", ["contoso-dr", None])
async def test_runs_to_different_namespaces_refuse_each_other(lease: str, first_to: str | None, tmp_path: Path) -> None:
    async with lost_world() as w:
        sessions(w)
        w.secondary.create_queue("orders")
        real = replace(w.pair, primary=w.to("contoso"))
        terms = [{}, {"lease_queue": LEASES, "lease": False}][lease == LEASES]
        ways = [{"to": w.to("contoso-dr")}, {}] if first_to else [{}, {"to": w.to("contoso-dr")}]
        stop, opened = asyncio.Event(), asyncio.Event()
        watching = asyncio.create_task(
            run_syphon(
                real,
                once=False,
                stop=stop,
                timings=HASTY,
                on_event=lambda event: opened.set() if isinstance(event, events.QueueOpened) else None,
                state=tmp_path / "a",
                **ways[0],
                **terms,
            )
        )
        await opened.wait()
        with pytest.raises(LeaseHeld):
            await run_syphon(real, once=True, timings=HASTY, state=tmp_path / "b", **ways[1], **terms)
        stop.set()
        await watching
