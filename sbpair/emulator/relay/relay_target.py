"""The target of a request to the relay: path, query without the parameters of the relay, and those. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, unquote_plus

from sbpair.emulator.relay.relay_refusals import url_invalid

PREFIX: Final = "$hc"
_RESERVED: Final = "sb-hc-"
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """A decoded target. `raw_path` is as the sender wrote it, without `$hc`; `path` is decoded, without outer slashes.

    `query` has the sender's own parameters, byte for byte. `parameters` has those of the relay, names in lower case.
    """

    raw_path: str
    path: str
    query: str
    parameters: dict[str, str] = field(repr=False)

    @property
    def with_query(self) -> str:
        return f"{self.raw_path}?{self.query}" if self.query else self.raw_path


def is_websocket_path(raw_target: str) -> bool:
    """Return whether a target is below `/$hc/`."""
    return raw_target[:7].lower().replace("%24", "$").startswith(f"/{PREFIX}/")


def read_target(raw_target: str) -> RelayTarget:
    """Parse a target. Raises RelayRefused if its path has `.` or `..`, encoded or not, or control characters."""
    if not raw_target.startswith("/"):
        raw_target = "/" + raw_target.partition("://")[2].partition("/")[2]
    raw_path, _, query = raw_target.partition("?")
    if is_websocket_path(raw_path):
        raw_path = raw_path[raw_path.index("/", 1) :]
    path = unquote(raw_path)
    if _UNSAFE.search(path) or {".", ".."} & set(re.split(r"[/\\]", path)):
        raise url_invalid("The path of the URL is not valid.")
    rest, parameters = split_query(query)
    return RelayTarget(raw_path, path.strip("/"), rest, parameters)


def split_query(query: str) -> tuple[str, dict[str, str]]:
    """Return the query without each `sb-hc-…=…`, and the decoded values of those. A name without `=` stays."""
    kept: list[str] = []
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if equals and name.lower().startswith(_RESERVED):
            parameters.setdefault(name.lower(), unquote_plus(value))
        else:
            kept.append(part)
    return "&".join(kept), parameters
