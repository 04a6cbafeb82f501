"""Prune on the emulator, through the real management client: removed, kept and restored queues."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.azure.atom import open_atom
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.service_errors import EntityDisabled
from sbpair.management.pruning import Pruner, QueueReport, holds_message, prune, prune_exit_code, why_in_use
from sbpair.model.pair import SasKey
from sbpair.model.report import Outcome
from sbpair.testing import Emulator
from tests.kit.pairs import BACKLOG, UNDER_CONTOSO, BacklogWorld, slip_in, stored
from tests.kit.waiting import no_wait

SECOND_TICKS = 10_000_000
SEVENTH = f"{UNDER_CONTOSO}7"
STEPS = ("get", "set_status", "look", "exact_counts", "delete")


class World(BacklogWorld):
    """A pair with unexpected backlog queues; `steps` are the calls to the service."""

    def __init__(self, emulator: Emulator, count: int) -> None:
        super().__init__(emulator, count)
        self.steps: list[str] = []
        self.before: Callable[[str, int], Any] = lambda _step, _number: None
        self.after: Callable[[str, int], Any] = lambda _step, _number: None

    def names(self) -> list[str]:
        return [queue.path.removeprefix(UNDER_CONTOSO) for queue in self.secondary.queues()]

    async def prune(self, **options: Any) -> QueueReport:
        return await prune(self.pair, sleep=no_wait, **{"dry_run": False, **options})

    async def prune_watched(self) -> QueueReport:
        """Wrap `action` with calls of `before` and `after`, which get the step's number."""
        async with open_atom(self.pair.secondary) as queues:

            async def look(path: str) -> str:
                return await why_in_use(self.pair.secondary, None, no_wait, path)

            watched = Watched(queues, self)
            pruner = Pruner(watched, watched.around("look", look), self.pair, self.steps.append, no_wait)
            self.steps.clear()
            return await pruner.run(dry_run=False, only=None)

    def step(self, name: str) -> int:
        self.steps.append(name)
        return self.steps.count(name)


class Watched:
    """The real client, with a test's hooks around its calls."""

    def __init__(self, queues: Any, world: World) -> None:
        self._queues = queues
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return self.around(name, getattr(self._queues, name))

    def around(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def called(*arguments: Any, **keywords: Any) -> Any:
            number = self._world.step(name)
            self._world.before(name, number)
            result = await call(*arguments, **keywords)
            self._world.after(name, number)
            return result

        return called


@asynccontextmanager
async def world(*extra: int | str, count: int = 1) -> AsyncIterator[World]:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        w = World(emulator, count)
        for name in (*range(count), *extra):
            w.queue(name)
        yield w


def put(queue: QueueEntity) -> None:
    queue.send([stored()])


def failing(error: type[errors.SbpairError], *steps: str) -> Callable[[str, int], None]:
    """Return a hook that raises `error` at each of these steps."""

    def fail(step: str, _number: int) -> None:
        if step in steps:
            raise error("on purpose")

    return fail


def outcomes(report: QueueReport) -> dict[str, str]:
    return {item.name.removeprefix(UNDER_CONTOSO): str(item.outcome) for item in report}


# What goes, and what stays


async def test_empty_extra_queues_go_and_nothing_else_does() -> None:
    async with world("7", "12", "old", "07", count=3) as w:
        w.secondary.create_queue("contoso/x-servicebus-transferred/9")
        w.secondary.create_queue("fabrikam/x-servicebus-transfer/9")
        w.secondary.create_queue("orders")
        stay = {"fabrikam/x-servicebus-transfer/9", "orders", "contoso/x-servicebus-transferred/9", "0", "1", "2"}
        assert set(outcomes(await w.prune(dry_run=True)).values()) == {"would_remove"}
        report = await w.prune()
        assert outcomes(report) == dict.fromkeys(("7", "12", "07", "old"), "removed")
        assert (set(w.names()), prune_exit_code(report)) == (stay, 0)
        again = await w.prune()
        assert (again.items, prune_exit_code(again), set(w.names())) == ((), 0, stay)


async def test_only_confirmed_queues_are_removed() -> None:
    async with world("7", "8") as w:
        assert outcomes(await w.prune(only=["contoso/x-servicebus-transfer/8"])) == {"8": "removed"}
        assert w.names() == ["0", "7"]


def locked(queue: QueueEntity) -> bytes:
    put(queue)
    [taken] = queue.messages.receive(1)
    return taken.lock_token


def deferred(queue: QueueEntity) -> None:
    queue.messages.defer(locked(queue))


def dead(queue: QueueEntity) -> None:
    queue.messages.dead_letter(locked(queue))


def scheduled(queue: QueueEntity) -> None:
    queue.schedule([stored(scheduled_at_ms=2**42)])


def undeliverable(queue: QueueEntity) -> None:
    queue.transfer_dead_letters.add_dead_letter(stored())


@pytest.mark.parametrize("fill", [put, locked, deferred, dead, scheduled, undeliverable])
async def test_a_queue_that_holds_any_kind_of_message_is_kept(fill: Callable[[QueueEntity], object]) -> None:
    async with world("7") as w:
        queue = w.secondary.queue(SEVENTH)
        fill(queue)
        before = queue.description
        report = await w.prune()
        assert (outcomes(report), prune_exit_code(report)) == ({"7": "kept"}, 4)
        assert "it holds 1 message" in report.items[0].reason
        assert queue.description == before
        assert queue.counts().total == 1


async def test_two_at_once_remove_each_queue_once() -> None:
    async with world(*range(5, 15)) as w:
        reports = await asyncio.gather(*(w.prune() for _ in range(3)))
        assert w.names() == ["0"]
        assert {prune_exit_code(report) for report in reports} == {0}
        removed = [item.name for report in reports for item in report.of(Outcome.REMOVED)]
        assert len(removed) == len(set(removed)) == 10


# A message that comes meanwhile


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        *((moment, status) for status in ("Active", "ReceiveDisabled") for moment in ("get", "set_status", "look")),
        *((moment, "SendDisabled") for moment in ("get", "look")),
    ],
)
async def test_a_message_that_comes_meanwhile_keeps_the_queue_and_its_status(moment: str, status: str) -> None:
    async with world() as w:
        queue = w.queue("7", status=status)
        w.after = lambda step, number: slip_in(queue) if (step, number) == (moment, 1) else None
        before = queue.description
        report = await w.prune_watched()
        assert (outcomes(report), prune_exit_code(report)) == ({"7": "kept"}, 4)
        assert (queue.description, queue.counts().active) == (before, 1)
        assert "delete" not in w.steps


async def test_no_message_can_be_sent_between_last_check_and_deletion() -> None:
    async with world() as w:
        queue, refused = w.queue("7"), []

        def send(step: str, _number: int) -> None:
            if step in ("look", "exact_counts", "delete"):
                with pytest.raises(EntityDisabled):
                    put(queue)
                refused.append(step)

        w.before = send
        assert outcomes(await w.prune_watched()) == {"7": "removed"}
        assert refused == ["look", "exact_counts", "delete"]


async def test_a_queue_that_takes_messages_although_it_must_not_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world("7") as w:
        monkeypatch.setattr(QueueEntity, "check_send", lambda _queue: None)
        [item] = await w.prune()
        assert (item.outcome, item.reason) == (
            Outcome.KEPT,
            "it takes messages, though it is SendDisabled: try again later",
        )
        assert w.secondary.queue(SEVENTH).description.status == "Active"


@pytest.mark.parametrize(("step", "status", "arrives"), [("exact_counts", "Active", False), ("look", "Disabled", True)])
async def test_a_status_that_another_client_sets_is_left_with_its_queue(step: str, status: str, arrives: bool) -> None:
    async with world() as w:
        queue = w.queue("7")

        def change(called: str, _number: int) -> None:
            if called == step:
                queue.update(replace(queue.description, status=status))
                if arrives:
                    slip_in(queue)

        w.after = change
        [item] = await w.prune_watched()
        assert (item.outcome, queue.description.status) == (Outcome.KEPT, status)
        assert (f"another client changed its status to {status} while" in item.reason) is not arrives


async def test_peek_includes_the_dead_letter_queue() -> None:
    async with world() as w:
        for fill, found in ((None, False), (dead, True), (put, True)):
            queue = w.queue("7")
            if fill is not None:
                fill(queue)
            assert await holds_message(w.pair.secondary, None, no_wait, queue.path) is found
            w.secondary.delete_queue(queue.path)


async def test_concurrently_deleted_queue_is_gone() -> None:
    for moment in STEPS:
        async with world("7") as w:

            def delete(step: str, number: int, moment: str = moment, w: World = w) -> None:
                if (step, number) == (moment, 1):
                    w.secondary.delete_queue(SEVENTH)

            w.before = delete
            report = await w.prune_watched()
            assert (outcomes(report), prune_exit_code(report)) == ({"7": "gone"}, 0), moment


# Failures


@pytest.mark.parametrize("error", [errors.Throttled, errors.NotAuthorized, errors.TimedOut, errors.Unavailable])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("happened", [False, True])
async def test_after_a_failure_the_queue_is_as_it_was(
    step: str, error: type[errors.SbpairError], happened: bool
) -> None:

    async with world() as w:
        queue = w.queue("7", status="ReceiveDisabled")
        before = queue.description
        failing = range(1, 4 if error.retriable else 2)

        def fail(called: str, number: int) -> None:
            if called == step and number in failing:
                raise error("on purpose")

        setattr(w, "after" if happened else "before", fail)
        report = await w.prune_watched()
        if step == "delete" and (happened or error is errors.TimedOut):
            assert w.names() == ["0"] or queue.description.status == "SendDisabled"  # see the next test
            return
        if step == "set_status" and happened and error.retriable:
            assert outcomes(report) == {"7": "removed"}  # the second attempt finds it done
            return
        assert (outcomes(report), prune_exit_code(report)) == ({"7": "failed"}, error.exit_code)
        assert queue.description == before


async def test_queue_stays_disabled_while_its_deletion_is_in_doubt() -> None:
    async with world() as w:
        queue = w.queue("7")

        w.before = failing(errors.TimedOut, "delete")
        report = await w.prune_watched()
        assert (outcomes(report), prune_exit_code(report)) == ({"7": "failed"}, 6)
        assert "or left SendDisabled: run again: sbpair prune" in report.items[0].reason
        assert queue.description.status == "SendDisabled"
        assert outcomes(await w.prune()) == {"7": "removed"}


async def test_failed_restore_of_the_status_is_reported() -> None:
    async with world() as w:
        queue = w.queue("7")

        def fail(step: str, number: int) -> None:
            if step == "look" or (step == "set_status" and number > 1):
                raise errors.NotAuthorized("on purpose")

        w.before = fail
        [item] = await w.prune_watched()
        assert item.outcome is Outcome.FAILED
        assert item.reason == f"{queue.path} is left SendDisabled: on purpose; run again: sbpair prune"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_service_that_is_busy_for_a_while_is_waited_for(method: str) -> None:
    async with world("7") as w:
        w.emulator.faults.refuse_requests("contoso-dr", 429, method=method, count=2)
        assert outcomes(await w.prune()) == {"7": "removed"}


async def test_without_the_listen_claim_nothing_is_removed() -> None:
    async with world("7") as w:
        w.secondary.keys = (AuthorizationRule("manage", "key", "other", frozenset({AccessRight.MANAGE})),)
        w.pair = replace(w.pair, secondary=replace(w.pair.secondary, credential=SasKey("manage", "key")))
        before = w.secondary.queue(SEVENTH).description
        report = await w.prune()
        assert (outcomes(report), prune_exit_code(report)) == ({"7": "failed"}, 5)
        assert w.secondary.queue(SEVENTH).description == before


# Interrupted


@pytest.mark.parametrize("when", ["before", "after", "refused"])
@pytest.mark.parametrize("step", STEPS)
async def test_interrupt_restores_the_status_of_remaining_queues(step: str, when: str) -> None:
    async with world() as w:
        queue = w.queue("7")
        before, pruning = queue.description, asyncio.create_task(w.prune_watched())

        def interrupt(called: str, number: int) -> None:
            if (called, number) == (step, 1):
                pruning.cancel()
                if when == "refused":
                    raise errors.NotAuthorized("on purpose")

        setattr(w, "after" if when == "after" else "before", interrupt)
        with pytest.raises(asyncio.CancelledError):
            await pruning
        if w.names() == ["0", "7"]:
            assert queue.description == before
        else:
            assert step == "delete"
            assert when != "refused"


# What is written back


DURATIONS = st.sampled_from([2**63 - 1, 600 * SECOND_TICKS, 86_400 * SECOND_TICKS, 1_234_567 * SECOND_TICKS + 5_000])


RULE = AuthorizationRule("mine", "a" * 44, "b" * 44, frozenset({AccessRight.SEND}))
DESCRIPTIONS = st.builds(
    QueueDescription,
    enable_partitioning=st.booleans(),
    max_size_in_megabytes=st.sampled_from([1024, 2048, 3072, 4096, 5120]),
    default_message_time_to_live=DURATIONS,
    auto_delete_on_idle=DURATIONS,
    lock_duration=st.integers(1, 300).map(lambda seconds: seconds * SECOND_TICKS),
    max_delivery_count=st.integers(1, 2**31 - 1),
    dead_lettering_on_message_expiration=st.booleans(),
    enable_batched_operations=st.booleans(),
    requires_session=st.booleans(),
    requires_duplicate_detection=st.booleans(),
    duplicate_detection_history_time_window=st.sampled_from([20, 600, 604_800]).map(lambda each: each * SECOND_TICKS),
    user_metadata=st.one_of(st.none(), st.sampled_from(["owner: <ops> & co", "é", "a b"])),
    authorization_rules=st.sampled_from([(), (RULE,)]),
    status=st.sampled_from(["Active", "Disabled", "ReceiveDisabled"]),
)


@given(description=DESCRIPTIONS, forward=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_restored_queue_has_its_former_description(description: QueueDescription, forward: bool) -> None:
    async with world() as w:
        w.secondary.create_queue("elsewhere")
        address = f"sb://{w.pair.secondary.authority}/elsewhere" if forward else None
        described = replace(description, forward_dead_lettered_messages_to=address)
        queue = w.secondary.create_queue(SEVENTH, described)
        seen = []

        def at_the_look(step: str, _number: int) -> None:
            if step == "look":
                seen.append(queue.description)
                raise errors.NotAuthorized("on purpose")

        before, w.before = queue.description, at_the_look
        await w.prune_watched()
        [meanwhile] = seen
        assert normal(meanwhile) == normal(replace(before, status="SendDisabled"))
        assert normal(queue.description) == normal(before)


def normal(description: QueueDescription) -> QueueDescription:
    """Rules without the times that only the service keeps."""
    rules = tuple(replace(rule, created_at=None, modified_at=None) for rule in description.authorization_rules)
    return replace(description, authorization_rules=rules)


# Any namespace


NAMES = st.one_of(
    st.integers(0, 12).map(lambda index: f"contoso/x-servicebus-transfer/{index}"),
    st.sampled_from(
        [
            "Contoso/X-ServiceBus-Transfer/11",
            "contoso/x-servicebus-transfer/007",
            "contoso/x-servicebus-transfer/archive",
            "contoso/x-servicebus-transfer/3/old",
            "contoso/x-servicebus-transfer",
            "contoso/x-servicebus-transfers/9",
            "contoso2/x-servicebus-transfer/9",
            "a/contoso/x-servicebus-transfer/9",
            "orders",
        ]
    ),
)


@given(
    queues=st.dictionaries(NAMES, st.tuples(st.booleans(), st.sampled_from(["Active", "SendDisabled"])), max_size=8),
    count=st.integers(1, 6),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_removed_queues_were_empty_and_unexpected(queues: dict[str, tuple[bool, str]], count: int) -> None:
    queues = {name: what for name, what in queues.items() if name == name.lower() or name.lower() not in queues}

    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        w = World(emulator, count)
        for name, (filled, status) in queues.items():
            queue = w.secondary.create_queue(name, replace(BACKLOG, status=status))
            if filled:
                slip_in(queue)
        report = await w.prune()
        left = {queue.path: queue for queue in w.secondary.queues()}
        for name, (filled, status) in queues.items():
            head, _, index = name.lower().rpartition("x-servicebus-transfer/")
            numbered = index.isdigit() and (index == "0" or not index.startswith("0"))
            extra = head == "contoso/" and not (numbered and int(index) < count)
            assert (name in left) is (filled or not extra), name
            if name in left:
                assert left[name].description == replace(BACKLOG, status=status)
                assert left[name].counts().total == filled
        assert len(report.items) == len(queues) - len(left) + len(report.of(Outcome.KEPT))


async def test_premium_multiplies_no_size_and_so_none_is_divided() -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0, "premium", 2)]) as emulator:
        w = World(emulator, 1)
        sizes = {"max_size_in_megabytes": 81920, "max_message_size_in_kilobytes": 1024}
        queue = w.queue("7", enable_partitioning=True, **sizes)
        async with open_atom(w.pair.secondary) as queues:
            await queues.set_status(queue.path, "SendDisabled")
        assert (queue.description.max_size_in_megabytes, queue.description.status) == (81920, "SendDisabled")
