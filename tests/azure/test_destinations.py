"""Destinations read over management, through the real SDK on the emulator."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from sbpair import errors
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.azure.destinations import DestinationEntity, open_destinations
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.emulator.frontends.http.atom_frontend import AtomFrontend, AtomRequest
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, SasKey
from sbpair.rules.filters import SqlRuleFilter
from sbpair.syphon.run_limits import SendCosts
from sbpair.testing import Emulator

KILOBYTE = 1024


@asynccontextmanager
async def open_endpoint(tier: str = "standard") -> AsyncIterator[tuple[Emulator, Endpoint]]:
    async with Emulator([("contoso", 0, tier)]) as emulator:
        text = emulator.namespaces["contoso"].connection_string
        yield emulator, endpoint_from_connection_string(text, name="contoso")


@pytest.mark.parametrize("tier", ["Basic", "Standard", "Premium"])
async def test_the_tier_is_the_namespaces_own(tier: str) -> None:
    async with open_endpoint(tier.lower()) as (_emulator, endpoint), open_destinations(endpoint) as asked:
        assert await asked.tier() == tier


async def test_queues_and_topics_are_distinguished() -> None:
    async with open_endpoint("premium") as (emulator, endpoint):
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        namespace.create_queue("billing/invoices", QueueDescription(requires_session=True))
        namespace.create_queue("large", QueueDescription(max_message_size_in_kilobytes=102_400))
        namespace.create_topic("events")
        usual = DestinationEntity("orders", message_bytes=1024 * KILOBYTE, detects_duplicates=False)
        async with open_destinations(endpoint) as asked:
            for path, own in (
                ("orders", {}),
                ("billing/invoices", {"requires_session": True, "message_bytes": 256 * KILOBYTE}),
                ("large", {"message_bytes": 102_400 * KILOBYTE}),
                ("events", {"is_topic": True}),
            ):
                assert await asked.get(path) == replace(usual, path=path, **own)
            assert (await asked.get("orders")).filters == 0


async def test_credits_per_message_count_every_filter_of_every_subscription() -> None:
    async with open_endpoint() as (emulator, endpoint):
        emulator.namespaces["contoso"].create_queue("orders")
        topic = emulator.namespaces["contoso"].create_topic("events")
        for name in ("all", "some", "none"):
            topic.create_subscription(name)
        topic.subscription("some").add_rule(SubscriptionRule("large", SqlRuleFilter("size > 5")))
        topic.subscription("some").add_rule(SubscriptionRule("red", SqlRuleFilter("colour = 'red'")))
        topic.subscription("none").remove_rule("$Default")
        async with open_destinations(endpoint) as asked:
            costs = SendCosts(asked)
            # It is what the namespace itself counts for each message that is sent.
            assert (await asked.get("events")).filters + 1 == topic.credits_per_message == 5
            assert [await costs.of(path) for path in ("orders", "events", "nowhere", "EVENTS")] == [1, 5, 2, 5]


async def test_without_access_one_filter_is_assumed_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = requests(monkeypatch)

    async with open_endpoint() as (emulator, endpoint):
        namespace = emulator.namespaces["contoso"]
        namespace.keys = (*namespace.keys, AuthorizationRule("send", "key", "other", frozenset({AccessRight.SEND})))
        namespace.create_queue("orders")
        async with open_destinations(replace(endpoint, credential=SasKey("send", "key"))) as asked:
            costs = SendCosts(asked)
            assert [await costs.of(path) for path in ("orders", "events", "nowhere")] == [2, 2, 2]
        assert asked_for == {"orders": 1}


async def test_only_the_first_subscriptions_are_asked_for_their_filters() -> None:
    async with open_endpoint() as (emulator, endpoint):
        topic = emulator.namespaces["contoso"].create_topic("events")
        for number in range(105):  # more than one page
            topic.create_subscription(f"s{number}")
        async with open_destinations(endpoint, max_subscriptions=2) as asked:
            assert (await asked.get("events")).filters == 105


def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the management requests that reach the emulator, by path."""
    asked_for: Counter[str] = Counter()
    answer = AtomFrontend._answer

    def counted(frontend: AtomFrontend, request: AtomRequest, body: bytes) -> web.Response:
        asked_for[request.path.lower()] += 1
        return answer(frontend, request, body)

    monkeypatch.setattr(AtomFrontend, "_answer", counted)
    return asked_for


async def test_concurrent_lookups_share_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = requests(monkeypatch)

    async with open_endpoint() as (emulator, endpoint):
        emulator.namespaces["contoso"].create_queue("orders")
        async with open_destinations(endpoint) as asked:
            found = await asyncio.gather(*(asked.get(name) for name in ("orders", "ORDERS", "Orders") * 5))
            tiers = await asyncio.gather(*(asked.tier() for _ in range(5)))
        assert {each.path.lower() for each in found} == {"orders"}
        assert tiers == ["Standard"] * 5
        assert asked_for == {"orders": 1, "$namespaceinfo": 1}


async def test_missing_destination_is_read_again_until_it_exists() -> None:
    async with open_endpoint() as (emulator, endpoint), open_destinations(endpoint) as asked:
        for _ in range(2):
            with pytest.raises(errors.EntityMissing):
                await asked.get("nowhere")
        emulator.namespaces["contoso"].create_queue("nowhere")
        assert (await asked.get("nowhere")).path == "nowhere"


@pytest.mark.parametrize(
    ("name", "key", "error"), [("send", "key", errors.NotAuthorized), ("send", "wrong", errors.NotAuthenticated)]
)
async def test_destination_needs_the_manage_claim(name: str, key: str, error: type[errors.SbpairError]) -> None:
    async with open_endpoint() as (emulator, endpoint):
        namespace = emulator.namespaces["contoso"]
        namespace.keys = (*namespace.keys, AuthorizationRule("send", "key", "other", frozenset({AccessRight.SEND})))
        namespace.create_queue("orders")
        async with open_destinations(replace(endpoint, credential=SasKey(name, key))) as asked:
            with pytest.raises(error):
                await asked.tier()
            with pytest.raises(error):
                await asked.get("orders")


async def test_a_namespace_that_is_down_is_unavailable() -> None:
    async with open_endpoint() as (emulator, endpoint):
        emulator.faults.namespace_down("contoso")
        async with open_destinations(endpoint) as asked:
            with pytest.raises(errors.Unavailable):
                await asked.get("orders")
