"""The entities of a live secondary, compared with those of the live primary and created from them, on the emulator."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.azure.atom import open_atom
from sbpair.backlog import queue_spec
from sbpair.emulator.entities.rules import SubscriptionRule as EmulatedRule
from sbpair.management.audit_findings import audit_exit_code
from sbpair.management.auditing import audit
from sbpair.management.entities_file import EntitiesDocument
from sbpair.management.provisioning import EntityReport, provision, provision_exit_code
from sbpair.model.entities import AnyEntity, CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.model.pair import Pair, ResourceGroup, SasKey
from sbpair.model.report import AuditFinding, Outcome
from sbpair.rules.filters import CorrelationRuleFilter, SqlRuleFilter
from sbpair.rules.values import read_typed
from sbpair.testing import Emulator
from tests.kit.pairs import pair_on
from tests.kit.waiting import no_wait

LAYOUT: list[AnyEntity] = [
    Queue("failures"),
    Queue("orders", requires_session=True, forward_dead_lettered_messages_to="failures", user_metadata="o"),
    Topic("events", requires_duplicate_detection=True, max_size_in_megabytes=2048),
    Subscription("events", "all"),
    Subscription("events", "eu", max_delivery_count=3, forward_to="failures"),
    Rule("events", "eu", "europe", SqlFilter("region = 'eu'"), "SET seen = 1"),
    Rule("events", "eu", "urgent", CorrelationFilter(label="urgent", properties=(("tenant", "a"),))),
]
FIVE = read_typed("short", "5")


class Mirror:
    """Two namespaces, the first with entities as given, and what both have after that."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.pair = pair_on(emulator, 1)

    async def create(self, side: Any, *entities: AnyEntity) -> None:
        report = await provision(self.pair, entities=EntitiesDocument(entities), side=side, sleep=no_wait)
        assert not report.of(Outcome.FAILED, Outcome.NOT_TRIED)

    async def provision(self, **options: Any) -> EntityReport:
        return await provision(self.pair, mirror=True, sleep=no_wait, **options)

    async def differing(self) -> list[tuple[Outcome, str, bool]]:
        """Audit, and return what is not the same, in order, with whether it alters messages."""
        found = await audit(self.pair, mirror=True, sample_seconds=0, sleep=no_wait)
        items = [item for item in found.mirror if item.outcome is not Outcome.OK]
        failing = any(item.outcome is not Outcome.EXTRA for item in items)
        assert (AuditFinding.MIRROR in found.findings) == failing
        assert audit_exit_code(found, {AuditFinding.MIRROR}) == (3 if failing else 0)
        return [(item.outcome, item.name, bool(item.detail and item.detail.alters)) for item in items]

    async def everything(self, name: str) -> dict[str, object]:
        """Return all that a namespace has, as its service writes it, without hosts and times."""
        namespace, found = self.emulator.namespaces[name], {}
        async with open_atom(self.pair.primary if name == "contoso" else self.pair.secondary) as atom:
            for kind, paths in (
                ("queue", [each.path for each in namespace.queues()]),
                ("topic", [each.path for each in namespace.topics()]),
                (
                    "subscription",
                    [f"{of.path}/subscriptions/{each.name}" for of in namespace.topics() for each in of.subscriptions],
                ),
            ):
                for path in paths:
                    found[path] = {
                        element: re.sub("^sb://[^/]+/", "", text)
                        for element, text in (await atom.description(path, kind)).items()
                        if not element.endswith("At")
                    }
            for topic in namespace.topics():
                for each in topic.subscriptions:
                    found[f"{topic.path}/{each.name}"] = await atom.rules(topic.path, each.name)
        return found


@asynccontextmanager
async def mirror(*entities: AnyEntity, tier: str = "standard", other: str = "") -> AsyncIterator[Mirror]:
    async with Emulator([("contoso", 0, tier, 1), ("contoso-dr", 0, other or tier, 1)]) as emulator:
        found = Mirror(emulator)
        await found.create("primary", *entities)
        yield found


async def test_a_mirror_creates_all_that_is_missing_and_leaves_the_primary_alone() -> None:
    async with mirror(*LAYOUT) as m:
        m.emulator.namespaces["contoso"].create_queue(queue_spec("other", 0).path)
        m.emulator.namespaces["contoso"].find_topic("events").create_subscription("none").remove_rule("$Default")
        before = await m.everything("contoso")
        planned = await m.provision(dry_run=True)
        assert {item.outcome for item in planned} == {Outcome.WOULD_CREATE}
        missing = [(Outcome.MISSING, item.name, False) for item in planned if item.detail and item.detail.index is None]
        assert sorted(await m.differing()) == sorted(missing)
        made = await m.provision()
        assert {item.name for item in made.of(Outcome.CREATED, Outcome.EXISTING)} == {item.name for item in planned}
        assert await m.everything("contoso") == before
        there = await m.everything("contoso-dr")
        assert there.pop(queue_spec("contoso", 0).path)
        expected = {name: each for name, each in before.items() if "transfer" not in name}
        assert there == expected
        assert (there["events/none"], len(there["events/eu"])) == ([], 2)
        assert await m.differing() == []
        assert not (await m.provision()).of(Outcome.CREATED, Outcome.DRIFTED)


ALTERED = [
    (Queue("q", requires_session=True), Queue("q"), True),
    (Queue("q"), Queue("q", requires_session=True), True),
    (Queue("q", requires_duplicate_detection=True), Queue("q"), True),
    (Queue("q"), Queue("q", enable_partitioning=True), True),
    (Queue("q"), Queue("q", default_message_time_to_live="PT1H"), True),
    (Queue("q", default_message_time_to_live="PT1H"), Queue("q"), False),
    (Queue("q"), Queue("q", auto_delete_on_idle="PT1H"), True),
    (Queue("q"), Queue("q", status="SendDisabled"), True),
    (Queue("q", status="Disabled"), Queue("q"), False),
    (Queue("q"), Queue("q", forward_to="a"), True),
    (Queue("q", dead_lettering_on_message_expiration=True), Queue("q"), True),
    (Queue("q"), Queue("q", dead_lettering_on_message_expiration=True), False),
    (Queue("q"), Queue("q", lock_duration="PT30S", max_delivery_count=3, user_metadata="x"), False),
    (Rule("t", "s", "r", SqlFilter("a = 1")), Rule("t", "s", "r", SqlFilter("a = 2")), True),
    (Rule("t", "s", "r", SqlFilter("a = 1")), Rule("t", "s", "r", SqlFilter("a = 1"), "SET b = 1"), True),
]


@pytest.mark.parametrize(("here", "there", "alters"), ALTERED)
async def test_a_difference_that_alters_messages_is_named(here: AnyEntity, there: AnyEntity, alters: bool) -> None:
    below: list[AnyEntity] = [Topic("t"), Subscription("t", "s")] if isinstance(here, Rule) else []
    async with mirror(Queue("a"), *below, here) as m:
        await m.create("secondary", Queue("a"), *below, there)
        assert await m.differing() == [(Outcome.DRIFTED, here.path, alters)]
        before = await m.everything("contoso-dr")
        assert [item.name for item in (await m.provision()).of(Outcome.DRIFTED)] == [here.path]
        assert await m.everything("contoso-dr") == before


async def test_a_smaller_message_size_alters_messages() -> None:
    async with mirror(Queue("q", max_message_size_in_kilobytes=4096), tier="premium") as m:
        await m.create("secondary", Queue("q"))
        assert await m.differing() == [(Outcome.DRIFTED, "q", True)]


async def test_a_larger_message_size_is_no_difference() -> None:
    async with mirror(Queue("q"), other="premium") as m:
        await m.provision()
        assert await m.differing() == []


async def test_what_refuses_or_alters_messages_comes_first() -> None:
    plain = [Queue("a"), Topic("t"), Subscription("t", "s"), Queue("z")]
    async with mirror(*plain, Rule("t", "s", "r"), Queue("missing")) as m:
        changed = [Queue("a", lock_duration="PT5S"), *plain[1:3], Queue("z", requires_session=True), Queue("own")]
        await m.create("secondary", *changed, Rule("t", "s", "r"), Rule("t", "s", "more"))
        m.emulator.namespaces["contoso-dr"].find_topic("t").create_subscription("extra")
        found = await m.differing()
        assert found[-3:] == [
            (Outcome.DRIFTED, "a", False),
            (Outcome.EXTRA, "own", False),
            (Outcome.EXTRA, "t/Subscriptions/extra", False),
        ]
        assert sorted(found[:-3]) == [
            (Outcome.DRIFTED, "t/Subscriptions/s", True),
            (Outcome.DRIFTED, "z", True),
            (Outcome.MISSING, "missing", False),
        ]


async def test_a_rule_that_cannot_be_copied_exactly_is_refused_and_drops_nothing() -> None:
    async with mirror(Topic("t"), Subscription("t", "s"), Rule("t", "s", "text", SqlFilter("a = 1"))) as m:
        subscription = m.emulator.namespaces["contoso"].find_topic("t").find_subscription("s")
        subscription.add_rule(EmulatedRule("typed", CorrelationRuleFilter(properties=(("n", FIVE),)), None))
        copied = CorrelationRuleFilter(properties=(("n", read_typed("int", "5")), ("x", read_typed("double", "1.5"))))
        subscription.add_rule(EmulatedRule("copied", copied, None))
        subscription.add_rule(EmulatedRule("limit", SqlRuleFilter("n < @n", (("@n", FIVE),)), None))
        report = await m.provision()
        reasons = {item.name.rpartition("/")[2]: item.reason for item in report.of(Outcome.FAILED)}
        assert reasons == {
            "typed": "it has values of other types than sbpair writes, and is not copied: n = 5 (short)",
            "limit": "it has values of other types than sbpair writes, and is not copied: @n = 5 (parameter short)",
        }
        assert provision_exit_code(report) == 3
        # Messages for the missing rules arrive all the same.
        there = m.emulator.namespaces["contoso-dr"].find_topic("t").find_subscription("s")
        assert {rule.name for rule in there.rules} == {"$Default", "text", "copied"}
        assert there.find_rule("copied").filter == copied
        for name in ("typed", "limit"):
            there.add_rule(subscription.find_rule(name))
        there.remove_rule("$Default")
        assert await m.differing() == []


async def test_a_name_or_tier_that_rules_an_entity_out_stops_no_other() -> None:
    large = Queue("large", max_size_in_megabytes=10_240)
    wide = Queue("wide", max_message_size_in_kilobytes=2048)
    async with mirror(large, wide, Queue("plain"), Queue("news"), tier="premium", other="standard") as m:
        await m.create("secondary", Topic("news"))
        for report in (await m.provision(dry_run=True), await m.provision()):
            assert {item.name: item.reason for item in report.of(Outcome.FAILED)} == {
                "large": "max_size_in_megabytes of queue large: expected 1024, 2048, 3072, 4096 or 5120, got 10240 in a"
                " Standard namespace",
                "wide": "max_message_size_in_kilobytes of queue wide: expected 256, got 2048 in a Standard namespace",
                "news": "news is a topic in contoso-dr: rename or delete it",
            }
        # A default of the tier is no reason to leave an entity out; it is a difference.
        assert (Outcome.DRIFTED, "plain", True) in await m.differing()


async def no_manage(m: Mirror, name: str) -> Pair:
    namespace = m.emulator.namespaces[name]
    rights = frozenset({AccessRight.SEND, AccessRight.LISTEN})
    namespace.keys = (*namespace.keys, AuthorizationRule("few", "a-key", "b-key", rights))
    side = "primary" if name == "contoso" else "secondary"
    return replace(m.pair, **{side: replace(getattr(m.pair, side), credential=SasKey("few", "a-key"))})


@pytest.mark.parametrize("name", ["contoso", "contoso-dr"])
async def test_a_mirror_needs_manage_on_both_sides(name: str) -> None:
    async with mirror(Queue("q")) as m:
        m.pair = await no_manage(m, name)
        for attempt in (m.provision, m.differing):
            with pytest.raises(errors.AccessError, match=name) as refused:
                await attempt()
            assert refused.value.exit_code == 5
        assert not m.emulator.namespaces["contoso-dr"].queues()


async def test_a_lost_primary_and_other_sources_of_entities_are_refused() -> None:
    async with mirror(Queue("q")) as m:
        group = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
        for other in ({"group": group}, {"side": "secondary"}, {"entities": EntitiesDocument(tuple(LAYOUT))}):
            with pytest.raises(errors.UsageError, match="a mirror takes no group"):
                await m.provision(**other)
        m.pair = replace(m.pair, lost="primary")
        for attempt in (m.provision, m.differing):
            with pytest.raises(errors.PrimaryLost):
                await attempt()
        assert not m.emulator.namespaces["contoso-dr"].queues()


async def test_a_circle_of_forwards_is_refused_before_anything_is_created() -> None:
    async with mirror(Queue("c"), Queue("b", forward_to="c")) as m:
        namespace = m.emulator.namespaces["contoso"]
        to_b = namespace.queue("b").description.forward_to.replace("/c", "/b")
        namespace.queue("c").update(replace(namespace.queue("c").description, forward_dead_lettered_messages_to=to_b))
        for attempt in (m.provision, m.differing):
            with pytest.raises(errors.UsageError, match="in a circle: "):
                await attempt()
        assert not m.emulator.namespaces["contoso-dr"].queues()
