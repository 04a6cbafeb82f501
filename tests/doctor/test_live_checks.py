"""Live checks: assumed beside observed behaviour, and no queue left behind."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.doctor import live_checks
from sbpair.doctor.assumption_checks import message_of
from sbpair.doctor.check import Check, diagnosis_exit_code
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.server import RequestedNamespace
from sbpair.model.pair import SasKey
from sbpair.model.report import Outcome
from sbpair.testing import Emulator
from tests.kit.pairs import endpoint_on
from tests.kit.waiting import no_wait

TAG = "0123456789ab"
ANSWERS = ("description", "timespan_max", "partitioned_size", "message_size", "largest_message", "ping")
ALL = (*ANSWERS, "idle_detach")


def on(kind: Any, action: Callable[[], object], name: str = "") -> live_checks.OnEvent:
    """Return a listener that calls `action` soon after each event of that kind and end of its name."""

    def listen(event: live_checks.LiveEvent) -> None:
        if isinstance(event, kind) and event.name.endswith(name):
            asyncio.get_running_loop().call_soon(action)

    return listen


def paths(emulator: Emulator) -> set[str]:
    return {queue.path for queue in emulator.namespaces["contoso"].queues()}


async def ask(
    emulator: Emulator, on_event: live_checks.OnEvent = lambda _event: None, **options: object
) -> tuple[dict[str, Check], int]:
    given = {"seconds": 10.0, "sleep": no_wait, **options}
    end = given.pop("end", None) or endpoint_on(emulator, "contoso")
    diagnosis = await live_checks.run_live({"primary": end}, TAG, on_event=on_event, **given)
    return {check.name.removeprefix("live.primary."): check for check in diagnosis}, diagnosis_exit_code(diagnosis)


async def test_a_listener_that_fails_ends_it_and_leaves_nothing() -> None:
    def fail(event: live_checks.LiveEvent) -> None:
        if isinstance(event, live_checks.CheckBegun):
            raise BrokenPipeError

    async with Emulator([("contoso", 0)]) as emulator:
        with pytest.raises(BrokenPipeError):
            await ask(emulator, fail)
        assert paths(emulator) == set()


@pytest.mark.parametrize(
    ("partitions", "observed"), [(4, "refused, since the namespace is partitioned"), (1, "created as requested")]
)
async def test_partitioned_namespace_is_detected_by_its_refusal(partitions: int, observed: str) -> None:
    async with Emulator([RequestedNamespace("contoso", 0, "premium", partitions)]) as emulator:
        checks, _ = await ask(emulator)
        assert checks["unpartitioned"].detail.observed == observed


async def test_imposed_partitions_are_reported_beside_the_assumption(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(namespace: Namespace, wanted: QueueDescription) -> QueueDescription:
        return replace(wanted, enable_partitioning=True, partitions=namespace.partitions)

    monkeypatch.setattr(Namespace, "_for_namespace", unasked)

    async with Emulator([RequestedNamespace("contoso", 0, "premium", 2)]) as emulator:
        checks, code = await ask(emulator)
        assert (checks["unpartitioned"].reason, code) == (
            "assumed: refused, since the namespace is partitioned; observed: created, and partitioned",
            3,
        )
        assert paths(emulator) == set()


@pytest.mark.parametrize(("tier", "observed"), [("standard", "81920 MB"), ("premium", "5120 MB")])
async def test_sizes_of_partitioned_entities_are_sixteenfold_on_standard_alone(tier: str, observed: str) -> None:
    async with Emulator([RequestedNamespace("contoso", 0, tier)]) as emulator:
        checks, _ = await ask(emulator)
        assert checks["partitioned_size"].detail.observed == observed


async def test_live_check_uses_only_its_own_queue_names() -> None:
    seen: set[str] = set()

    async with Emulator([("contoso", 0)]) as emulator:
        await ask(emulator, lambda _event: seen.update(paths(emulator)))
        assert seen == {*live_checks.queue_names(TAG).values()}
        assert all(path.startswith(f"sbpair-doctor-{TAG}-") and "/" not in path for path in seen)


async def test_a_link_that_is_let_go_of_after_ten_minutes_is_as_assumed() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        passed = 0.0

        def on_event(event: live_checks.LiveEvent) -> None:
            nonlocal passed
            if isinstance(event, live_checks.CheckPending):
                passed = 601.0
                asyncio.get_running_loop().call_soon(emulator.advance, 601_000)

        checks, code = await ask(emulator, on_event, slow=True, now=lambda: passed)
        assert (set(checks), code) == (set(ALL), 0)


async def test_early_idle_detach_is_reported_beside_the_assumption() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        pending = on(live_checks.CheckPending, lambda: emulator.advance(601_000))
        checks, code = await ask(emulator, pending, slow=True)
        idle = checks["idle_detach"]
        assert (idle.outcome, code) == (Outcome.FAILED, 3)
        assert (idle.detail.assumed, idle.detail.observed) == ("after 600 s, as idle", "after 0 s")
        assert idle.detail.hint
        assert paths(emulator) == set()


async def test_a_link_that_ends_for_another_reason_is_not_taken_for_idle() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        pending = on(live_checks.CheckPending, lambda: emulator.faults.detach("contoso"))
        checks, code = await ask(emulator, pending, slow=True)
        assert "force detached" in checks["idle_detach"].detail.observed
        assert code == 3


async def test_smaller_message_size_is_reported_beside_the_assumption() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.tier = replace(namespace.tier, default_message_kilobytes=128, max_message_kilobytes=128)
        checks, code = await ask(emulator)
        assert (checks["message_size"].detail.assumed, checks["message_size"].detail.observed) == (
            "262144 bytes",
            "131072 bytes",
        )
        assert (checks["largest_message"].outcome, code) == (Outcome.OK, 3)


@pytest.mark.parametrize("check", [*ANSWERS[:1], *ANSWERS[2:], "idle_detach"])
async def test_a_cancellation_at_any_question_leaves_no_queue_behind(check: str) -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        either = live_checks.CheckBegun | live_checks.CheckPending
        cancel = on(either, lambda: asking.cancel("asked"), f"live.primary.{check}")
        asking = asyncio.create_task(ask(emulator, cancel, slow=True))
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert paths(emulator) == set()


async def test_queue_that_could_not_be_deleted_is_reported() -> None:
    async with Emulator([("contoso", 0)]) as emulator:

        def on_event(event: live_checks.LiveEvent) -> None:
            if isinstance(event, live_checks.CheckBegun) and event.name.endswith(".ping"):
                emulator.faults.namespace_down("contoso")

        checks, code = await ask(emulator, on_event)
        assert checks["removed"].outcome is Outcome.FAILED
        assert "remains in contoso" in checks["removed"].reason
        assert "by hand" in checks["removed"].detail.hint
        assert code == 6
        assert paths(emulator) == {*live_checks.queue_names(TAG).values()}


@pytest.mark.parametrize(
    "claims", [{AccessRight.LISTEN}, {AccessRight.SEND}, {AccessRight.SEND, AccessRight.LISTEN}, set()]
)
async def test_without_manage_nothing_is_made(claims: set[AccessRight]) -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.keys = (*namespace.keys, AuthorizationRule("some", "key", "other", frozenset(claims)))
        end = replace(endpoint_on(emulator, "contoso"), credential=SasKey("some", "key"))
        checks, code = await ask(emulator, end=end)
        assert ({*checks}, code) == ({"asked"}, 5)
        assert paths(emulator) == set()


async def test_a_namespace_that_is_not_there_cannot_be_asked() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        emulator.faults.namespace_down("contoso")
        checks, code = await ask(emulator)
        assert ({*checks}, code) == ({"asked"}, 6)


async def test_existing_queue_of_that_name_is_not_touched() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        description = live_checks.queue_names(TAG)["description"]
        emulator.namespaces["contoso"].create_queue(description)
        checks, _ = await ask(emulator)
        assert checks["description"].outcome is Outcome.FAILED
        assert paths(emulator) == {description}


@pytest.mark.parametrize("size", [400, 65_536, 262_144, 1_048_576])
def test_the_largest_message_has_exactly_that_size(size: int) -> None:
    assert len(message_of("id", size).join()) == size
