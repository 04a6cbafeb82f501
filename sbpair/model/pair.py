"""A pair of namespaces, the connection details of each, and the environment variables that describe it elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from sbpair.errors import NameInvalid, UsageError
from sbpair.model.proxy import Proxy, proxy_for

Side: TypeAlias = Literal["primary", "secondary"]
SIDES: Final[tuple[Side, Side]] = ("primary", "secondary")

AMQP_PORT = 5672
AMQPS_PORT = 5671
HTTP_PORT = 80
HTTPS_PORT = 443

MAX_BACKLOG_QUEUES = 10_000
"""The limit of entities in a namespace of the Standard tier."""


@dataclass(frozen=True, slots=True)
class SasKey:
    """A shared access key: its holder can create tokens as long as the key lives."""

    name: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SasToken:
    """A complete `SharedAccessSignature …`: it cannot be renewed when it expires."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that azure-identity's DefaultAzureCredential finds."""


Credential = SasKey | SasToken | Identity

MASK = "***"


class Transport(StrEnum):
    """The carrier of AMQP."""

    TCP = "tcp"
    WEBSOCKET = "websocket"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One namespace of a pair, and its connection details.

    `name` is the namespace's own name (`contoso`), part of backlog paths. `authority` is the host, with the port if the
    connection string has one; tokens are issued for it. `host` and `port` are the address to connect to, which differs
    behind a proxy or a private link. `ca_file` holds the certificates to trust instead of the machine's. `key_source`
    names the variable that the key or the signature came from.

    `transport` carries AMQP. HTTPS and WebSockets go through `proxy`, else through the environment's, if any.
    """

    name: str
    authority: str
    host: str
    port: int
    tls: bool
    credential: Credential
    ca_file: str | None = None
    emulator: bool = False
    key_source: str = field(default="", compare=False)
    transport: Transport = Transport.TCP
    proxy: Proxy | None = None

    @property
    def shares_port(self) -> bool:
        """Whether one port serves AMQP, HTTP and WebSockets, as an emulator's does."""
        return self.emulator or self.port != AMQPS_PORT

    @property
    def web_port(self) -> int:
        """The port of HTTP and WebSockets: the standard one beside AMQPS."""
        return self.port if self.shares_port else HTTPS_PORT if self.tls else HTTP_PORT

    @property
    def amqp_port(self) -> int:
        """The port that AMQP connects to, over its transport."""
        return self.web_port if self.transport is Transport.WEBSOCKET else self.port

    @property
    def amqp_address(self) -> str:
        return authority_of(self.host, self.amqp_port)

    @property
    def tls_name(self) -> str:
        """The host of the certificate, and the one that AMQP opens."""
        return urlsplit(f"//{self.authority}").hostname or self.host

    def web_proxy(self, environ: Mapping[str, str] = os.environ) -> Proxy | None:
        """Return the proxy for HTTPS and WebSockets. Raises UsageError for a malformed one."""
        return proxy_for(self.host, self.proxy, tls=self.tls, environ=environ)

    def amqp_proxy(self) -> Proxy | None:
        """Return the proxy for AMQP, which has one over WebSocket only. Raises UsageError for a malformed one."""
        return self.web_proxy() if self.transport is Transport.WEBSOCKET else None


def sign_in(endpoint: Endpoint) -> str:
    """Describe the credential, without secrets."""
    credential = endpoint.credential
    if isinstance(credential, SasKey):
        return f"key {credential.name} {MASK}"
    return f"signature {MASK}" if isinstance(credential, SasToken) else "identity"


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a move: from a namespace, `secondary`, to another one or the same, `primary`."""

    name: str
    primary: Endpoint
    secondary: Endpoint

    @property
    def same(self) -> bool:
        """Whether both are one namespace."""
        return self.primary.authority.lower() == self.secondary.authority.lower()


@dataclass(frozen=True, slots=True)
class Pair(Ends):
    """Two namespaces: messages for `primary` wait in backlog queues of `secondary` while it is unavailable.

    `failover_interval` and `ping_interval` are seconds.
    """

    backlog_queues: int = 10
    failover_interval: float = 60.0
    ping_interval: float = 60.0

    def __post_init__(self) -> None:
        if not _PAIR_NAME.fullmatch(self.name):
            raise NameInvalid(
                f"{self.name!r} is not a valid pair name",
                hint="use up to 64 letters, digits, '.', '-' and '_', with a letter or a digit first",
            )
        if not 1 <= self.backlog_queues <= MAX_BACKLOG_QUEUES:
            limit = "at least 1" if self.backlog_queues < 1 else f"at most {MAX_BACKLOG_QUEUES}"
            raise UsageError(
                f"pair {self.name!r}: backlog_queues is {self.backlog_queues}, and must be {limit}",
                hint="the default is 10, as in the original library",
            )
        self._check_seconds("failover_interval", self.failover_interval, 0, 3600)
        self._check_seconds("ping_interval", self.ping_interval, 1, 1800)
        if self.same:
            raise UsageError(
                f"pair {self.name!r}: the primary and the secondary are the same namespace",
                hint="a backlog in the primary would be unavailable together with it: choose another secondary",
            )

    def _check_seconds(self, option: str, value: float, minimum: int, limit: int) -> None:
        if not minimum <= value <= limit:
            raise UsageError(
                f"pair {self.name!r}: {option} is {value:g} s, and must be from {minimum} s to {limit} s",
                hint="the default is 60 s, as in the original library",
            )


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """The resource group of namespaces in Azure Resource Manager. Raises UsageError for an invalid one."""

    subscription: str
    name: str

    def __post_init__(self) -> None:
        if not _SUBSCRIPTION.fullmatch(self.subscription):
            raise UsageError(
                f"{self.subscription!r} is not the id of a subscription",
                hint="write it as 00000000-0000-0000-0000-000000000000: az account show --query id",
            )
        if not _RESOURCE_GROUP.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not the name of a resource group",
                hint="up to 90 letters, digits, '.', '-', '_' and parentheses: az group list --query [].name",
            )


def first_label(host: str) -> str:
    """Return `contoso` for `contoso.servicebus.windows.net`, in lower case as the service compares it.

    An IP address has no labels, and is returned whole.
    """
    return host.lower() if is_address(host) else host.split(".", 1)[0].lower()


def is_address(host: str) -> bool:
    """Return whether `host` is an IP address, which does not contain a namespace's name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether `host` is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def authority_of(host: str, port: int | None) -> str:
    """Return `host[:port]` as in a URL: an IPv6 address in brackets."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"


_SUBSCRIPTION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_RESOURCE_GROUP = re.compile(r"[\w.()-]{0,89}[\w()-]")
_PAIR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def pair_variables(pair: Pair) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that are no secret, and the names of those that are."""
    found: dict[str, str] = {}
    secrets = []
    for side, end in (("SBPAIR_PRIMARY", pair.primary), ("SBPAIR_SECONDARY", pair.secondary)):
        address = authority_of(end.host, end.port)
        found[f"{side}_NAME"] = end.name
        if isinstance(end.credential, Identity):
            found[f"{side}_NAMESPACE"] = end.authority
        else:
            secrets.append(f"{side}_CONNECTION_STRING")
        if address not in (end.authority, f"{end.authority}:{end.port}"):
            found[f"{side}_ENDPOINT"] = address
        if end.transport is not Transport.TCP:
            found[f"{side}_TRANSPORT"] = end.transport.value
        if end.ca_file is not None:
            found[f"{side}_CA_FILE"] = end.ca_file
        if end.proxy is not None and end.proxy.user is None:
            found[f"{side}_PROXY"] = end.proxy.url
        elif end.proxy is not None:
            secrets.append(f"{side}_PROXY")
    return found, tuple(secrets)
