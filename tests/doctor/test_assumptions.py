"""ASSUMPTIONS.md is complete and true on the emulator, and each check sees a service that behaves otherwise."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import RawReceiver
from sbpair.amqp_server.refusals import MessageTooLarge, NotAllowed, Unauthorized
from sbpair.doctor import live_checks
from sbpair.doctor.assumption_checks import CHECKS
from sbpair.doctor.assumptions import ENTITIES, IN_BASIC, AssumptionTrial, assumptions
from sbpair.doctor.check import Check
from sbpair.emulator.entities import namespace as namespace_module
from sbpair.emulator.entities import queue as queue_module
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.message_order import Locks, MessageStore, ReadyQueue, message_lock_lost
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import DuplicateDetector, QueueEntity
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.faults.fault_points import Fault
from sbpair.emulator.frontends.amqp.message_links import OutgoingLink
from sbpair.emulator.server import RequestedNamespace
from sbpair.management.temporary_queues import open_temporary_queues
from sbpair.model.report import Outcome
from sbpair.testing import Emulator, ManualClock
from tests.doctor.test_live_checks import TAG, ask
from tests.kit.pairs import endpoint_on
from tests.kit.waiting import PATIENCE_SECONDS

OTHERS = ("message_size", "idle_detach", "description", "timespan_max", "partitioned_size", "unpartitioned")
"""The checks of `live_checks`."""


# The document

DOCUMENT = files("sbpair").joinpath("ASSUMPTIONS.md").read_text("utf-8")
SECTIONS = DOCUMENT.split("\n## Inferred behaviours\n")


def test_each_entry_is_an_assumption_with_one_of_the_kinds_of_evidence() -> None:
    kinds = re.findall(r"^\| ([a-z]+) \| ", DOCUMENT, flags=re.MULTILINE)[1:]
    assert {each.evidence for each in assumptions().values()} == set(kinds)
    entries, _ = SECTIONS
    assert list(assumptions()) == re.findall(r"^- \*\*(.+)\*\*: ", entries, flags=re.MULTILINE)


def test_each_inferred_behaviour_has_what_sbpair_does_about_it() -> None:
    _, covered = SECTIONS
    inferred = [each.name for each in assumptions().values() if each.evidence == "inferred"]
    assert inferred == re.findall(r"^- \*\*(.+)\*\*: ", covered, flags=re.MULTILINE)


def test_the_doctor_checks_the_assumptions_that_it_names() -> None:
    assert {name for name, entry in assumptions().items() if entry.in_doctor} == {*CHECKS, *OTHERS}


# The checks, on the emulator


def advancing(emulator: Emulator) -> Any:
    """Return a sleep that advances the emulator's clock in place of waiting."""

    async def sleep(seconds: float) -> None:
        emulator.advance(int(1000 * seconds))

    return sleep


async def trying(
    emulator: Emulator, on_event: live_checks.OnEvent = lambda _event: None
) -> tuple[dict[str, Check], int]:
    return await ask(emulator, on_event, seconds=PATIENCE_SECONDS, assumptions=True, sleep=advancing(emulator))


def entities_of(emulator: Emulator) -> set[str]:
    namespace = emulator.namespaces["contoso"]
    return {each.path for each in (*namespace.queues(), *namespace.topics())}


@pytest.mark.parametrize(("tier", "partitions"), [("standard", 1), ("premium", 1), ("premium", 2), ("basic", 1)])
async def test_the_emulator_confirms_every_assumption_that_its_tier_has(tier: str, partitions: int) -> None:
    async with Emulator([RequestedNamespace("contoso", 0, tier, partitions)]) as emulator:
        checks, code = await trying(emulator)
        assert entities_of(emulator) == set()
    lacking = {"idle_detach", *([] if tier == "premium" else ["unpartitioned"])}
    lacking |= {"timespan_max"} if tier == "basic" else set()
    assert set(checks) == {*CHECKS, *OTHERS, "tier"} - lacking
    assert (code, {name for name, check in checks.items() if check.outcome is Outcome.FAILED}) == (0, set())
    unknown = {name for name, check in checks.items() if check.outcome is Outcome.UNKNOWN}
    of_others = {"description", *(name for name, check in CHECKS.items() if check.queue not in IN_BASIC)}
    assert unknown == (of_others if tier == "basic" else set())


@asynccontextmanager
async def trial(name: str, seconds: float = PATIENCE_SECONDS) -> AsyncIterator[AssumptionTrial]:
    """Start a namespace whose time passes only in sleeps, create the queue of one check, and connect to it."""
    async with Emulator([("contoso", 0)], clock=ManualClock()) as emulator:
        endpoint = endpoint_on(emulator, "contoso")
        wanted = replace(ENTITIES[CHECKS[name].queue], path=f"sbpair-doctor-{TAG}")
        async with open_temporary_queues(endpoint, lambda *_: None) as queues, connect(endpoint) as client:
            yield AssumptionTrial(client, await queues.create(wanted), seconds, advancing(emulator))


def around(kind: Any, name: str, change: Callable[..., object]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a patch of a method or function: `change` gets the original one and its arguments."""
    original = getattr(kind, name)
    return lambda patch: patch.setattr(kind, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def without(section: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a patch that drops a section of each message that is sent."""

    def change(original: Any, sections: Sections, size: int) -> object:
        setattr(sections, section, b"")
        return original(sections, size)

    return around(service_envelope, "_split_message", change)


def ignored(_original: Any, *_args: Any, **_more: Any) -> None:
    """Do nothing in place of a method."""


def refuse(*_args: Any) -> None:
    raise NotAllowed("no subscription takes it")


def upper_case_is_of_another(original: Any, namespace: Namespace, address: str, *args: Any) -> object:
    return original(namespace, f"{address}-other" if address.isupper() else address, *args)


def a_minute_later(original: Any, *args: Any) -> object:
    """Add a minute to the time that is the last argument."""
    return original(*args[:-1], args[-1] + 60_000)


def release_all(original: Any, link: Any) -> None:
    original(link)
    link._queue.checked().expire_locks()


def grant_two_more(original: Any, link: RawReceiver, credit: int) -> None:
    """Grant more than a check knows: to it, the service sends too many. A frame without credit would fail the test."""
    original(link, credit + 2)


def with_overhead(original: Any, queue: QueueEntity, messages: Any) -> object:
    if (size := original(queue, messages)) == queue.max_message_bytes:
        raise MessageTooLarge("too large by its overhead")
    return size


def lost_when_expired(original: Any, queue: SubQueue, token: bytes) -> object:
    message = original(queue, token)
    if message.expires_at_ms <= queue._clock.now_ms():
        raise message_lock_lost()
    return message


def count_for_ever(_original: Any, queue: SubQueue, message: StoredMessage) -> None:
    """Count a failed delivery, without a limit."""
    message.delivery_count += 1
    queue._return(message)


def without_footer(original: Any, message: StoredMessage, reason: Any) -> object:
    assert isinstance(message.content, Sections)
    message.content.footer = b""
    return original(message, reason)


reversed_delivery = around(ReadyQueue, "take", lambda original, *args: original(*args)[::-1])

BROKEN: list[tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = [
    ("acceptance", around(SubQueue, "enqueue", ignored), "accepted, and not in the queue"),
    ("sequence_numbers", reversed_delivery, "4, 3, 2, 1, 0 with the numbers 5, 4, 3, 2, 1"),
    (
        "batch",
        around(service_envelope, "batch_members", lambda original, payload: original(payload)[:2]),
        "stored as a, b",
    ),
    ("content", without("body"), "changed: body"),
    ("property_types", without("application_properties"), "changed: application properties"),
    ("sender_annotations", without("delivery_annotations"), "changed: delivery annotations"),
    (
        "annotations_of_zero",
        around(service_envelope, "_general_annotations", lambda *_args, **_more: b""),
        "None and None",
    ),
    ("footer", without("footer"), "changed: footer"),
    (
        "missing_entity",
        around(namespace_module, "entity_not_found", lambda *_: Unauthorized("no such entity")),
        "refused as if the key lacked rights",
    ),
    ("path_case", around(Namespace, "resolve", upper_case_is_of_another), "another entity"),
    ("topic_discards", around(TopicEntity, "send", refuse), "refused: amqp:not-allowed"),
    (
        "duplicates",
        around(DuplicateDetector, "enqueue_new", lambda _, _self, messages, _now, enqueue: enqueue(messages)),
        "stored 2 times",
    ),
    ("ping", lambda patch: patch.setattr(service_envelope, "PING_CONTENT_TYPE", "another"), "delivered"),
    ("largest_message", around(QueueEntity, "check_sizes", with_overhead), "too large by its overhead"),
    ("credit", around(RawReceiver, "grant", grant_two_more), "3 for a credit of 1"),
    ("lock_outlives_link", around(OutgoingLink, "on_detached", release_all), "again once its link was closed"),
    ("lock_expires", around(Locks, "take", a_minute_later), "completed 5.5 s after its delivery"),
    ("locked_until", around(Locks, "take", a_minute_later), "65 s after the delivery"),
    (
        "locked_until",
        around(service_envelope, "_general_annotations", lambda original, *given, **_: original(*given, locked=False)),
        "not stated",
    ),
    ("lock_renewal", around(Locks, "renew", lambda _, locks, token, _now: locks.get(token)), "by 0 ms after 1 s"),
    ("release", around(SubQueue, "release", lambda _, queue, token: queue.abandon(token)), "at once with count 1"),
    ("abandon", around(SubQueue, "abandon", lambda _, queue, token: queue.release(token)), "at once with count 0"),
    ("peek", around(MessageStore, "read_from", lambda original, store, _start: original(store, 0)), "a, b, c of b, c"),
    (
        "dead_lettering",
        around(SubQueue, "dead_letter", lambda original, queue, token, *_: original(queue, token)),
        "stored with reason None and description None",
    ),
    ("dead_letter_parts", around(StoredMessage, "as_dead_letter", without_footer), "changed: footer"),
    ("dead_letters_stay", around(SubQueue, "_delivery_failed", count_for_ever), "again with count 10"),
    ("delivery_limit", around(SubQueue, "_delivery_failed", count_for_ever), "delivered more than 10 times"),
    ("locked_expiry", around(SubQueue, "_end_lock", lost_when_expired), "completion refused"),
    ("expiry", around(service_envelope, "_ttl_of", lambda *_: None), "delivered after its time to live"),
    ("schedule", around(SubQueue, "_put_on_schedule", a_minute_later), "'later' was not delivered within 0.2 s"),
    ("session_order", reversed_delivery, "as 4, 3, 2, 1, 0"),
    (
        "session_lock",
        around(SessionMessages, "accept", lambda _, held, session: held._hold(held._sessions.session(session))),
        "given to two receivers",
    ),
    ("session_ends_with_link", around(HeldSession, "close", ignored), "locked after the end of its link"),
    ("session_lock_expires", around(SessionMessages, "_lock_until", a_minute_later), "settled after its end"),
    ("session_state", around(SessionMessages, "set_state", ignored), "None at first, then None"),
    ("session_required", around(queue_module, "check_session_ids", ignored), "accepted without a session"),
]


def test_each_check_has_a_service_that_behaves_otherwise() -> None:
    assert {name for name, *_ in BROKEN} == set(CHECKS)


@pytest.mark.parametrize(("name", "break_it", "words"), BROKEN, ids=[name for name, *_ in BROKEN])
async def test_another_behaviour_of_the_service_is_observed(
    name: str, break_it: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trial(name) as means:
        assert await CHECKS[name].run(means) == CHECKS[name].expected
    async with trial(name, 0.2 if "within 0.2 s" in words else PATIENCE_SECONDS) as means:
        break_it(monkeypatch)
        assert words in await CHECKS[name].run(means)
        monkeypatch.undo()


# In a run


async def test_what_is_not_as_assumed_is_not_confirmed_and_its_neighbours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        around(SubQueue, "release", lambda _, queue, token: queue.abandon(token))(monkeypatch)
        checks, code = await trying(emulator)
    failed = {name: check.detail.observed for name, check in checks.items() if check.outcome is Outcome.FAILED}
    assert failed == {"release": "delivered again at once with count 1"}
    assert code == 3


async def test_a_busy_namespace_is_not_taken_for_another_behaviour() -> None:
    async with Emulator([("contoso", 0)]) as emulator:

        def on_event(event: live_checks.LiveEvent) -> None:
            if isinstance(event, live_checks.CheckBegun) and event.name.endswith(".acceptance"):
                emulator.faults.begin(Fault("throttle", "contoso", count=1))

        checks, _ = await trying(emulator, on_event)
        assert entities_of(emulator) == set()
    acceptance = checks["acceptance"]
    assert (acceptance.outcome, acceptance.exit_code, acceptance.detail.assumed) == (Outcome.FAILED, 6, "")
    assert "server-busy" in acceptance.reason
