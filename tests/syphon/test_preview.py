"""`--dry-run` against the emulator: it says what a run then does, and leaves no trace."""

import functools
from dataclasses import replace
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.types import Int, Long
from sbpair.amqp_client.client import AmqpClient
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.azure.destinations import DestinationEntity
from sbpair.backlog import queue_path
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.move.filter import MessageFilter
from sbpair.move.message.route import TimeToLive
from sbpair.move.peek import destination_lookup
from sbpair.move.peek.peeker import Peeked
from sbpair.rules.filters import SqlRuleFilter
from sbpair.syphon import preview
from sbpair.syphon.forecast import Forecast, total
from sbpair.syphon.run_limits import EffectiveLimits, EndTiers
from sbpair.syphon.run_request import syphon_request
from tests.kit.moves import peeked, run_syphon
from tests.syphon import worlds
from tests.syphon.worlds import with_property

SECOND_TICKS = 10_000_000
HOUR, QUARTER = 3_600_000, 900_000


class World(worlds.World):
    """A pair whose previews take no time; what a preview tells meanwhile is kept."""

    clock = slept = 0.0

    async def sleep(self, seconds: float) -> None:
        """Time passes at once, here and at the emulator."""
        self.clock += seconds
        self.slept += seconds
        if seconds:
            self.emulator.advance(int(seconds * 1000) + 1)

    async def look(self, **options: Any) -> Forecast:
        before = self.traces()
        made = await preview.make_forecast(
            syphon_request(self.pair, once=True, **{"credits": None, **options}),
            on_event=self.told.append,
            now=lambda: self.emulator.clock.now_ms() / 1000,
            clock=lambda: self.clock,
            sleep=self.sleep,
        )
        assert self.traces() == before
        whole = total(made.flows)
        assert whole.messages == sum(whole.outcomes.values())
        return made

    def traces(self) -> list[Any]:
        """All that a look could have changed."""
        found: list[Any] = []
        for queue in (*self.primary.queues(), *self.secondary.queues()):
            found.append((queue.path, queue.counts(), queue.messages.locked_count, queue.messages.has_consumers))
            found += [
                (each.sequence_number, each.delivery_count, each.state, each.lock_token, each.sections.join())
                for each in (*peeked(queue), *peeked(queue, dead=True))
            ]
        return found


world = functools.partial(worlds.world, kind=World)


# What it says


async def test_it_says_what_a_run_then_does() -> None:
    async with world(3, "orders", "billing/invoices") as w:
        w.primary.create_queue("sessions", QueueDescription(requires_session=True))
        w.primary.create_topic("events")
        w.primary.create_queue("small", QueueDescription(max_message_size_in_kilobytes=256))
        for index in range(3):
            w.strand(*range(30), index=index)
            w.strand(30, 31, to="Billing/Invoices", index=index)
            w.strand(32, to="nowhere", index=index)
            w.strand(33, to="no such/name!", index=index)
            w.strand(34, to="sessions", index=index)
            w.strand(35, to="sessions", session_id="s", index=index)
            w.strand(36, to="events", index=index)
            w.strand(37, sections={"application_properties": b""}, index=index)
            w.strand(38, sections=with_property("x-ms-timetolive", Long(1)), index=index)
            w.strand(39, sections=with_property("x-ms-sessionid", Int(1)), index=index)
            w.strand(40, scheduled_at=w.emulator.clock.now_ms() + HOUR, index=index)
            w.strand(41, ttl_ticks=600 * SECOND_TICKS, index=index)
        said = await w.look()
        done = (await run_syphon(w.pair, once=True, max_discard=None)).receipt
        whole = total(said.flows)
        assert (whole.messages, whole.outcomes["sent"]) == (done.received, done.sent)
        assert done.discarded == {"events": whole.discarded} == {"events": 3}
        assert whole.outcomes["dead_lettered"] == done.dead_lettered == 3 * 6
        assert whole.scheduled_in_future == 3
        by_destination = {
            name: sum(flow.outcomes["sent"] for flow in said.flows if (flow.destination or "").lower() == name.lower())
            for name in done.destinations
        }
        assert by_destination == done.destinations
        for queue, counts in done.queues.items():
            here = total(flow for flow in said.flows if flow.queue == queue)
            assert (here.messages, here.outcomes["sent"]) == (counts["received"], counts["sent"])
        assert {(each.reason, each.messages) for each in said.dead_letters} >= {
            ("DestinationNotFound", 3),
            ("RefusedByPrimary", 3),
            ("InvalidBacklogMessage", 3),
        }
        assert said.exit_code == 3
        assert (await w.look()).flows == ()


@pytest.mark.parametrize(
    ("options", "dead", "held"),
    [({}, 20, 10), ({"max_missing": 3}, 3, 27), ({"max_missing": 0}, 0, 30), ({"allow_missing": True}, 30, 0)],
)
async def test_messages_for_a_missing_destination_stay_as_in_a_run(
    options: dict[str, Any], dead: int, held: int
) -> None:
    async with world() as w:
        for number in range(30):
            w.strand(number, to=("Nowhere", "nowhere")[number % 2], index=number % 2)
        w.strand(30)
        said = await w.look(**options)
        done = await run_syphon(w.pair, once=True, **options)
        whole = total(said.flows)
        assert (whole.outcomes["dead_lettered"], whole.outcomes["released"]) == (dead, held)
        assert (done.receipt.dead_lettered, done.receipt.released, done.receipt.sent) == (dead, held, 1)
        assert [(each.dead_lettered, each.held) for each in (*said.missing, *done.missing_destinations)] == [
            (dead, held)
        ] * 2
        assert said.exit_code == 3
        assert sum(each.messages for each in said.dead_letters) == dead


async def test_a_message_too_large_without_its_aliases_is_a_dead_letter() -> None:
    async with world() as w:
        limit = w.primary.queue("orders").max_message_bytes
        larger = replace(w.backlog().description, max_message_size_in_kilobytes=2 * limit // 1024)
        w.backlog().update(larger)  # as that of a larger tier
        w.strand(1, size=limit - 60)  # fits, though not with its aliases
        w.strand(2, size=limit)
        said = await w.look()
        (doomed,) = said.dead_letters
        assert (doomed.reason, [each.message_id for each in doomed.examples]) == ("RefusedByPrimary", ["m2"])
        assert f"larger than the {limit} bytes" in doomed.description
        done = (await run_syphon(w.pair, once=True)).receipt
        assert (done.sent, done.dead_lettered) == (1, 1)


async def test_deferred_and_scheduled_messages_stay_and_are_told_apart() -> None:
    async with world() as w:
        w.strand(1, 2, 3)
        (locked, deferred) = w.backlog().messages.receive(2)
        w.backlog().messages.defer(deferred.lock_token)
        w.schedule(4, in_ms=HOUR)
        assert locked.lock_token
        said = await w.look()
        assert dict(total(said.flows).outcomes) == {"sent": 2, "deferred": 1, "scheduled": 1}
        some = await preview.make_forecast(
            syphon_request(w.pair, once=True, where=MessageFilter("sys.MessageId IN ('m3', 'm4')"))
        )
        assert dict(total(some.flows).outcomes) == {"sent": 1, "skipped": 1, "deferred": 1, "scheduled": 1}


async def test_a_scheduled_message_that_has_become_due_is_sent() -> None:
    async with world() as w:
        w.schedule(1, in_ms=QUARTER)
        assert dict(total((await w.look()).flows).outcomes) == {"scheduled": 1}
        w.emulator.advance(QUARTER)
        assert dict(total((await w.look()).flows).outcomes) == {"sent": 1}


async def test_ages_and_what_is_past_its_time() -> None:
    async with world() as w:
        start = w.emulator.clock.now_ms()
        w.strand(1, ttl_ticks=600 * SECOND_TICKS)
        w.emulator.advance(QUARTER)
        w.strand(2, ttl_ticks=600 * SECOND_TICKS)
        w.strand(3)
        w.emulator.advance(1_000)
        said = await w.look()
        (flow,) = said.flows
        assert start <= flow.oldest_ms <= start + 1_000
        assert start + QUARTER <= flow.newest_ms <= start + QUARTER + 1_000
        assert (flow.overdue, flow.outcomes["sent"], said.exit_code) == (1, 3, 0)
        said = await w.look(ttl=TimeToLive.REMAINING)
        (doomed,) = said.dead_letters
        assert (doomed.reason, doomed.examples[0].message_id) == ("TTLExpiredException", "m1")
        assert (total(said.flows).outcomes, said.exit_code) == ({"sent": 2, "expired": 1}, 3)


async def test_time_and_cost_by_tier_and_filters() -> None:
    async with world() as w:
        topic = w.primary.create_topic("events")
        topic.create_subscription("all")
        topic.create_subscription("some").add_rule(SubscriptionRule("large", SqlRuleFilter("size > 5")))
        w.strand(*range(10), to="events")
        w.strand(*range(10, 20))
        said = await w.look()
        assert said.entities["events"] == DestinationEntity(
            "events", is_topic=True, filters=3, message_bytes=256 * 1024, detects_duplicates=False
        )
        assert said.limits == EffectiveLimits(None, 500, 500)
        assert said.seconds == (10 * 4 + 10) / 500
        assert said.tiers == EndTiers("Standard", "Standard")
        assert said.estimate.operations.by_sbpair == 20 * 3 + 2
        assert said.estimate.dated
        said = await w.look(rate=0.5, credits=100.0)
        assert (said.limits, said.seconds) == (EffectiveLimits(0.5, 100, 100), 40.0)


async def test_premium_has_no_limit_by_itself() -> None:
    async with world(tier="premium") as w:
        w.strand(1)
        said = await w.look()
        assert (said.limits, said.seconds, said.tiers) == (EffectiveLimits(), None, EndTiers("Premium", "Premium"))
        assert said.estimate.by_sbpair.maximum == 0


# Large backlogs, and many


async def test_every_page_of_every_queue_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "QUEUES_AT_ONCE", 2)
    async with world(5) as w:
        for index in range(5):
            w.strand(*range(601 + index), index=index)
        said = await w.look()
        assert [flow.messages for flow in said.flows] == [601, 602, 603, 604, 605]
        looked = [event.messages for event in w.told if isinstance(event, Peeked) and event.queue.endswith("/0")]
        assert looked == [250, 500, 601]


async def test_a_page_may_hold_fewer_than_were_asked_for() -> None:
    async with world() as w:
        w.strand(*range(30), size=200_000)
        assert total((await w.look()).flows).messages == 30
        assert len([event for event in w.told if isinstance(event, Peeked)]) > 3


async def test_all_partitions_of_a_partitioned_queue_are_looked_at() -> None:
    async with world(0) as w:
        w.backlog(enable_partitioning=True)
        w.strand(*range(400))
        assert len({message[0] >> 48 for message in w.traces()[2:]}) > 1
        assert total((await w.look()).flows).messages == 400


async def test_destinations_beyond_the_most_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination_lookup, "MAX_DESTINATIONS", 3)
    async with world(1, *(f"d{number}" for number in range(3))) as w:
        for number in range(10):
            w.strand(number, to=f"d{number}")
        said = await w.look()
        assert [(flow.destination, flow.messages) for flow in said.flows] == [("*", 7), ("d0", 1), ("d1", 1), ("d2", 1)]
        assert (total(said.flows).outcomes, set(said.entities)) == ({"sent": 10}, {"d0", "d1", "d2"})


async def test_unreadable_messages_are_dead_letters_and_may_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    peek = AmqpClient.peek

    async def with_damage(client: AmqpClient, queue: str, start: int, count: int, *, bodies: bool) -> list[bytes]:
        return [*await peek(client, queue, start, count, bodies=bodies), b"\x00nonsense"]

    async with world() as w:
        w.strand(1, 2)
        w.strand(3, index=1)
        with monkeypatch.context() as patch:
            patch.setattr(AmqpClient, "peek", with_damage)
            said = await w.look()
        queue = queue_path("contoso", 0)
        flows = [(flow.queue, flow.destination, flow.messages) for flow in said.flows if flow.queue == queue]
        assert flows == [(queue, None, 2), (queue, "orders", 2)]
        assert [flow.bytes for flow in said.flows if flow.destination is None] == [2 * len(b"\0nonsense")] * 2
        assert {each.reason for each in said.dead_letters} == {"InvalidBacklogMessage"}
        assert any(note.startswith(f"{queue}: ") and "unreadable" in note for note in said.notes)
        assert not (await w.look()).notes


# Who may what


async def test_without_manage_on_the_primary_a_link_tells_what_is_there() -> None:
    async with world(1, "orders", "large", "away") as w:
        w.may_only("primary", AccessRight.SEND)
        w.emulator.faults.entity_down("contoso", "away")
        w.strand(*range(300))
        w.strand(300, to="nowhere")
        w.strand(301, to="ORDERS")
        w.strand(302, to="large", size=255_900)
        w.strand(303, to="away")
        said = await w.look()
        (doomed,) = said.dead_letters
        assert (doomed.reason, doomed.messages) == ("DestinationNotFound", 1)
        assert said.entities["orders"] == DestinationEntity("orders", None, filters=None, message_bytes=256 * 1024)
        assert said.entities["away"] == DestinationEntity("away", None, filters=None)
        # A filter is assumed, and Standard, where nobody may ask.
        assert said.seconds == 303 * 2 / 500
        assert said.tiers == EndTiers("Standard", None)
        assert any("the tier of contoso is not known" in note for note in said.notes)
        assert w.primary.queue("orders").counts().total == 0


async def test_without_a_claim_on_the_primary_a_note_replaces_the_check() -> None:
    async with world() as w:
        w.may_only("primary", AccessRight.LISTEN)
        w.strand(1, 2)
        w.strand(3, to="nowhere")
        said = await w.look()
        assert (total(said.flows).outcomes, said.exit_code) == ({"sent": 2, "dead_lettered": 1}, 3)
        assert len([note for note in said.notes if note.startswith("destinations were not checked: ")]) == 1


async def test_a_primary_that_is_down_does_not_keep_it_from_looking() -> None:
    async with world() as w:
        w.emulator.faults.namespace_down("contoso")
        w.strand(1, 2)
        w.strand(3, sections={"application_properties": b""})
        said = await w.look()
        assert (total(said.flows).outcomes, said.exit_code) == ({"sent": 2, "dead_lettered": 1}, 3)
        assert any(note.startswith("destinations were not checked: ") for note in said.notes)


async def test_without_manage_on_the_secondary_queues_follow_the_count() -> None:
    async with world(3) as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.secondary.delete_queue(queue_path("contoso", 1))
        for index in (0, 2):
            w.strand(1, index=index)
        said = await w.look()
        assert said.queues == (queue_path("contoso", 0), queue_path("contoso", 2))
        assert total(said.flows).outcomes == {"sent": 2}
        assert any("x-servicebus-transfer/1" in note for note in said.notes)


@pytest.mark.parametrize("claims", [tuple(AccessRight), (AccessRight.LISTEN,)])
async def test_no_backlog_queue_at_all_is_an_error(claims: tuple[AccessRight, ...]) -> None:
    async with world(2) as w:
        w.may_only("secondary", *claims)
        for index in range(2):
            w.secondary.delete_queue(queue_path("contoso", index))
        with pytest.raises(errors.EntityMissing, match="no backlog queue of contoso"):
            await w.look()


async def test_without_listen_on_the_secondary_it_may_not_look() -> None:
    async with world() as w:
        w.may_only("secondary", AccessRight.SEND)
        with pytest.raises(errors.NotAuthorized):
            await w.look()


# When it does not go smoothly


async def test_a_broken_connection_is_reopened_and_nothing_counts_twice() -> None:
    async with world(2) as w:
        for index in range(2):
            w.strand(*range(1_000), index=index)
        broken = iter(range(2))

        def break_it(event: Any) -> None:
            w.told.append(event)
            if isinstance(event, Peeked) and event.messages == 500 and next(broken, None) is not None:
                w.emulator.faults.end(w.emulator.faults.namespace_down("contoso-dr"))

        said = await preview.make_forecast(
            syphon_request(w.pair, once=True, credits=None), on_event=break_it, sleep=w.sleep
        )
        assert [flow.messages for flow in said.flows] == [1_000, 1_000]
        assert next(broken, None) is None


@pytest.mark.parametrize("fault", ["entity_down", "throttle"])
async def test_a_secondary_that_stays_away_is_an_error(fault: str) -> None:
    async with world() as w:
        w.strand(1)
        getattr(w.emulator.faults, fault)("contoso-dr", queue_path("contoso", 0))
        with pytest.raises(errors.Unavailable):
            await w.look()


async def test_a_busy_queue_is_given_time_and_keeps_its_place() -> None:
    async with world(2) as w:
        w.strand(*range(600))
        w.emulator.faults.throttle("contoso-dr", queue_path("contoso", 0), count=3)
        said = await w.look()
        assert (said.queues, total(said.flows).messages) == (tuple(queue_path("contoso", each) for each in (0, 1)), 600)
        assert w.slept >= 2.0 + 4.0 + 8.0


async def test_it_takes_no_more_credits_than_were_asked_for() -> None:
    async with world() as w:
        w.strand(*range(1_000))
        await w.look()
        assert w.slept == 0.0
        assert total((await w.look(credits=100.0)).flows).messages == 1_000
        assert 9.0 <= w.slept <= 11.0
