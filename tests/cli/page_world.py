"""An emulator with a page, and entities to look at; the page of its pair."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.cli.page.emulator_page import page_of
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.stranded import put, stranded

HOSTILE = "<img src=x onerror=document.title='run'>"
BACKLOG = "contoso/x-servicebus-transfer/0"


def message(number: int, **sections: Any) -> bytes:
    properties = encode_map(APPLICATION_PROPERTIES, {"paid": True, HOSTILE: HOSTILE})
    return Sections(
        **{
            "properties": Properties(message_id=f"order-{number}", subject=HOSTILE).encode(),
            "application_properties": properties,
            "body": data_body(b'{"number": %d}' % number),
            **sections,
        }
    ).join()


class PageWorld:
    """`orders` with three messages and two dead letters, `visits` with sessions, `events`, and a backlog queue."""

    def __init__(self, emulator: Emulator, http: aiohttp.ClientSession) -> None:
        self.emulator, self._http = emulator, http
        self.primary, self.secondary = emulator.namespaces["contoso"], emulator.namespaces["contoso-dr"]
        self.url = f"http://{self.primary.authority}/$page/"
        self.orders = self.primary.create_queue("orders")
        self.visits = self.primary.create_queue("visits", QueueDescription(requires_session=True))
        self.primary.create_topic("events").create_subscription("audit", SubscriptionDescription())
        self.backlog = self.secondary.create_queue(BACKLOG)
        for number in range(5):
            put(self.orders, message(number))
        for each in self.orders.messages.receive(2):
            self.orders.messages.dead_letter(each.lock_token, "CardDeclined", HOSTILE)
        put(self.backlog, stranded("lost", "orders"))

    async def token(self) -> str:
        page = await (await self._http.get(self.url)).text()
        return page.partition('name="token" content="')[2].partition('"')[0]

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self._http.get(f"{self.url}{path}", headers=headers) as answer:
            found = await answer.json() if answer.content_type == "application/json" else await answer.text()
            return answer.status, found

    async def head(self, path: str) -> tuple[int, bytes]:
        async with self._http.head(f"{self.url}{path}") as answer:
            return answer.status, await answer.read()

    async def act(self, name: str, values: object, **headers: str) -> tuple[int, Any]:
        given = {"X-Page-Token": await self.token(), **headers}
        async with self._http.post(f"{self.url}acts/{name}", json=values, headers=given) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def page_world(*, may_act: bool = True) -> AsyncIterator[PageWorld]:
    async with (
        Emulator(page=lambda emulator: page_of(emulator, may_act=may_act)) as emulator,
        aiohttp.ClientSession() as http,
    ):
        yield PageWorld(emulator, http)


@asynccontextmanager
async def pair_page(world: PageWorld, *words: str, **env: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run `sbpair page` for the pair of an emulator. It ends by a signal, even while a page is open."""
    process = await command.start("page", *words, "-o", "json", env=command.environment(world.emulator, **env))
    assert process.stdout is not None
    document = b""
    while not document.endswith(b"}\n"):
        document += await process.stdout.readline()
    try:
        yield json.loads(document)["url"], process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
    assert await process.wait() == 0
