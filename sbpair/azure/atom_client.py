"""Requests of Atom: signed, limited in time, with the errors of `sbpair.errors`.

Answers are XML; reading it raises ParseError, ValueError and LookupError where a server is not a Service Bus.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree as ET

from sbpair.azure.credentials import authorization_for
from sbpair.azure.http_client import HttpClient
from sbpair.azure.management_errors import of_answer, service_response, translate_management_errors
from sbpair.azure.management_route import AnswerLimit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from xml.etree.ElementTree import Element

    from sbpair.model.pair import Endpoint

API_VERSION = "2021-05"
PAGE_SIZE = 100


@asynccontextmanager
async def open_client(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[AtomClient]:
    async with HttpClient(endpoint) as http, authorization_for(endpoint) as authorization:
        yield AtomClient(http, endpoint, authorization, call_seconds)


class AtomClient:
    """Get one from `open_client`. `what` completes "cannot …" in the message of an error."""

    def __init__(
        self, http: HttpClient, endpoint: Endpoint, authorization: Callable[[], Awaitable[str]], call_seconds: float
    ) -> None:
        self._http = http
        self._namespace = endpoint.name
        self._key_source = endpoint.key_source
        self._authorization = authorization
        self._call_seconds = call_seconds
        self._limit = AnswerLimit(http.netloc, call_seconds)

    async def get(self, what: str, *path: str) -> Element:
        """Read the entry at a path, or the empty feed there."""
        return await self._get(what, f"{_target(path)}?enrich=false&api-version={API_VERSION}")

    async def delete(self, what: str, *path: str) -> None:
        await self._request("DELETE", what, f"{_target(path)}?api-version={API_VERSION}")

    async def entries(self, what: str, *path: str) -> AsyncIterator[Element]:
        """List the entries of every page of the feed at a path."""
        skip, top = 0, PAGE_SIZE
        while top:
            feed = await self._get(what, f"{_target(path)}?$skip={skip}&$top={top}&api-version={API_VERSION}")
            for entry in feed.iterfind("{*}entry"):
                yield entry
            skip, top = _next_page(feed, skip)

    async def _get(self, what: str, target: str) -> Element:
        # Expat limits the expansion of entities.
        return ET.fromstring(await self._request("GET", what, target))  # noqa: S314

    async def _request(self, method: str, what: str, target: str) -> bytes:
        with translate_management_errors(what, self._namespace, self._http.netloc):
            async with asyncio.timeout(self._call_seconds):
                headers = {"Authorization": await self._authorization()}
            async with self._limit.one_request():
                response = await self._http.request(method, target, headers)
        if response.status != 200:
            text = f"{response.reason}\n{response.body.decode(errors='replace')}"
            answer = service_response(response.status, text, response.headers)
            raise of_answer(answer, what, self._namespace, self._key_source)
        return response.body


def _target(path: tuple[str, ...]) -> str:
    return "/" + "/".join(quote(part, safe="$") for part in path)


def _next_page(feed: Element, skip: int) -> tuple[int, int]:
    """Return $skip and $top of the next page; (0, 0) after the last one."""
    link = feed.find("{*}link[@rel='next']")
    if link is None:
        return 0, 0
    query = parse_qs(urlsplit(link.get("href", "")).query)
    after, top = int(query["$skip"][0]), int(query["$top"][0])
    if after <= skip:
        raise ValueError("the next page is not after this one")
    return after, top
