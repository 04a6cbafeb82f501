"""Requests over Atom to the byte, and what each answer means: a server with one answer stands for the namespace."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web

from sbpair import backlog, errors
from sbpair.azure.atom import open_atom
from sbpair.model.pair import Endpoint, SasKey, SasToken

GOLDEN = Path(__file__).parent / "golden" / "backlog-queue.xml"
SECRET = "c2VjcmV0a2V5"
NO_ENTRIES = '<feed xmlns="http://www.w3.org/2005/Atom"><title>q</title></feed>'


@dataclass
class Namespace:
    """A management side with one answer to every request; none where `status` is 0."""

    status: int = 200
    body: str = NO_ENTRIES
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    port: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.read())
        if not self.status:
            await asyncio.Event().wait()
        return web.Response(status=self.status, text=self.body, content_type="application/xml")

    @property
    def endpoint(self) -> Endpoint:
        address, key = f"127.0.0.1:{self.port}", SasKey("Root", SECRET)
        return Endpoint("contoso-dr", address, "127.0.0.1", self.port, tls=False, credential=key, emulator=True)


@asynccontextmanager
async def serving(namespace: Namespace) -> AsyncIterator[Namespace]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", namespace.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    namespace.port = runner.addresses[0][1]
    try:
        yield namespace
    finally:
        await runner.cleanup()


async def test_every_queue_is_created_with_the_golden_description_to_the_byte() -> None:
    async with serving(Namespace(201)) as namespace, open_atom(namespace.endpoint) as queues:
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
    async with serving(Namespace(status, body)) as namespace, open_atom(namespace.endpoint) as queues:
        with pytest.raises(raised) as caught:
            await queues.list_under("contoso/")
    assert type(caught.value) is raised
    assert caught.value.hint
    assert not any(each in caught.value.message + caught.value.hint for each in (SECRET, "TrackingId"))


async def test_silent_namespace_times_out() -> None:
    async with serving(Namespace(0)) as namespace, open_atom(namespace.endpoint, call_seconds=0.05) as queues:
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
    async with serving(Namespace()) as namespace:
        authority = "contoso-dr.servicebus.windows.net"
        async with open_atom(replace(namespace.endpoint, authority=authority, credential=credential)) as queues:
            await queues.list_under("contoso/")
        [headers] = namespace.headers
        assert headers["Host"] == authority
        assert headers["Authorization"].startswith(authorization)
