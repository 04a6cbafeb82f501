"""Token requests: shared by concurrent callers, completed, and repeated afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.core.credentials import AccessToken

from sbpair.azure.credentials import SharedTokenRequests


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
    async with SharedTokenRequests(slow) as asker:
        wanting = [asyncio.create_task(asker.get_token(scope)) for scope in ("a", "a", "b", "a")]
        await soon()
        assert slow.asked == [("a",), ("b",)]
        slow.answer.set()
        assert [(await each).token[0] for each in wanting] == ["a", "a", "b", "a"]
        assert (await asker.get_token("a")).token == "a 3"


async def test_token_request_survives_its_cancelled_caller() -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    slow = Slow(ValueError("nobody looks at it"))
    async with SharedTokenRequests(slow) as asker:
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
    async with SharedTokenRequests(Stubborn(), grace_seconds=0) as asker:
        wanting = [asyncio.create_task(asker.get_token(scope)) for scope in ("quick", "stubborn")]
        await soon()
    assert sorted(ended) == [("quick",), ("stubborn",)]
    let_go.set()
    answers = await asyncio.gather(*wanting, return_exceptions=True)
    assert [type(each) for each in answers] == [asyncio.CancelledError] * 2


async def test_failed_token_request_reaches_all_callers_once() -> None:
    slow = Slow(ValueError("not now"))
    slow.answer.set()
    async with SharedTokenRequests(slow) as asker:
        both = await asyncio.gather(asker.get_token("a"), asker.get_token("a"), return_exceptions=True)
        assert [str(each) for each in both] == ["not now", "not now"]
        assert (await asker.get_token("a")).token == "a 2"
