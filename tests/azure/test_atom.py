"""Requests over Atom to the byte, and what each answer means."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair import backlog, errors
from sbpair.azure.atom import open_atom
from sbpair.model.entities import Queue, Rule, Subscription
from sbpair.model.pair import SasKey, SasToken
from tests.azure.answering_peer import SECRET, answering, http

GOLDEN = Path(__file__).parent / "golden" / "backlog-queue.xml"
NO_ENTRIES = '<feed xmlns="http://www.w3.org/2005/Atom"><title>q</title></feed>'


async def test_every_queue_is_created_with_the_golden_description_to_the_byte() -> None:
    async with answering(*[http(201, NO_ENTRIES)] * 3) as namespace, open_atom(namespace.endpoint) as queues:
        for index in range(3):
            assert await queues.create(backlog.queue_spec("contoso", index))
    assert namespace.bodies == [GOLDEN.read_bytes()] * 3


@pytest.mark.parametrize(
    ("status", "body", "raised"),
    [
        (401, "", errors.NotAuthenticated),
        (401, "<Error><Detail>Manage,EntityRead claims required</Detail></Error>", errors.NotAuthorized),
        (
            401,
            "<Error><Detail>Authorization failed for specified action: Manage,EntityWrite.</Detail></Error>",
            errors.NotAuthorized,
        ),
        (403, "", errors.NotAuthorized),
        (403, "<Error><Detail>SubCode=40300. Limit reached</Detail></Error>", errors.ServiceRefused),
        (404, "", errors.EntityMissing),
        (400, "<Error><Detail>SubCode=40000. No. TrackingId:1</Detail></Error>", errors.ServiceRefused),
        (409, "<Error><Detail>SubCode=40901. In progress.</Detail></Error>", errors.Unavailable),
        (429, "<Error><Detail>SubCode=50004. The request was throttled.</Detail></Error>", errors.Throttled),
        (500, "", errors.Unavailable),
        (503, "<Error><Detail>SubCode=50009. Busy</Detail></Error>", errors.Throttled),
        (504, "", errors.TimedOut),
        (200, "<html>", errors.Unreachable),
    ],
)
async def test_each_refusal_maps_to_its_error(status: int, body: str, raised: type[errors.SbpairError]) -> None:
    async with answering(http(status, body)) as namespace, open_atom(namespace.endpoint) as queues:
        with pytest.raises(raised) as caught:
            await queues.list_under("contoso/")
    assert type(caught.value) is raised
    assert caught.value.hint
    assert not any(each in caught.value.message + caught.value.hint for each in (SECRET, "TrackingId"))


async def test_silent_namespace_times_out() -> None:
    async with (
        answering(b"", b"") as namespace,
        open_atom(namespace.endpoint, call_seconds=0.05) as queues,
    ):
        with pytest.raises(errors.Silent, match=r"no answer within 0\.05 s"):
            await queues.get("orders")


SIGNATURE = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"


@pytest.mark.parametrize(
    ("credential", "authorization"),
    [
        (SasKey("Root", SECRET), "SharedAccessSignature sr=https%3A%2F%2Fcontoso-dr.servicebus.windows.net&"),
        (SasToken(SIGNATURE), SIGNATURE),
    ],
)
async def test_token_audience_is_the_authority_on_every_route(
    credential: SasKey | SasToken, authorization: str
) -> None:
    async with answering(http(200, NO_ENTRIES)) as namespace:
        authority = "contoso-dr.servicebus.windows.net"
        async with open_atom(replace(namespace.endpoint, authority=authority, credential=credential)) as queues:
            await queues.list_under("contoso/")
        [request] = namespace.requests
        assert f"Host: {authority}" in request.splitlines()
        assert f"Authorization: {authorization}" in request


NOT_FOUND = http(404, "<Error><Code>404</Code><Detail>Entity 'c:Topic:t|s' was not found.</Detail></Error>")


@pytest.mark.parametrize("answer", [http(200, NO_ENTRIES), NOT_FOUND], ids=["feed", "404"])
async def test_a_missing_entity_may_be_an_empty_feed_or_404(answer: bytes) -> None:
    async with answering(*[answer] * 9) as namespace, open_atom(namespace.endpoint) as atom:
        for missing in (
            atom.get("t/subscriptions/s"),
            atom.read(Queue("q")),
            atom.read(Subscription("t", "s")),
            atom.read(Rule("t", "s", "r")),
            atom.queue_or_topic("t"),
        ):
            with pytest.raises(errors.EntityMissing):
                await missing
        # What is deleted while a topic is read has nothing left, and the topic is still there.
        assert await atom.subscriptions("t") == []
        assert await atom.rules("t", "s") == await atom.rule_descriptions("t", "s") == []
        await atom.delete_rule(Rule("t", "s", "r"))


async def test_pages_are_read_at_the_stated_rate() -> None:
    now = asyncio.get_running_loop().time
    began = now()
    async with (
        answering(*[http(200, NO_ENTRIES)] * 4) as namespace,
        open_atom(namespace.endpoint, page_pause=0.02) as entities,
    ):
        for _ in range(2):
            assert await entities.list_counted(subscriptions=False) == []
    assert now() - began >= 4 * 0.02
    assert len(namespace.requests) == 4
