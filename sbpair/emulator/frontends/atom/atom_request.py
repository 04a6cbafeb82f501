"""A management request, read, and what all answers to one are made of. No decisions about entities."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from aiohttp import web

from sbpair.emulator.frontends.atom import atom_xml as xml
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sbpair.emulator.access.sas import AuthorizationRule

API_VERSIONS: Final = ("2017-04", "2021-05", "2024-05")
PAGE: Final = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AtomRequest:
    """A request, read: what is asked for, by which version, and how the asker calls this host."""

    method: str
    path: str
    query: dict[str, str]
    base: str
    host: str
    if_match: str | None
    token: str | None

    @property
    def api_version(self) -> str:
        return self.query.get("api-version", API_VERSIONS[-1])

    def href(self, path: str, **query: object) -> str:
        return f"{self.base}/{quote(path, safe='/$')}?{urlencode({'api-version': self.api_version, **query})}"


def read_ask(request: web.BaseRequest) -> AtomRequest:
    path, told = target_of(request)
    query = {name.lower(): value for name, value in parse_qsl(told, keep_blank_values=True)}
    return AtomRequest(
        request.method,
        path.strip("/"),
        query,
        f"{request.scheme}://{request.host}",
        request.host,
        request.headers.get("If-Match"),
        request.headers.get("Authorization"),
    )


def target_of(request: web.BaseRequest) -> tuple[str, str]:
    """The path that a request is for, its escapes read, and its query. Two slashes at the start name no host."""
    raw = request.raw_path
    if not raw.startswith("/"):
        raw = raw.partition("://")[2].partition("/")[2]
    path, _, query = raw.partition("?")
    return unquote(path), query


def list_page(ask: AtomRequest, title: str, items: Sequence[T], entry: Callable[[T], str], now_ms: int) -> web.Response:
    """The part of a list that `$skip` and `$top` ask for, with a link to the next."""
    skip, top = count(ask, "$skip", 0), min(count(ask, "$top", PAGE), PAGE)
    more = ask.href(ask.path, **{"$skip": skip + top, "$top": top}) if len(items) > skip + top and top else None
    href = ask.href(ask.path, **{"$skip": skip, "$top": top})
    entries = [entry(item) for item in items[skip : skip + top]]
    return respond(xml.feed_xml(href, title, now_ms, entries, more))


def nothing_there(ask: AtomRequest, now_ms: int) -> web.Response:
    """The service answers a missing entity so; its clients look whether there is an entry."""
    return respond(xml.feed_xml(ask.href(ask.path), "Publicly Listed Services", now_ms))


def not_a_verb() -> web.Response:
    return respond(xml.error_xml(405, "The specified HTTP verb is not valid here."), 405)


def with_times(
    wanted: Iterable[AuthorizationRule], before: Iterable[AuthorizationRule], now_ms: int
) -> tuple[AuthorizationRule, ...]:
    """Rules as they are asked for; one that was there before keeps the time at which it was made."""
    created = {rule.key_name: rule.created_at_ms for rule in before}
    return tuple(replace(rule, created_at_ms=created.get(rule.key_name, now_ms)) for rule in wanted)


def forward_address(text: str, host: str) -> str:
    """A target is kept, and given back, as the whole address of an entity."""
    text = text.strip()
    return text if "://" in text else f"sb://{host}/{text.strip('/')}"


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def count(ask: AtomRequest, name: str, default: int) -> int:
    text = ask.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ArgumentInvalid(f"The value '{text[:40]}' of {name} is not a whole number from 0.")
    return int(text)


def respond(text: str, status: int = 200) -> web.Response:
    kind = "application/atom+xml" if status < 300 else "application/xml"
    return web.Response(text=text, status=status, content_type=kind, charset="utf-8")
