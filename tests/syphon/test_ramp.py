"""Ramps over real sockets: exact steps, and a stop as soon as moved messages come back as dead letters."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sbpair.amqp_server.shared_access import AccessRight
from sbpair.errors import NotAuthorized, UsageError
from sbpair.model.message_state import dead_letter_path
from sbpair.move.events import QueueProgress, RampProgress
from sbpair.move.receipt import RampState
from sbpair.syphon import ramp as ramp_module
from sbpair.syphon.intake_gate import IntakeGate
from sbpair.syphon.run_request import RampPlan, read_totals
from tests.kit.moves import ids
from tests.kit.moves import peeked as held_in
from tests.kit.stranded import in_session, numbered, put
from tests.syphon.worlds import World, names, world

BRIEF = 0.2


def bury(w: World, messages: Any, *, reason: str = "Poison") -> None:
    for each in messages:
        w.destination().messages.dead_letter(each.lock_token, reason, "why")


def when_enqueued(w: World, act: Callable[[list[Any]], None]) -> None:
    """Let the emulator receive what arrives in `orders`, and do something with it."""
    messages = w.destination().messages
    enqueue = messages.enqueue

    def consumed(*arguments: Any, **keywords: Any) -> Any:
        asyncio.get_running_loop().call_soon(lambda: act(messages.receive(100)))
        return enqueue(*arguments, **keywords)

    messages.enqueue = consumed  # type: ignore[method-assign]


def is_observing(event: Any) -> bool:
    return isinstance(event, RampProgress) and event.state == RampState.OBSERVING


def steps(result: Any) -> list[tuple[int, int, int]]:
    return [(each.total, each.sent, each.came_back) for each in result.receipt.ramp.steps]


async def test_steps_are_exact_and_held_messages_are_none_while_it_observes() -> None:
    async with world(2) as w:
        for index in range(2):
            w.strand(*range(100 * index, 100 * index + 30), index=index)
        seen: list[tuple[int, int]] = []

        def look(event: Any) -> None:
            if is_observing(event):
                locked = sum(len(w.backlog(index).messages._locks) for index in range(2))
                seen.append((len(held_in(w.destination())), locked))

        w.watchers.append(look)
        result = await w.run(ramp=RampPlan((1, 2, 7, 50), BRIEF))
        assert seen == [(1, 0), (2, 0), (7, 0), (50, 0)]
        assert (result.exit_code, result.receipt.sent, result.failures) == (0, 60, ())
        assert steps(result) == [(1, 1, 0), (2, 2, 0), (7, 7, 0), (50, 50, 0)]
        assert result.receipt.ramp.state == RampState.PASSED


async def test_ramp_larger_than_its_source_ends_after_an_observation() -> None:
    async with world() as w:
        w.strand(*range(5))
        result = await w.run(ramp=RampPlan((3, 100, 1000), BRIEF))
        assert (result.exit_code, result.receipt.sent) == (0, 5)
        assert steps(result) == [(3, 3, 0), (100, 5, 0)]
        assert result.receipt.ramp.steps[-1].observed_seconds >= BRIEF
        assert result.receipt.ramp.state == RampState.PASSED


async def test_dead_letters_of_others_stop_the_run_and_are_counted_apart() -> None:
    async with world() as w:
        w.strand(*range(5))
        orders = w.destination()
        put(orders, numbered(99, "orders"))
        [other] = orders.messages.receive(1)
        w.watchers.append(lambda event: bury(w, [other]) if is_observing(event) else None)
        result = await w.run(ramp=RampPlan((2, 4), BRIEF))
        ramp = result.receipt.ramp
        assert (result.exit_code, result.receipt.sent) == (3, 2)
        assert (ramp.came_back, ramp.other_dead_letters, ramp.destinations) == ((), 1, ("orders",))
        [(where, error)] = result.failures
        assert (where, error.message) == ("orders", "1 other dead letter came: none is known to be a moved message")


async def test_message_that_comes_back_in_two_subscriptions_is_one() -> None:
    async with world() as w:
        topic = w.primary.create_topic("news")
        buried = [topic.create_subscription(name).messages for name in ("a", "b")]
        w.strand(1, 2, to="news")

        def bury_all(event: Any) -> None:
            for messages in buried if is_observing(event) else ():
                for each in messages.receive(10):
                    messages.dead_letter(each.lock_token, "Poison", "why")

        w.watchers.append(bury_all)
        result = await w.run(ramp=RampPlan((1, 2), BRIEF))
        ramp = result.receipt.ramp
        assert (result.exit_code, steps(result), ramp.came_back_total) == (3, [(1, 1, 1)], 2)
        assert {each.destination for each in ramp.came_back} == {"news/subscriptions/a", "news/subscriptions/b"}
        [(where, error)] = result.failures
        assert where == "news/subscriptions/a, news/subscriptions/b"
        assert error.message == "1 of 1 sent message came back as dead letters"


async def test_redrive_does_not_send_again_what_comes_back_in_the_same_step() -> None:
    async with world() as w:
        orders = w.destination()
        for number in range(5):
            put(orders, numbered(number, "orders"))
        bury(w, orders.messages.receive(5), reason="Before")
        poison: list[int] = []

        def refuse(messages: list[Any]) -> None:
            for each in messages:
                if each.sections.read_properties().message_id == "m2":
                    poison.append(1)
                    bury(w, [each])

        when_enqueued(w, refuse)
        result = await w.move(dead_letter_path("orders"), "orders", ramp=RampPlan((10, 20), BRIEF))
        assert (result.exit_code, result.receipt.sent, len(poison)) == (3, 5, 1)
        [back] = result.receipt.ramp.came_back
        assert (back.message_id, back.reason) == ("m2", "Poison: why")
        assert ids(orders, dead=True) == ["m2"]


async def test_sessions_are_moved_in_steps_and_in_order() -> None:
    async with world() as w:
        _, source, _ = w.create("session queue", "old")
        for number in range(12):
            put(source, in_session(number))
        seen: list[int] = []
        w.watchers.append(lambda event: seen.append(len(held_in(w.destination()))) if is_observing(event) else None)
        result = await w.move("old", "orders", on_event=w.tell, ramp=RampPlan((1, 3, 8), BRIEF))
        assert (result.exit_code, result.receipt.sent, seen) == (0, 12, [1, 3, 8])
        arrived = ids(w.destination())
        for session in range(3):
            assert [each for each in arrived if int(each[1:]) % 3 == session] == names(*range(session, 12, 3))


@pytest.mark.parametrize(("totals", "sent"), [((4, 8), 4), ((16,), 10)], ids=["a step", "the last messages"])
async def test_stop_while_it_observes_ends_at_once_and_leaves_nothing_locked(
    totals: tuple[int, ...], sent: int
) -> None:
    async with world() as w:
        w.strand(*range(10))
        w.watchers.append(lambda event: w.stop.set() if is_observing(event) else None)
        result = await w.run(ramp=RampPlan(totals, 3600.0))
        state = result.receipt.ramp.state
        assert (result.stopped, result.failures, result.receipt.sent, state) == (True, (), sent, RampState.OBSERVING)
        assert len(w.backlog().messages.receive(10)) == 10 - sent


async def test_watch_stops_before_a_step_is_full_if_messages_come_back() -> None:
    async with world() as w:
        w.strand(*range(3))
        when_enqueued(w, lambda messages: bury(w, messages[:1]))
        result = await w.run(once=False, ramp=RampPlan((100,), BRIEF))
        assert (result.exit_code, result.receipt.sent) == (3, 3)
        assert result.receipt.ramp.came_back_total >= 1


async def test_later_destination_that_cannot_be_observed_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramp_module, "PAGE", 1)
    async with world() as w:
        w.primary.create_topic("news").create_subscription("a")
        w.strand(1)
        w.strand(2, 3, to="news")
        w.may_only("primary", AccessRight.SEND, AccessRight.LISTEN)
        result = await w.run(ramp=RampPlan((1, 3), BRIEF))
        assert (result.exit_code, result.receipt.sent) == (5, 1)
        assert w.primary.entity("news/subscriptions/a").counts().active == 0
        assert [each.delivery_count for each in w.backlog().messages.receive(10)] == [0, 0]


async def test_gate_that_closes_within_a_step_keeps_it_exact() -> None:
    async with world() as w:
        w.strand(*range(30))
        gate, opening = IntakeGate(), set[asyncio.Task[None]]()

        async def open_when_quiet() -> None:
            await gate.wait_quiet()
            assert w.backlog().messages.locked_count == 0
            gate.open("test")

        def pause(event: Any) -> None:
            if isinstance(event, QueueProgress) and event.sent in (1, 5) and not gate.closed and len(opening) < 3:
                gate.close("test")
                opening.add(asyncio.create_task(open_when_quiet()))

        w.watchers.append(pause)
        seen: list[int] = []
        w.watchers.append(lambda event: seen.append(len(held_in(w.destination()))) if is_observing(event) else None)
        result = await w.run(gate=gate, ramp=RampPlan((1, 5, 20), BRIEF))
        assert (result.exit_code, result.receipt.sent, seen) == (0, 30, [1, 5, 20])
        assert opening


async def test_missing_destination_is_dead_lettered_in_a_ramp_too() -> None:
    async with world() as w:
        w.strand(1, 2, to="nowhere")
        w.strand(3, 4)
        result = await w.run(ramp=RampPlan((1, 2), BRIEF))
        assert (result.receipt.sent, result.receipt.dead_lettered, result.receipt.ramp.state) == (2, 2, "passed")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "expected a number (column 1)"),
        ("1,,2", "expected a number (column 3)"),
        ("1, 2 ,-3", "'-3' is not a whole number (column 7)"),
        ("9" * 5000, "a step is at most 100000 messages (column 1)"),
        ("1,1.5", "'1.5' is not a whole number (column 3)"),
        ("\u0661", "'\u0661' is not a whole number (column 1)"),
    ],
)
def test_wrong_ramps_are_refused_with_their_place(text: str, mistake: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_totals(text)
    assert caught.value.message == f"--ramp: {mistake}"
    assert caught.value.excerpt[1].index("^") >= 2


def test_totals_are_read() -> None:
    assert read_totals(" 1,10 , 100000") == (1, 10, 100_000)


@pytest.mark.parametrize("wrong", [(), (2, 1), (0,), (100_001,)])
def test_wrong_plans_are_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        RampPlan(wrong)


async def test_destination_that_cannot_be_observed_is_refused() -> None:
    async with world() as w:
        w.strand(1)
        w.may_only("primary", AccessRight.SEND)
        with pytest.raises(NotAuthorized, match="the dead letters of orders cannot be observed"):
            await w.run(ramp=RampPlan((1,), BRIEF))
        assert len(held_in(w.backlog())) == 1
        assert held_in(w.backlog())[0].delivery_count == 0
