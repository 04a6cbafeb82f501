"""Tokens: requests shared by concurrent callers; kept until they expire, and renewed before."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from sbpair.azure.credentials import SERVICE_BUS_SCOPE
from sbpair.azure.identity_tokens import IdentityTokens, shared
from sbpair.errors import NotAuthenticated, NoToken
from sbpair.model.pair import Identity
from sbpair.testing import Emulator, EmulatorOptions
from tests.faults.simulation.loop import in_virtual_time
from tests.kit.waiting import until


class Slow:
    """A credential that answers on demand, and counts requests."""

    def __init__(self, *failures: Exception) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.answered = 0
        self.answer = asyncio.Event()
        self._failures = list(failures)

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked.append(scopes)
        await self.answer.wait()
        self.answered += 1
        if self._failures:
            raise self._failures.pop(0)
        return AccessToken(f"{scopes[0]} {self.answered}", 2**40)

    async def close(self) -> None:
        return

    async def __aenter__(self) -> Slow:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_want_the_same_token_at_once_share_one_request() -> None:
    slow = Slow()
    async with IdentityTokens(slow) as asker:
        wanting = [asyncio.create_task(asker.get_token(scope)) for scope in ("a", "a", "b", "a")]
        await soon()
        assert slow.asked == [("a",), ("b",)]
        slow.answer.set()
        assert [(await each).token for each in wanting] == ["a 1", "a 1", "b 2", "a 1"]
        assert (await asker.get_token("a")).token == "a 1"
        assert (await asker.get_token("a", claims="more")).token == "a 3"


async def test_token_request_survives_its_cancelled_caller() -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    slow = Slow(ValueError("nobody looks at it"))
    async with IdentityTokens(slow) as asker:
        wanting = asyncio.create_task(asker.get_token("a"))
        await soon()
        wanting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wanting
        slow.answer.set()
    assert slow.answered == 1
    await soon()
    assert not unheard


async def test_unanswered_token_request_is_cancelled_on_close() -> None:
    class Stubborn(Slow):
        """A credential that cleans up until it is released."""

        async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            try:
                return await super().get_token(*scopes)
            finally:
                ended.append(scopes)
                if scopes == ("stubborn",):
                    await let_go.wait()

    ended: list[tuple[str, ...]] = []
    let_go = asyncio.Event()
    async with IdentityTokens(Stubborn(), grace_seconds=0) as asker:
        wanting = [asyncio.create_task(asker.get_token(scope)) for scope in ("quick", "stubborn")]
        await soon()
    assert sorted(ended) == [("quick",), ("stubborn",)]
    let_go.set()
    answers = await asyncio.gather(*wanting, return_exceptions=True)
    assert [type(each) for each in answers] == [asyncio.CancelledError] * 2


async def test_failed_token_request_reaches_all_callers_once() -> None:
    slow = Slow(RuntimeError("not now"))
    slow.answer.set()
    async with IdentityTokens(slow) as asker:
        both = await asyncio.gather(asker.get_token("a"), asker.get_token("a"), return_exceptions=True)
        assert [str(each) for each in both] == ["not now", "not now"]
        assert (await asker.get_token("a")).token == "a 2"


async def test_a_failure_that_azure_identity_hides_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It has a new token only 30 s after the last one, and returns its cached one if it gets none. The constant moved.
    for place in ("_internal.utils", "_internal.get_token_mixin", "aio._internal.get_token_mixin"):
        monkeypatch.setattr(f"azure.identity.{place}.DEFAULT_TOKEN_REFRESH_RETRY_DELAY", 0, raising=False)
    options = EmulatorOptions(tls=True, identity=True, token_life=4)
    async with Emulator([("contoso", 0)], options=options) as emulator:
        ready = emulator.ready.namespaces[0]
        client = ready.client_id, ready.tenant_id, str(emulator.ready.authority), ready.client_secret
        async with shared(Identity("client-secret", *client, ca_file=emulator.ready.ca_file)) as tokens:
            first = await tokens.get_token(SERVICE_BUS_SCOPE)
            emulator.faults.identity_down("contoso", "500")
            await until(lambda: "the present token is good for" in caplog.text)
            assert (await tokens.get_token(SERVICE_BUS_SCOPE)).token == first.token
            assert "the identity provider is away (status 500)" in caplog.text


# Virtual time


@dataclass
class Provider:
    """A credential in virtual time: each answer is the life of a token in seconds, or an error. The last one stays."""

    answers: list[float | Exception]
    asked_at: list[float] = field(default_factory=list)
    start: float = 0.0

    async def get_token(self, *_scopes: str, **_: Any) -> AccessToken:
        now = asyncio.get_running_loop().time()
        self.asked_at.append(now - self.start)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return AccessToken(f"{len(self.asked_at)}", now + answer)


async def seen(tokens: IdentityTokens, *at: float) -> list[str]:
    """Return the token that a caller gets after so many seconds each, or the name of the error."""
    loop, found = asyncio.get_running_loop(), []
    start = loop.time()
    for each in at:
        await asyncio.sleep(start + each - loop.time())
        try:
            found.append((await tokens.get_token("scope")).token)
        except (NoToken, NotAuthenticated) as error:
            found.append(type(error).__name__)
    return found


def opened(provider: Provider) -> IdentityTokens:
    loop = asyncio.get_running_loop()
    provider.start = loop.time()
    return IdentityTokens(provider, "an identity", now=loop.time)


def refused(status: int) -> Exception:
    error = ClientAuthenticationError("AADSTS7000215: Invalid client secret provided. secret-text")
    error.status_code = status
    return error


@in_virtual_time
async def test_a_token_serves_until_it_expires_while_its_provider_is_away(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider([100, refused(503), refused(503), refused(503), 60])
    with caplog.at_level(logging.WARNING):
        async with opened(provider) as tokens:
            assert await seen(tokens, 0, 49, 52, 53.5, 58, 88) == ["1", "1", "1", "1", "5", "6"]
    assert provider.asked_at == [0, 50, 51, 53, 57, 87]
    (warning,) = caplog.messages
    assert warning == (
        "cannot sign in as an identity: the identity provider is away (status 503);"
        " the present token is good for 50 s more"
    )


@in_virtual_time
async def test_a_provider_that_comes_back_is_found_within_two_seconds() -> None:
    provider = Provider([10, *[refused(429)] * 8, 100])
    async with opened(provider) as tokens:
        assert await seen(tokens, 0, 9.9, 10.1, 15, 19, 21) == ["1", "1", "NoToken", "NoToken", "NoToken", "10"]
    # The callers asked nobody.
    assert provider.asked_at == [0, 5, 6, 8, 10, 12, 14, 16, 18, 20]


@in_virtual_time
async def test_a_cached_answer_is_neither_a_renewal_nor_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Cache(Provider):
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            found = await super().get_token(*scopes, **options)
            return AccessToken("cached", self.start + 100) if found.expires_on < self.start + 150 else found

    provider = Cache([100, 0, 0, 0, 0, 100])
    with caplog.at_level(logging.WARNING):
        async with opened(provider) as tokens:
            assert await seen(tokens, 0, 51, 64, 66) == ["cached", "cached", "cached", "6"]
    assert (provider.asked_at, caplog.messages) == ([0, 50, 51, 53, 57, 65], [])


@in_virtual_time
async def test_a_provider_that_refuses_is_asked_again_by_the_next_caller() -> None:
    provider = Provider([10, *[refused(401)] * 5, 100])
    async with opened(provider) as tokens:
        assert await seen(tokens, 0, 9, 10.1, 11, 12) == ["1", "1", "NotAuthenticated", "7", "7"]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (refused(400), NotAuthenticated, "refuses it (400, AADSTS7000215)"),
        (refused(403), NotAuthenticated, "refuses it (403, AADSTS7000215)"),
        (refused(410), NoToken, "is away (status 410)"),
        (refused(200), NoToken, "is away (its answer has no token)"),
        (ValueError("invalid literal for int() with base 10: 'soon'"), NoToken, "is away (its answer has no token)"),
        (TypeError("list indices must be integers"), NoToken, "is away (its answer has no token)"),
        (refused(0), NotAuthenticated, "no identity is signed in"),
        (TimeoutError(), NoToken, "no answer within 30 s"),
    ],
)
async def test_a_refusal_differs_from_an_absence(answer: Exception, error: type[Exception], text: str) -> None:
    async with IdentityTokens(Provider([answer])) as tokens:
        with pytest.raises(error) as raised:
            await tokens.get_token("scope")
    assert text in str(raised.value)
    assert "secret-text" not in str(raised.value)
