"""Status, audit and provisioning for another namespace than the primary, which is never contacted."""

from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.management.audit_findings import AuditFinding
from sbpair.management.auditing import audit
from sbpair.management.entities_file import parse_entities
from sbpair.management.provisioning import provision
from sbpair.model.pair import SasKey, Side
from sbpair.model.report import Outcome
from sbpair.move.message.renames import read_renames
from sbpair.status import read_status
from sbpair.testing import Emulator
from tests.kit.pairs import UNDER_CONTOSO
from tests.syphon.test_other_destination import LostWorld, lost_world

RENAMES = read_renames(["orders-v1=orders"])
ENTITIES = parse_entities("[queues.orders]\n[topics.events]\n[topics.events.subscriptions.all]\n", "entities.toml")


def found(destinations: Any) -> dict[str, bool | None]:
    return {each.name: each.found for each in destinations}


@pytest.mark.parametrize("name", ["contoso-dr", "fabrikam"])
async def test_destinations_are_sought_where_the_backlog_would_go(name: str) -> None:
    async with lost_world() as w:
        w.emulator.namespaces[name].create_queue("orders")
        w.strand(0, 1, to="orders-v1")
        w.strand(2, to="nowhere")
        made = await audit(w.pair, to=w.to(name), renames=RENAMES, sample_seconds=0)
        status = await read_status(w.pair, ["more"], to=w.to(name), renames=RENAMES)
        assert found(made.destinations) == {"nowhere": False, "orders": True}
        assert [each.reason for each in made.destinations if each.reason] == [f"{name} has no such queue or topic"]
        assert AuditFinding.DESTINATIONS in made.findings
        assert {each.link.name: (str(each.link.health), each.waiting) for each in status.entities} == {
            "more": ("broken", 0),
            "orders": ("up", 2),
            "nowhere": ("broken", 1),
        }
        assert [each.endpoint.name for each in status.sides.values()] == list(dict.fromkeys(["contoso-dr", name]))
        assert (status.primary, status.exit_code, made.unseen, status.unseen) == (None, 3, (), ())


async def test_without_another_namespace_a_lost_primary_is_asked() -> None:
    async with lost_world() as w:
        w.strand(0)
        status = await read_status(w.pair)
        assert status.primary
        assert (status.primary.answers, status.exit_code, w.connections > 0) == (False, 6, True)
        w.connections = 0


async def test_ways_back_to_the_backlog_are_said() -> None:
    async with lost_world() as w:
        back = f"{UNDER_CONTOSO}0"
        w.secondary.create_queue("orders", QueueDescription(forward_to=back))
        w.secondary.create_topic("events").create_subscription("s", SubscriptionDescription(forward_to=back))
        w.strand(0)
        w.strand(1, to="events")
        made = await audit(w.pair, to=w.pair.secondary, sample_seconds=0)
        assert [each.reason for each in made.destinations] == [
            f"messages would come back to the backlog: events -> events/subscriptions/s -> {back}",
            f"messages would come back to the backlog: orders -> {back}",
        ]


@pytest.mark.parametrize(("right", "messages"), [(AccessRight.LISTEN, 1), (AccessRight.SEND, None)])
async def test_without_manage_the_backlog_is_peeked_or_denied(right: AccessRight, messages: int | None) -> None:
    async with lost_world(2) as w:
        w.secondary.keys = (*w.secondary.keys, AuthorizationRule("own", "key", "other", frozenset({right})))
        w.pair = replace(w.pair, secondary=replace(w.pair.secondary, credential=SasKey("own", "key")))
        w.strand(0)
        w.strand(1, index=1)
        status = await read_status(w.pair, to=w.pair.secondary)
        assert [each.messages for each in status.queues] == ([] if messages is None else [messages, messages])
        assert {each.name for each in status.unseen} == {"contoso-dr"}
        assert status.denied is (messages is None)


# Provisioning


async def created(w: LostWorld, side: Side | None) -> set[tuple[str, str]]:
    report = await provision(w.pair, entities=ENTITIES, side=side)
    return {(item.detail.namespace, item.name) for item in report.of(Outcome.CREATED) if item.detail}


OF_FILE = {"orders", "events", "events/Subscriptions/all"}


async def test_the_secondary_gets_all_of_its_own_without_the_primary() -> None:
    async with lost_world(0) as w:
        w.pair = replace(w.pair, backlog_queues=1)
        assert await created(w, "secondary") == {("contoso-dr", name) for name in (*OF_FILE, f"{UNDER_CONTOSO}0")}
        assert {each.path for each in w.secondary.queues()} == {"orders", f"{UNDER_CONTOSO}0"}


async def test_the_primary_gets_its_entities_without_the_secondary() -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        w = LostWorld(emulator, 1)
        emulator.faults.namespace_down("contoso-dr")
        assert await created(w, "primary") == {("contoso", name) for name in OF_FILE}
        assert not [*w.secondary.queues()]
