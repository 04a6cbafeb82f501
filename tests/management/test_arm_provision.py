"""Provisioning through Azure Resource Manager: the same entities as over Atom, and the same refusals."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from sbpair import errors
from sbpair.amqp.message import Sections
from sbpair.azure import NamespaceControl, open_namespace
from sbpair.azure.arm import manager_route
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.management.auditing import audit
from sbpair.management.entities_file import parse_entities
from sbpair.management.provisioning import provision, provision_exit_code
from sbpair.model.entities import AnyEntity, CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.model.pair import Endpoint, Identity, Pair, ResourceGroup, SasKey
from sbpair.model.queues import QueueSpec
from sbpair.model.report import Outcome
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.pairs import pair_on, use_identity
from tests.kit.waiting import no_wait

GROUP = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
VIA = {"atom": None, "arm": GROUP}
FIRST = "contoso/x-servicebus-transfer/0"
ENTITIES: list[AnyEntity] = [
    Queue("billing/invoices", lock_duration="PT30S", requires_session=True, user_metadata="it's ours"),
    Queue("orders", requires_duplicate_detection=True, duplicate_detection_history_time_window="PT1H"),
    Queue("split", enable_partitioning=True, max_size_in_megabytes=5120, forward_to="orders", status="SendDisabled"),
    Topic("events/all", enable_partitioning=True, default_message_time_to_live="P14D", support_ordering=False),
    Subscription("events/all", "audit", max_delivery_count=3, forward_dead_lettered_messages_to="billing/invoices"),
    Rule("events/all", "audit", "big", SqlFilter("size > 10 AND kind = 'x'"), "SET seen = 1"),
    Rule("events/all", "audit", "ours", CorrelationFilter(label="x", properties=(("a", "b"), ("c", "d")))),
    Rule("events/all", "audit", "none", SqlFilter("1=0")),
]


@asynccontextmanager
async def open_pair(monkeypatch: pytest.MonkeyPatch, *tier: object) -> AsyncIterator[tuple[Emulator, Pair]]:
    wanted = [("contoso", 0), ("contoso-dr", 0, *tier)]
    async with Emulator(wanted, options=EmulatorOptions(identity=True)) as emulator:
        use_identity(emulator, monkeypatch)
        yield emulator, pair_on(emulator)


async def both(stack: AsyncExitStack, endpoint: Endpoint) -> tuple[NamespaceControl, NamespaceControl]:
    atom = await stack.enter_async_context(open_namespace(endpoint))
    return atom, await stack.enter_async_context(open_namespace(endpoint, GROUP))


LAYOUT = parse_entities(
    """
    [queues.orders]
    forward_dead_lettered_messages_to = "billing/failures"
    [queues."billing/failures"]
    [topics.events.subscriptions.audit]
    forward_to = "orders"
    [topics.events.subscriptions.audit.rules.europe]
    sql = "region = 'eu'"
    """,
    "entities.toml",
)


def emptied(namespace: Namespace) -> list[QueueDescription]:
    """Delete the entities of LAYOUT and all other queues, and return how the queues were described."""
    [rule] = namespace.topic("events").subscription("audit").rules
    assert rule.name == "europe"
    namespace.delete_topic("events")
    found = namespace.queues()
    for queue in found:
        namespace.delete_queue(queue.path)
    return [queue.description for queue in found]


@pytest.mark.parametrize("tier", [(), ("premium", 2)])
async def test_a_pair_gets_the_same_entities_either_way(
    tier: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pair(monkeypatch, *tier) as (emulator, pair):
        made = []
        for group in VIA.values():
            report = await provision(pair, group=group, entities=LAYOUT)
            assert {item.outcome for item in report} == {Outcome.CREATED}
            for other in VIA.values():
                again = await provision(pair, group=other, entities=LAYOUT)
                assert [item.outcome for item in again] == [Outcome.EXISTING] * len(report.items)
            async with AsyncExitStack() as stack:
                by_atom, by_arm = [await each.list_under("") for each in await both(stack, pair.secondary)]
            assert by_atom == by_arm
            primary, secondary = map(emptied, emulator.namespaces.values())
            assert [queue.enable_partitioning for queue in secondary] == [bool(tier)] * 5
            assert [queue.max_size_in_megabytes for queue in secondary].count(5120) == 3
            made.append((by_atom, primary, secondary))
        assert made[0] == made[1]


@pytest.mark.parametrize("first", VIA)
async def test_entities_of_every_kind_read_the_same_whichever_client_made_them(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pair(monkeypatch) as (_, pair), AsyncExitStack() as stack:
        atom, arm = await both(stack, pair.secondary)
        maker = {"atom": atom, "arm": arm}[first]
        for entity in ENTITIES:
            assert await maker.create(entity)
            assert not await arm.create(entity)
            assert not await atom.create(entity)
            read = await arm.read(entity)
            assert read == await atom.read(entity)
            if isinstance(read, (Queue, Topic)):
                read = replace(read, max_message_size_in_kilobytes=None)
            assert read == entity
        await arm.delete_rule(Rule("events/all", "audit", "$Default"))
        await arm.delete_rule(Rule("events/all", "audit", "$Default"))
        assert await arm.list_all(Queue) == await atom.list_all(Queue)
        assert await arm.list_all(Topic) == await atom.list_all(Topic)
        assert await arm.rules("events/all", "audit") == await atom.rules("events/all", "audit")
        assert len(await arm.rules("events/all", "audit")) == 3
        assert [each.name for each in await atom.subscriptions("events/all")] == ["audit"]
        assert await atom.subscriptions("unheard-of") == []


async def test_a_premium_queue_is_not_taken_for_sixteen_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(monkeypatch, "premium", 2) as (_, pair), AsyncExitStack() as stack:
        atom, arm = await both(stack, pair.secondary)
        assert (await arm.capacity()).tier.name == "Premium"
        assert await arm.create(Queue("orders", max_size_in_megabytes=81920, enable_partitioning=True))
        assert (await arm.read(Queue("orders"))).max_size_in_megabytes == 81920
        assert await arm.read(Queue("orders")) == await atom.read(Queue("orders"))


async def test_an_audit_finds_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(monkeypatch) as (emulator, pair):
        there = emulator.namespaces["contoso-dr"]
        there.create_queue(FIRST, QueueDescription(max_size_in_megabytes=5120, enable_partitioning=True))
        held = there.create_queue("contoso/x-servicebus-transfer/7")
        held.send([StoredMessage(Sections(), 1_000)])
        there.create_queue("fabrikam/x-servicebus-transfer/0")
        now = emulator.clock.now_ms() / 1000 + 60
        found = [
            await audit(pair, group=group, max_peek=0, sample_seconds=0, now=lambda: now) for group in VIA.values()
        ]
        assert found[0] == found[1]
        outcomes = [Outcome.DRIFTED, Outcome.MISSING, Outcome.MISSING, Outcome.EXTRA, Outcome.FOREIGN]
        assert [item.outcome for item in found[0]] == outcomes
        [fill] = [item.detail.fill for item in found[0].of(Outcome.EXTRA) if item.detail]
        assert fill.size_bytes == 1_000
        assert fill.idle_seconds is not None


async def test_existing_entities_are_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(monkeypatch) as (emulator, pair):
        namespace = emulator.namespaces["contoso-dr"]
        namespace.create_queue(FIRST, QueueDescription(max_delivery_count=10))
        report = await provision(pair, group=GROUP)
        assert [item.name for item in report.of(Outcome.DRIFTED)] == [FIRST]
        async with open_namespace(pair.secondary, GROUP) as arm:
            assert not await arm.create(QueueSpec(FIRST, max_delivery_count=5))
        assert namespace.queue(FIRST).description == QueueDescription(max_delivery_count=10)


async def test_concurrent_provision_runs_both_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(monkeypatch) as (emulator, pair):
        groups = [GROUP, GROUP, None]
        reports = await asyncio.gather(*(provision(pair, group=group, sleep=no_wait) for group in groups))
        assert all(provision_exit_code(report, strict=True) == 0 for report in reports)
        assert len(emulator.namespaces["contoso-dr"].queues()) == 3


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize(
    ("status", "sub_code", "raised"),
    [
        (401, None, errors.NotAuthenticated),
        (403, None, errors.NotAuthorized),
        (403, 40300, errors.ServiceRefused),
        (409, None, errors.Unavailable),
        (429, None, errors.Throttled),
        (429, 40901, errors.Unavailable),
        (500, None, errors.Unavailable),
        (503, None, errors.Unavailable),
    ],
)
async def test_a_refusal_means_the_same_either_way(
    via: str, status: int, sub_code: int | None, raised: type[errors.SbpairError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pair(monkeypatch) as (emulator, pair), open_namespace(pair.secondary, VIA[via]) as namespace:
        for method, action in {
            "GET": lambda: namespace.list_all(Queue),
            "PUT": lambda: namespace.create(Queue("orders")),
        }.items():
            emulator.faults.refuse_requests("contoso-dr", status, method=method, sub_code=sub_code, count=1)
            with pytest.raises(errors.SbpairError) as caught:
                await action()
            # A link takes the key that a list was refused for: it lacks Manage.
            lacks_manage = (status, via, method) == (401, "atom", "GET")
            assert type(caught.value) is (errors.NotAuthorized if lacks_manage else raised)
            assert caught.value.hint
            assert "\n" not in caught.value.message + caught.value.hint
        assert await namespace.create(Queue("orders"))


@pytest.mark.parametrize("via", VIA)
async def test_a_conflict_over_a_name_is_a_name_that_was_taken(via: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(monkeypatch) as (emulator, pair):
        emulator.faults.refuse_requests("contoso-dr", 409, "orders", method="PUT", sub_code=40900)
        emulator.namespaces["contoso-dr"].create_topic("taken")
        emulator.namespaces["contoso-dr"].create_queue("split")
        async with open_namespace(pair.secondary, VIA[via]) as namespace:
            assert not await namespace.create(Queue("orders"))
            assert not await namespace.create(Queue("taken"))
            for entity, error in (
                (Queue("taken"), errors.NameTaken),
                (Topic("split"), errors.NameTaken),
                (Topic("missing"), errors.EntityMissing),
                (Subscription("taken", "missing"), errors.EntityMissing),
            ):
                with pytest.raises(error):
                    await namespace.read(entity)


@pytest.mark.parametrize("via", VIA)
async def test_one_queue_that_is_refused_is_named_and_the_others_are_made(
    via: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pair(monkeypatch) as (emulator, pair):
        emulator.faults.refuse_requests("contoso-dr", 500, FIRST, method="PUT")
        report = await provision(pair, group=VIA[via], sleep=no_wait)
        (failed,) = report.of(Outcome.FAILED)
        assert (failed.name, failed.exit_code) == (FIRST, 6)
        assert len(report.of(Outcome.CREATED)) == 2
        assert provision_exit_code(report) == 3


async def test_wrong_resource_group_is_reported_before_any_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(monkeypatch) as (_, pair):
        elsewhere = replace(pair, secondary=replace(pair.secondary, name="fabrikam"))
        with pytest.raises(errors.UsageError, match="no namespace fabrikam in that") as caught:
            await provision(elsewhere, group=GROUP, sleep=no_wait)
        assert "--resource-group" in caught.value.hint
        async with open_namespace(elsewhere.secondary, GROUP) as namespace:
            with pytest.raises(errors.UsageError, match="no namespace fabrikam in that"):
                await namespace.capacity()


def test_no_token_of_resource_manager_travels_without_tls() -> None:
    elsewhere = Endpoint("contoso", "emulator:5672", "emulator", 5672, False, Identity(), emulator=True)
    with pytest.raises(errors.UsageError, match="without TLS to emulator"):
        manager_route(elsewhere)
    assert manager_route(replace(elsewhere, host="127.0.0.1"))[0].scheme == "http"
    assert manager_route(replace(elsewhere, tls=True))[0].scheme == "https"


@pytest.mark.parametrize(
    ("host", "manager"),
    [
        ("contoso.servicebus.windows.net", "management.azure.com"),
        ("contoso.servicebus.usgovcloudapi.net", "management.usgovcloudapi.net"),
        ("Contoso.servicebus.chinacloudapi.cn", "management.chinacloudapi.cn"),
    ],
)
def test_a_namespace_is_managed_in_its_own_cloud(host: str, manager: str) -> None:
    endpoint = Endpoint("contoso", host, host, 5671, tls=True, credential=Identity())
    road, (scope,) = manager_route(endpoint)
    assert (road.scheme, road.netloc, road.authority) == ("https", manager, manager)
    assert scope.startswith("https://management.")
    assert scope.endswith("/.default")


def test_local_endpoint_is_never_looked_for_in_azure() -> None:
    host = "contoso.servicebus.windows.net"
    endpoint = Endpoint("contoso", host, "127.0.0.1", 5673, tls=True, credential=SasKey("Root", "key"))
    assert manager_route(endpoint)[0].netloc == "127.0.0.1:5673"
    with pytest.raises(errors.UsageError, match=r"bus\.example\.com is in no known cloud of Azure"):
        manager_route(replace(endpoint, authority="bus.example.com", host="bus.example.com"))


@pytest.mark.parametrize(
    ("subscription", "name"),
    [
        ("", "group"),
        ("mine", "group"),
        ("00000000-0000-0000-0000-00000000000", "group"),
        ("00000000-0000-0000-0000-000000000000\n", "group"),
        ("00000000-0000-0000-0000-000000000000", ""),
        ("00000000-0000-0000-0000-000000000000", "a/b"),
        ("00000000-0000-0000-0000-000000000000", "ends."),
        ("00000000-0000-0000-0000-000000000000", "x" * 91),
        ("00000000-0000-0000-0000-000000000000", "a b"),
    ],
)
def test_invalid_resource_group_is_refused(subscription: str, name: str) -> None:
    with pytest.raises(errors.UsageError):
        ResourceGroup(subscription, name)
