"""An application's entities in both namespaces, through the real client, on an emulator that refuses on purpose."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.types import Timestamp
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.emulator.entities.description import QueueDescription, TopicDescription
from sbpair.emulator.entities.rules import SubscriptionRule as EmulatedRule
from sbpair.management.calls import Listed
from sbpair.management.entities_file import EntitiesDocument, parse_entities
from sbpair.management.provisioning import EntityReport, provision, provision_exit_code
from sbpair.model.entities import Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.model.pair import Endpoint
from sbpair.model.report import Outcome
from sbpair.model.retries import Retrying
from sbpair.testing import Emulator
from tests.kit.pairs import pair_on, unconnected_pair
from tests.kit.waiting import no_wait

HERE, THERE = "contoso", "contoso-dr"
FILE = """
[queues.failures]
[queues."billing/invoices"]
lock_duration = "30s"
requires_duplicate_detection = true
duplicate_detection_history_time_window = "1h"
enable_partitioning = true
max_size_in_megabytes = 2048
user_metadata = "owner: billing"
forward_dead_lettered_messages_to = "failures"
[queues.first]
forward_to = "second"
[queues.second]
[topics.events]
enable_partitioning = true
[topics.events.subscriptions.all]
[topics.events.subscriptions.audit]
forward_to = "failures"
[topics.events.subscriptions.audit.rules.europe]
sql = "region = 'eu'"
action = "SET seen = 1"
[topics.events.subscriptions.audit.rules.urgent.correlation]
label = "urgent"
properties = { tenant = "a" }
"""
LAYOUT = parse_entities(FILE, "entities.toml")


def open_emulator(tier: str = "standard", other: str = "", partitions: int = 1) -> Emulator:
    return Emulator([(HERE, 0, tier, partitions), (THERE, 0, other or tier, partitions)])


async def provisioned(
    emulator: Emulator, layout: EntitiesDocument = LAYOUT, count: int = 2, **options: object
) -> EntityReport:
    return await provision(pair_on(emulator, count), entities=layout, **{"sleep": no_wait, **options})


def names(report: EntityReport, outcome: Outcome, namespace: str) -> list[str]:
    return [item.name for item in report.of(outcome) if item.detail and item.detail.namespace == namespace]


def layout(*entities: Queue | Topic | Subscription | Rule) -> EntitiesDocument:
    return EntitiesDocument(entities)


def everything(emulator: Emulator) -> set[str]:
    """List the entities of both namespaces, rules included."""
    found = set()
    for name in (HERE, THERE):
        namespace = emulator.namespaces[name]
        found |= {f"{name}:{queue.path}" for queue in namespace.queues()}
        for topic in namespace.topics():
            found.add(f"{name}:{topic.path}")
            for each in topic.subscriptions:
                found |= {f"{name}:{each.path}", *(f"{name}:{each.path}/{rule.name}" for rule in each.rules)}
    return found


async def test_both_namespaces_get_all_entities_and_a_second_run_changes_none() -> None:
    async with open_emulator() as emulator:
        report = await provisioned(emulator)
        assert provision_exit_code(report, strict=True) == 0
        assert names(report, Outcome.CREATED, HERE) == [each.path for each in LAYOUT.entities]
        assert names(report, Outcome.CREATED, THERE) == [
            *(each.path for each in LAYOUT.entities),
            "contoso/x-servicebus-transfer/0",
            "contoso/x-servicebus-transfer/1",
        ]
        made = everything(emulator)
        assert not any(each.endswith("audit/$Default") for each in made)
        assert any(each.endswith("all/$Default") for each in made)
        again = await provisioned(emulator)
        assert {item.outcome for item in again} == {Outcome.EXISTING}
        assert everything(emulator) == made


async def test_drift_is_reported_and_not_changed() -> None:
    async with open_emulator() as emulator:
        namespace = emulator.namespaces[HERE]
        namespace.create_queue("second", QueueDescription(max_delivery_count=3))
        namespace.create_topic("events", TopicDescription())
        audit = namespace.topic("events").create_subscription("audit")
        audit.add_rule(EmulatedRule("europe"))
        report = await provisioned(emulator)
        told = {item.name: item.reason for item in report.of(Outcome.DRIFTED)}
        assert told == {
            "second": "MaxDeliveryCount is 3 and should be 10",
            "events": "EnablePartitioning is false and should be true",
            "events/Subscriptions/audit": "ForwardTo is empty and should be failures, "
            "Rules is $Default, europe, urgent and should be europe, urgent",
            "events/Subscriptions/audit/Rules/europe": "Filter is 1=1 and should be region = 'eu', "
            "Action is empty and should be SET seen = 1",
        }
        assert (provision_exit_code(report), provision_exit_code(report, strict=True)) == (0, 3)
        assert namespace.queue("second").description.max_delivery_count == 3
        assert [rule.name for rule in audit.rules] == ["$Default", "europe", "urgent"]
        assert names(report, Outcome.DRIFTED, THERE) == []


async def test_two_at_the_same_time_both_end_well() -> None:
    async with open_emulator() as emulator:
        reports = await asyncio.gather(*(provisioned(emulator) for _ in range(2)))
        for report in reports:
            assert {item.outcome for item in report} <= {Outcome.CREATED, Outcome.EXISTING}
        created = [item for report in reports for item in report.of(Outcome.CREATED)]
        assert len(created) == 2 * len(LAYOUT.entities) + 2
        assert not any(each.endswith("audit/$Default") for each in everything(emulator))


async def test_a_conflict_is_read_again_and_compared() -> None:
    async with open_emulator() as emulator:

        def in_between(event: object) -> None:
            # The plan is made, and nothing of it is yet.
            if isinstance(event, Listed):
                emulator.namespaces[HERE].create_queue("a", QueueDescription(max_delivery_count=3))

        [drifted] = (await provisioned(emulator, layout(Queue("a")), on_event=in_between)).of(Outcome.DRIFTED)
        assert drifted.reason == "MaxDeliveryCount is 3 and should be 10"


@pytest.mark.parametrize(
    ("status", "sub_code", "seconds"), [(429, 50004, 33), (500, None, None), (503, 50009, None), (409, 40901, None)]
)
async def test_transient_error_is_retried_as_late_as_the_service_asks(
    status: int, sub_code: int | None, seconds: int | None
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async with open_emulator() as emulator:
        refusal = {"sub_code": sub_code, "retry_after_seconds": seconds}
        emulator.faults.refuse_requests(HERE, status, "a", method="PUT", count=2, **refusal)
        events: list[object] = []
        report = await provisioned(emulator, layout(Queue("a")), on_event=events.append, sleep=sleep)
        assert provision_exit_code(report) == 0
        assert names(report, Outcome.CREATED, HERE) == ["a"]
        assert sum(isinstance(each, Retrying) for each in events) == 2
        assert (seconds or 0) <= max(waited) <= 1.5 * (seconds or 10)


async def test_failed_entity_and_its_dependents_are_named_and_others_created() -> None:
    async with open_emulator() as emulator:
        emulator.faults.refuse_requests(HERE, 500, "events", method="PUT")
        report = await provisioned(emulator)
        assert provision_exit_code(report) == 3
        assert names(report, Outcome.FAILED, HERE) == ["events"]
        waiting = [each.path for each in LAYOUT.entities if each.path.startswith("events/")]
        assert names(report, Outcome.NOT_TRIED, HERE) == waiting
        assert "needs events" in report.of(Outcome.NOT_TRIED)[0].reason
        made = {item.name for item in report.of(Outcome.CREATED) if item.detail and item.detail.namespace == HERE}
        assert made == {each.path for each in LAYOUT.entities} - {"events", *waiting}
        assert names(report, Outcome.FAILED, THERE) == []


async def test_subscription_with_a_refused_rule_selects_no_other_messages() -> None:
    refused = "events/Subscriptions/audit/Rules/urgent"
    async with open_emulator() as emulator:
        emulator.faults.refuse_requests(HERE, 500, refused, method="PUT")
        assert names(await provisioned(emulator), Outcome.FAILED, HERE) == [refused]
        audit = emulator.namespaces[HERE].topic("events").subscription("audit")
        assert [each.name for each in audit.rules] == ["europe"]
        emulator.faults.end_all()
        assert names(await provisioned(emulator), Outcome.CREATED, HERE) == [refused]
        assert provision_exit_code(await provisioned(emulator), strict=True) == 0


COMPARED = {
    "n": ("5", 5),
    "big": ("3000000000", 3_000_000_000),
    "x": ("1.5", 1.5),
    "flag": ("true", True),
    "at": ("2026-01-01T13:00:00+01:00", Timestamp(1_767_268_800_000)),
    "text": ("'5 <&>'", "5 <&>"),
}
RULES = {
    **{name: f"correlation.properties.{name} = {toml}" for name, (toml, _) in COMPARED.items()},
    "sql": """sql = "a < 'b'"\naction = "SET a = '<'\"""",
    "none": "sql = '1=0'",
    "every": "action = 'SET b = 1'",
}


async def test_first_rule_comes_with_its_subscription_and_compares_typed_values() -> None:
    tables = (f"[topics.t.subscriptions.{{}}.rules.{name}]\n{text}\n" for name, text in RULES.items())
    written = "".join(each.format(name) + each.format("all") for name, each in zip(RULES, tables, strict=True))
    document = parse_entities(written, "e.toml")
    async with open_emulator() as emulator:
        for name in RULES:  # no request is made for a first rule, or for one that is not there
            emulator.faults.refuse_requests(HERE, 403, f"t/Subscriptions/{name}/Rules/{name}", method="PUT")
            emulator.faults.refuse_requests(HERE, 403, f"t/Subscriptions/{name}/Rules/$Default", method="DELETE")
        for outcome in (Outcome.CREATED, Outcome.EXISTING):
            assert {each.outcome for each in await provisioned(emulator, document)} == {outcome}
        topic = emulator.namespaces[HERE].topic("t")
        for name in RULES:
            [first], other = topic.subscription(name).rules, topic.subscription("all").find_rule(name)
            assert (first.name, first.action) == (name, other.action)
            if name in COMPARED:
                compared = [[(each.kind, each.value) for _, each in rule.filter.properties] for rule in (first, other)]
                assert compared[0] == compared[1]
                assert dict(first.filter.properties)[name].original == COMPARED[name][1]
            else:
                assert first.filter == other.filter


async def test_closed_rule_of_an_earlier_version_is_removed_at_last() -> None:
    async with open_emulator() as emulator:
        topic, audit = Topic("events"), Subscription("events", "audit")
        async with open_atom(pair_on(emulator, 1).primary) as control:
            await control.create(topic)
            await control.create_with_rule(audit, Rule("events", "audit", "$Default", SqlFilter("1=0")))
        await provisioned(emulator)
        made = emulator.namespaces[HERE].topic("events").subscription("audit")
        assert [each.name for each in made.rules] == ["europe", "urgent"]


@pytest.mark.parametrize("status", [401, 403])
async def test_access_refused_midway_reports_creations_and_stops(status: int) -> None:
    async with open_emulator() as emulator:
        emulator.faults.refuse_requests(THERE, status, "second", method="PUT")
        many = layout(*(Queue(f"q{number}") for number in range(60)), Queue("second"), *LAYOUT.entities[4:5])
        report = await provisioned(emulator, many, count=40)
        assert provision_exit_code(report) == 5
        assert [item.name for item in report.of(Outcome.FAILED)] == ["second"]
        assert report.of(Outcome.NOT_TRIED)
        told = {f"{item.detail.namespace}:{item.name}" for item in report.of(Outcome.CREATED) if item.detail}
        assert told == {each for each in everything(emulator) if "$Default" not in each}
        assert len(list(report)) == 2 * len(many.entities) + 40


async def test_access_refused_at_the_start_creates_nothing() -> None:
    async with open_emulator() as emulator:
        emulator.namespaces[HERE].keys = (AuthorizationRule("listen", "key", "other", frozenset({AccessRight.LISTEN})),)
        with pytest.raises(errors.AccessError):
            await provisioned(emulator)
        assert everything(emulator) == set()


async def test_stop_ends_pending_calls_and_reports_creations() -> None:
    def made(event: object) -> bool:
        return getattr(event, "outcome", "") == Outcome.CREATED

    async with open_emulator() as emulator:
        stop = asyncio.Event()
        # The first that is done is the sign to stop.
        report = await provisioned(emulator, count=200, stop=stop, on_event=lambda event: made(event) and stop.set())
        told = {f"{item.detail.namespace}:{item.name}" for item in report.of(Outcome.CREATED) if item.detail}
        assert told == {each for each in everything(emulator) if "$Default" not in each}
        assert report.of(Outcome.CREATED)
        assert report.of(Outcome.NOT_TRIED)
        assert not report.of(Outcome.FAILED)
        assert len(list(report)) >= 2 * len(LAYOUT.entities) + 200


async def test_a_stop_before_anything_was_read_says_that_nothing_was_tried() -> None:
    async with open_emulator() as emulator:
        stop = asyncio.Event()
        stop.set()
        report = await provisioned(emulator, stop=stop)
        assert {item.outcome for item in report} == {Outcome.NOT_TRIED}
        assert everything(emulator) == set()


def opening(create: Callable[[Any, Any], Awaitable[bool]]) -> Any:
    """Return an opener of namespaces in which `create` stands for their own creation, which it gets."""

    @asynccontextmanager
    async def opens(endpoint: Endpoint) -> AsyncIterator[AtomNamespace]:
        async with open_atom(endpoint) as control:
            control.create_with_rule = partial(create, control.create_with_rule)
            control.create = partial(create, control.create)
            yield control

    return opens


async def test_call_without_answer_at_a_stop_is_in_doubt() -> None:
    async with open_emulator() as emulator:
        stop = asyncio.Event()

        async def silent(create: Any, entity: object, *rule: Rule) -> bool:
            await create(entity, *rule)
            stop.set()
            return await asyncio.Event().wait()

        report = await provisioned(emulator, layout(), count=1, stop=stop, opens=opening(silent), grace_seconds=0.0)
        [doubtful] = report.of(Outcome.FAILED)
        assert "it may exist" in doubtful.reason
        assert everything(emulator) == {f"{THERE}:{doubtful.name}"}


async def test_creation_without_answer_is_recognised() -> None:
    unanswered = {each.path for each in LAYOUT.entities}

    async def silent(create: Any, entity: Queue, *rule: Rule) -> bool:
        created: bool = await create(entity, *rule)
        if entity.path in unanswered:
            unanswered.remove(entity.path)
            raise errors.TimedOut("no answer")
        return created

    async with open_emulator() as emulator:
        report = await provisioned(emulator, opens=opening(silent))
        assert {item.outcome for item in report} == {Outcome.CREATED}
        assert not unanswered
        assert not any(each.endswith("audit/$Default") for each in everything(emulator))


async def test_a_name_that_is_taken_while_queues_are_created_is_a_failed_item() -> None:
    async with open_emulator() as emulator:
        path = "contoso/x-servicebus-transfer/1"
        emulator.faults.refuse_requests(THERE, 409, path, method="PUT", sub_code=40900)
        report = await provisioned(emulator, layout())
        assert [(item.name, "not by a queue" in item.reason) for item in report.of(Outcome.FAILED)] == [(path, True)]
        assert len(report.of(Outcome.CREATED)) == 1


async def test_taken_name_and_its_dependents_are_reported() -> None:
    async with open_emulator() as emulator:
        emulator.namespaces[HERE].create_queue("events", QueueDescription())
        for dry_run in (True, False):
            report = await provisioned(emulator, dry_run=dry_run)
            assert names(report, Outcome.FAILED, HERE) == ["events"]
            assert provision_exit_code(report) == 3
        assert "events/Subscriptions/audit" in names(report, Outcome.NOT_TRIED, HERE)


REFUSED = [
    (layout(Queue("a", forward_to="nowhere")), "standard", "forwards to nowhere, which does not exist in contoso"),
    (layout(Subscription("nowhere", "s")), "standard", "needs the topic nowhere"),
    (
        layout(Queue("a", max_size_in_megabytes=81_920)),
        "standard",
        "expected 1024, 2048, 3072, 4096 or 5120, got 81920",
    ),
    (layout(Queue("a", max_message_size_in_kilobytes=1024)), "standard", "expected 256, got 1024 in a Standard"),
    (
        layout(Queue("a", max_message_size_in_kilobytes=256)),
        "premium",
        "expected from 1024 to 102400, got 256 in a Premium",
    ),
    (layout(Topic("a", enable_partitioning=True)), "premium", "contoso is a Premium namespace that is not partitioned"),
    (layout(*(Queue(f"q{n}", enable_partitioning=True) for n in range(101))), "standard", "no room for 101 more"),
    (layout(Topic("a")), "basic", "topics do not exist in a Basic"),
    (layout(Queue("a", requires_session=True)), "basic", "requires_session of queue a: it is not available"),
    (layout(Queue("a", auto_delete_on_idle="PT1H")), "basic", "auto_delete_on_idle of queue a: it is not available"),
    (layout(Queue("a", default_message_time_to_live="P15D")), "basic", "at most 14 days"),
    (layout(), "basic", "default_message_time_to_live of queue contoso/x-servicebus-transfer/0"),
]


@pytest.mark.parametrize(("wanted", "tier", "told"), REFUSED)
async def test_refusals_of_the_tier_are_reported_before_any_creation(
    wanted: EntitiesDocument, tier: str, told: str
) -> None:
    async with open_emulator(tier) as emulator:
        with pytest.raises(errors.UsageError) as caught:
            await provisioned(emulator, wanted)
        assert told in "".join(each.message for each in (caught.value, *caught.value.others))
        assert everything(emulator) == set()


async def test_all_refusals_of_the_tier_come_at_once_with_their_lines() -> None:
    text = "[queues.a]\nrequires_session = true\nauto_delete_on_idle = '1h'\n[topics.t]\n"
    async with open_emulator("basic", "standard") as emulator:
        with pytest.raises(errors.UsageError) as caught:
            await provisioned(emulator, parse_entities(text, "e.toml"))
        found = sorted(each.message for each in (caught.value, *caught.value.others))
        assert [each.split(": ")[0] for each in found] == ["e.toml:2:1", "e.toml:3:1", "e.toml:4:9"]
        assert not [each for each in everything(emulator) if "$" not in each]


async def test_partitioned_entity_101_is_refused_before_any_creation() -> None:
    async with open_emulator() as emulator:
        there = emulator.namespaces[THERE]
        for number in range(98):
            there.create_queue(f"q{number}", QueueDescription(enable_partitioning=True))
        wanted = layout(*(Queue(name, enable_partitioning=True) for name in ("q0", "a", "b", "c")))
        before = everything(emulator)
        for dry_run in (True, False):
            with pytest.raises(errors.UsageError, match=f"{THERE} has 98: no room for 3 more"):
                await provisioned(emulator, wanted, dry_run=dry_run)
        assert everything(emulator) == before
        fitting = await provisioned(emulator, layout(*wanted.entities[:3]))
        assert provision_exit_code(fitting, strict=True) == 0
        assert len(names(fitting, Outcome.CREATED, THERE)) == 2 + 2


@pytest.mark.parametrize("asking", [False, True])
async def test_partitioned_premium_namespace_partitions_every_entity(asking: bool) -> None:
    async with open_emulator("premium", "premium", 2) as emulator:
        wanted = layout(
            Queue("a", max_size_in_megabytes=5120, enable_partitioning=asking), Topic("t", enable_partitioning=asking)
        )
        for outcome in (Outcome.CREATED, Outcome.EXISTING):
            report = await provisioned(emulator, wanted, count=20)
            assert {item.outcome for item in report} == {outcome}
        queues = [queue.description for name in (HERE, THERE) for queue in emulator.namespaces[name].queues()]
        assert len(queues) == 22
        assert all(each.enable_partitioning and each.max_size_in_megabytes == 5120 for each in queues)


@pytest.mark.parametrize(("tier", "other", "partitions"), [("basic", "standard", 1), ("premium", "premium", 4)])
async def test_default_of_the_tier_is_no_drift(tier: str, other: str, partitions: int) -> None:
    async with open_emulator(tier, other, partitions) as emulator:
        for outcome in (Outcome.CREATED, Outcome.EXISTING):
            report = await provisioned(emulator, layout(Queue("a")))
            assert {item.outcome for item in report} == {outcome}


@pytest.mark.parametrize(
    "wanted",
    [
        layout(Queue("a", lock_duration="PT6M")),
        layout(Queue("contoso/x-servicebus-transfer/3")),
        layout(Queue("a"), Topic("A")),
    ],
)
async def test_violations_are_reported_before_any_call(wanted: EntitiesDocument) -> None:
    with pytest.raises(errors.UsageError):
        await provision(unconnected_pair(1), entities=wanted)
