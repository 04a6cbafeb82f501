"""Management requests over Atom, decoded, and the parts that all answers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from aiohttp import web

from sbpair.emulator.frontends.atom import atom_xml as xml
from sbpair.emulator.frontends.http.request_parts import read_page, read_query, split_target
from sbpair.emulator.service_errors import ArgumentInvalid

API_VERSIONS: Final = ("2017-04", "2021-05", "2024-05")
_PATH: Final = re.compile(
    r"(?P<topic>.+)/(?P<list>subscriptions)(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AtomRequest:
    """A decoded request. `base` and `host` are this server as the client addresses it."""

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

    @property
    def with_message_size(self) -> bool:
        """Whether this api-version has the element MaxMessageSizeInKilobytes."""
        return self.api_version >= "2021-05"

    def href(self, path: str, **query: object) -> str:
        return f"{self.base}/{quote(path, safe='/$')}?{urlencode({'api-version': self.api_version, **query})}"


def read_atom_request(request: web.BaseRequest) -> AtomRequest:
    path, query = split_target(request)
    return AtomRequest(
        request.method,
        path.strip("/"),
        read_query(query),
        f"{request.scheme}://{request.host}",
        request.host,
        request.headers.get("If-Match"),
        request.headers.get("Authorization"),
    )


class TopicPath(NamedTuple):
    """A path below a topic, taken apart. The name is None where the path ends in a list."""

    topic: str
    subscription: str | None
    has_rules: bool
    rule: str | None

    @property
    def is_list(self) -> bool:
        return self.subscription is None or (self.has_rules and self.rule is None)


def read_topic_path(path: str) -> TopicPath | None:
    """Parse `<topic>/subscriptions[/<name>[/rules[/<name>]]]`, in any letter case."""
    match = _PATH.fullmatch(path)
    return match and TopicPath(match["topic"], match["subscription"], bool(match["rules"]), match["rule"])


def atom_page(
    request: AtomRequest, title: str, items: Sequence[T], entry: Callable[[T], str], now_ms: int
) -> web.Response:
    """Return the feed of the page that `$skip` and `$top` select, with a link to the next page."""
    skip, top = read_page(request.query, ArgumentInvalid)
    more = request.href(request.path, **{"$skip": skip + top, "$top": top}) if len(items) > skip + top and top else None
    href = request.href(request.path, **{"$skip": skip, "$top": top})
    entries = [entry(item) for item in items[skip : skip + top]]
    return atom_response(xml.feed_xml(href, title, now_ms, entries, more))


def atom_response(text: str, status: int = 200) -> web.Response:
    kind = "application/atom+xml" if status < 300 else "application/xml"
    return web.Response(text=text, status=status, content_type=kind, charset="utf-8")
