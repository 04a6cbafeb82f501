"""The names by which clients reach a server, and the web pages that may use it.

A browser names the page that sends a request in `Origin`. A page whose own host name was made to lead to this machine
needs none, and sends that name as `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from sbpair.errors import UsageError

EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not listened on
MAX_NAME: Final = 253
_LABEL: Final = "[a-z0-9_][a-z0-9_-]*"
_NAME: Final = re.compile(rf"(?:{_LABEL}\.)*(?![0-9]+$){_LABEL}")
"""A host that ends in a number is an IPv4 address for browsers."""


class HostNames:
    """The names of `server`: those of loopback, its address `host`, its namespaces, and `allowed` ones.

    Where other machines can reach it, all IP addresses and names without a dot are, as in a network of containers: a
    web page of the internet cannot have such a name. Raises UsageError for a name that is not valid.
    """

    def __init__(
        self, host: str, namespaces: Iterable[str], allowed: Iterable[str] = (), server: str = "the emulator"
    ) -> None:
        self._server = server
        own = [] if host in EVERY_ADDRESS else [usual(host)]
        self._of_pages = frozenset(("localhost", *own, *map(checked_name, allowed)))
        self._of_namespaces = frozenset(f"{name.lower()}.servicebus.windows.net" for name in namespaces)
        self._is_exposed = is_exposed(host)

    @property
    def for_certificate(self) -> list[str]:
        return sorted(self._of_pages | self._of_namespaces)

    def is_own(self, authority: str) -> bool:
        """Return whether the host of a `host:port` is a name of this server."""
        name = host_of(authority)
        if name in self._of_namespaces or self._is_trusted(name):
            return True
        return self._is_exposed and (address_of(name) is not None or is_undotted(name))

    def refusal_of(self, hosts: Sequence[str], origins: Sequence[str]) -> str:
        """Return why a page of another site may have sent a request with these headers; "" if none can have."""
        if len(hosts) != 1 or not self.is_own(hosts[0]):
            return f"The Host of the request is not a name of {self._server}: --allow-host makes it one."
        if not all(self._is_trusted_page(origin, hosts[0]) for origin in origins):
            return "The Origin of the request is a web page of another host: --allow-host allows it."
        return ""

    def _is_trusted_page(self, origin: str, host: str) -> bool:
        """Return whether a page is one of this machine: any page of the internet can have an IP address as its host.

        A namespace of Azure with the name of one of the server's can have pages, too.
        """
        scheme, _, authority = origin.partition("://")
        name = host_of(authority)
        if name == host_of(host) or self._is_trusted(name):
            return True
        # The identifier of a browser's extension has no dot either.
        return self._is_exposed and scheme in ("http", "https") and is_undotted(name)

    def _is_trusted(self, name: str) -> bool:
        address = address_of(name)
        return name in self._of_pages or name.endswith(".localhost") or (address is not None and address.is_loopback)


def checked_name(text: str) -> str:
    """Return a host name or IP address in its usual form. Raises UsageError."""
    name = usual(text)
    if address_of(name) is None and (len(name) > MAX_NAME or _NAME.fullmatch(name) is None):
        raise UsageError(
            f"expected a host name such as host.docker.internal, got {text[:MAX_NAME]!r}",
            hint="leave out scheme, port and path, and give each name an --allow-host of its own",
        )
    return name


def host_of(authority: str) -> str:
    """Return the host of a `host:port` in its usual form; "" if it is not valid."""
    with suppress(ValueError):
        parts = urlsplit(f"//{authority}")
        if parts.netloc == authority and "@" not in authority and parts.port != 0:
            return usual(parts.hostname or "")
    return ""


def usual(name: str) -> str:
    """Return a host name in lower case, without the dot of a complete one, and an IP address in its short form."""
    name = name.lower().removesuffix(".")
    return str(address_of(name) or name)


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def is_undotted(name: str) -> bool:
    return bool(name) and "." not in name and ":" not in name


def is_exposed(host: str) -> bool:
    """Return whether other machines can reach an address to listen on."""
    address = address_of(host)
    return host in EVERY_ADDRESS or (host.lower() != "localhost" if address is None else not address.is_loopback)


def local_authority(host: str, port: int) -> str:
    """Return the `host:port` by which a client on this machine reaches a port."""
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
