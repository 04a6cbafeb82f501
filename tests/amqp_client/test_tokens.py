"""The tokens of an emulated identity: who gets one, and what ends with one."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import ClientSession

from sbpair.amqp_client.client import connect
from sbpair.emulator.access_tokens import AUDIENCE
from sbpair.errors import InDoubt, NotAuthenticated
from sbpair.model.pair import Identity
from sbpair.testing import Emulator, EmulatorOptions
from tests.amqp_client.peers import QUEUE, emulated, message


async def test_links_end_with_their_token() -> None:
    async with asyncio.timeout(30), emulated(identity=True) as (emulator, endpoint):
        assert emulator.identity is not None
        # It has a minute left of its day: less than it takes an idle link to be detached.
        issued, _ = emulator.bearers.issue(AUDIENCE, emulator.clock.now_ms() - 86_340_000)

        async def get_token(_: str) -> tuple[str, float]:
            return issued, 2.0**40

        async with connect(replace(endpoint, credential=Identity()), get_token=get_token) as wire:
            sender = await wire.sender(QUEUE)
            await sender.send(message())
            emulator.advance(60_000)
            with pytest.raises(InDoubt, match="ExpiredToken"):
                await sender.send(message())
            with pytest.raises(NotAuthenticated, match="ExpiredToken"):
                await wire.sender(f"{QUEUE}/$deadletterqueue")


async def test_the_identity_endpoint_issues_tokens_only_with_its_secret_header() -> None:
    problem, token = {"statusCode", "message"}, {"access_token", "client_id", "expires_on", "resource", "token_type"}
    async with Emulator(options=EmulatorOptions(identity=True)) as emulator, ClientSession() as session:
        sign_in = emulator.ready.identity
        assert sign_in is not None
        for header, query, status, keys in (
            (None, "api-version=2019-08-01&resource=x", 401, problem),
            ("wrong", "api-version=2019-08-01&resource=x", 401, problem),
            (sign_in.header, "api-version=2017-09-01&resource=x", 400, problem),
            (sign_in.header, "api-version=2019-08-01", 400, problem),
            (sign_in.header, "api-version=2019-08-01&resource=x", 200, token),
        ):
            headers = {} if header is None else {"X-IDENTITY-HEADER": header}
            async with session.get(f"{sign_in.endpoint}?{query}", headers=headers) as answer:
                assert (answer.status, set(await answer.json())) == (status, keys)


async def test_there_is_no_identity_where_none_was_asked_for() -> None:
    async with Emulator([("contoso", 0)]) as emulator, ClientSession() as session:
        assert emulator.ready.identity is None
        url = f"http://{emulator.namespaces['contoso'].authority}/$identity/token?api-version=2019-08-01&resource=x"
        async with session.get(url) as answer:
            assert answer.status == 401
            assert "MissingToken" in await answer.text()
