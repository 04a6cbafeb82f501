"""A pair of namespaces, the connection details of each, and the environment variables that describe it elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from sbpair.errors import NameInvalid, PrimaryLost, UsageError
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.proxy import Proxy, proxy_for
from sbpair.model.rotated_key import RotatedKey

Side: TypeAlias = Literal["primary", "secondary"]
WhenLost: TypeAlias = Literal["secondary", "hold"]
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


IdentityKind: TypeAlias = Literal["default", "managed", "workload", "cli", "client-secret"]
IDENTITY_KINDS: Final[tuple[IdentityKind, ...]] = get_args(IdentityKind)


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity of Microsoft Entra; by default the one that azure-identity's DefaultAzureCredential finds.

    `authority` is the host that issues its tokens, by default that of the public cloud, or of AZURE_AUTHORITY_HOST;
    `ca_file` has the certificates to trust there.
    """

    kind: IdentityKind = "default"
    client_id: str = ""
    tenant: str = ""
    authority: str = ""
    secret: str = field(default="", repr=False)
    ca_file: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Its values but the secret and defaults, by the ends of their variables."""
        kind = self.kind.removeprefix("default")
        given = {"IDENTITY": kind, "CLIENT_ID": self.client_id, "TENANT": self.tenant, "AUTHORITY": self.authority}
        return {name: text for name, text in given.items() if text}

    def __str__(self) -> str:
        of = " of ".join(filter(None, (self.client_id, self.tenant and f"tenant {self.tenant}")))
        noun = {"default": "the identity", "cli": "the user of az"}.get(self.kind, f"the {self.kind} identity")
        return f"{noun} {of}".strip()


Credential = SasKey | SasToken | Identity

PROVIDER_REMEDIES = (
    "give one side a key, where keys are allowed, or an identity of its own, whose tokens end at another time;"
    " PairedClient(outbox=FILE) keeps what neither side takes"
)

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
    is the variable that the key, the signature or the secret of an identity came from, or the path of a key's file;
    `rotated` has the key where that source may get another one.

    `entity` is the one that the key is for, as far as its connection string has it. `other_keys` have those of further
    entities, each with its own `key_source` and `rotated`. `signed` are the entities whose links took a token.

    `transport` carries AMQP. HTTPS and WebSockets go through `proxy`, else through the environment's, if any. `clock`
    has the namespace's time, as far as connections to it have shown it.
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
    clock: NamespaceClock = field(default_factory=NamespaceClock, compare=False, repr=False)
    rotated: RotatedKey[SasKey | SasToken] | None = field(default=None, compare=False, repr=False)
    entity: str = ""
    other_keys: tuple[Endpoint, ...] = field(default=(), repr=False)
    signed: set[str] = field(default_factory=set, compare=False, repr=False)

    def keyed_for(self, path: str) -> Endpoint:
        """Return it with the key to sign with for an entity, a part of it or a subscription; its own for all others."""
        for other in self.other_keys:
            if other.may_sign_for(path):
                own = {name: getattr(other, name) for name in ("credential", "key_source", "rotated", "entity")}
                return replace(self, **own, other_keys=())
        return self

    def may_sign_for(self, path: str) -> bool:
        """Return whether one of its keys may be for an entity, as far as its connection string says that."""
        entity, name = self.entity.lower(), path.lower()
        is_own = entity in ("", name) or name.startswith((f"{entity}/$", f"{entity}/subscriptions/"))
        return is_own or any(each.may_sign_for(path) for each in self.other_keys)

    @property
    def keyed_entities(self) -> tuple[str, ...]:
        """The entities that its keys are for; none where its key is one of the namespace."""
        return tuple(each.entity for each in (self, *self.other_keys) if each.entity)

    @property
    def present(self) -> Credential:
        """The credential to sign with now."""
        return self.credential if self.rotated is None else self.rotated.current

    def require_one_key(self) -> None:
        """Raise UsageError for a namespace with several keys, which no environment variable can have."""
        if self.other_keys:
            raise UsageError(
                f"{self.name} has keys of {1 + len(self.other_keys)} entities; other machines and Spark take one key",
                hint="give connection_string_env one variable, with a key of the namespace",
            )

    @property
    def key_file(self) -> str:
        """The path of the file that has the key; "" without one."""
        return self.key_source if Path(self.key_source).is_absolute() else ""

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


def shared_provider(first: Endpoint, second: Endpoint) -> str:
    """Return the host that issues the tokens of both namespaces, "" if none does."""
    identities = [each.credential for each in (first, second) if isinstance(each.credential, Identity)]
    default = os.environ.get("AZURE_AUTHORITY_HOST", "login.microsoftonline.com")
    hosts = {(each.authority or default).removeprefix("https://").strip("/").lower() for each in identities}
    return hosts.pop() if len(identities) == 2 and len(hosts) == 1 else ""


def sign_in(endpoint: Endpoint) -> str:
    """Describe the credential, without secrets."""
    credential = endpoint.present
    if isinstance(credential, SasKey):
        return f"key {credential.name} {MASK}"
    return f"signature {MASK}" if isinstance(credential, SasToken) else str(credential).removeprefix("the ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of a move: from a namespace, `source`, to another one or the same, `destination`.

    `backlog_of` is the name of the primary in the paths of the source's backlog queues, by default the destination's.
    """

    name: str
    source: Endpoint
    destination: Endpoint
    backlog_of: str = ""

    def __post_init__(self) -> None:
        if not self.backlog_of:
            object.__setattr__(self, "backlog_of", self.destination.name)

    @property
    def same(self) -> bool:
        """Whether both are one namespace."""
        return self.source.authority.lower() == self.destination.authority.lower()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two namespaces: messages for `primary` wait in backlog queues of `secondary` while it is unavailable.

    `failover_interval` and `ping_interval` are seconds. With `lost`, the primary is declared lost: nothing is sent to
    it, and clients send to the secondary's own entities, or with `when_lost="hold"` to the backlog until a release.
    """

    name: str
    primary: Endpoint
    secondary: Endpoint
    backlog_queues: int = 10
    failover_interval: float = 60.0
    ping_interval: float = 60.0
    lost: Literal["", "primary"] = ""
    when_lost: WhenLost = "secondary"

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
        if self.lost not in ("", "primary"):
            raise UsageError(
                f'pair {self.name!r}: expected lost "primary", got {self.lost!r}',
                hint="leave it out unless the primary is lost for good",
            )
        check_when_lost(self.when_lost)
        if self.ends.same:
            raise UsageError(
                f"pair {self.name!r}: the primary and the secondary are the same namespace",
                hint="a backlog in the primary would be unavailable together with it: choose another secondary",
            )

    @property
    def ends(self) -> Ends:
        """The ends of its syphon."""
        return self.ends_to(self.primary)

    def ends_to(self, destination: Endpoint) -> Ends:
        """Return the ends of a syphon that delivers the backlog to `destination`."""
        return Ends(name=self.name, source=self.secondary, destination=destination, backlog_of=self.primary.name)

    @property
    def loss(self) -> str:
        """The declaration that the primary is lost, as a sentence; "" without it."""
        to = self.secondary.name if self.when_lost == "secondary" else "the backlog until they are released"
        return f"the primary {self.primary.name} is declared lost: new sends go to {to}" if self.lost else ""

    @property
    def refusal(self) -> PrimaryLost:
        """The error for what would send to a primary that is declared lost."""
        return PrimaryLost(
            f"the primary {self.primary.name} is declared lost, and nothing is sent to it",
            hint="send to the secondary: sbpair syphon --once --to secondary, or name secondary:ENTITY;"
            ' once the primary is back, remove lost = "primary" (SBPAIR_LOST)',
        )

    def require_primary(self) -> None:
        """Raise PrimaryLost if the primary is declared lost."""
        if self.lost:
            raise self.refusal

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
        check_subscription(self.subscription)
        if not _RESOURCE_GROUP.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not the name of a resource group",
                hint="up to 90 letters, digits, '.', '-', '_' and parentheses: az group list --query [].name",
            )


def check_subscription(text: str) -> str:
    """Return the id of a subscription. Raises UsageError."""
    if not _SUBSCRIPTION.fullmatch(text):
        raise UsageError(
            f"{text!r} is not the id of a subscription",
            hint="write it as 00000000-0000-0000-0000-000000000000: az account show --query id",
        )
    return text


def check_when_lost(when_lost: str) -> None:
    """Raise UsageError for anything but a WhenLost."""
    if when_lost not in ("secondary", "hold"):
        raise UsageError(
            f'expected when_lost "secondary" or "hold", got {when_lost!r}',
            hint='"secondary" is the default; "hold" keeps new messages in the backlog until they are released',
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


def endpoint_settings(end: Endpoint) -> dict[str, str]:
    """Return the settings of a namespace that are no secret, by their keys in the configuration file."""
    found = {"name": end.name}
    address = authority_of(end.host, end.port)
    if isinstance(end.credential, Identity):
        found |= {"namespace": end.authority, **{key.lower(): text for key, text in end.credential.settings.items()}}
    if address not in (end.authority, f"{end.authority}:{end.port}"):
        found["endpoint"] = address
    if end.transport is not Transport.TCP:
        found["transport"] = end.transport.value
    if end.ca_file is not None:
        found["ca_file"] = end.ca_file
    if end.proxy is not None and end.proxy.user is None:
        found["proxy"] = end.proxy.url
    return found


def pair_variables(pair: Pair, *, files: bool = False) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that are no secret, and the names of those that are.

    With `files`, a key that is in a file stays there; else it is one of the secrets, as for another machine.
    """
    for end in (pair.primary, pair.secondary):
        end.require_one_key()
    found: dict[str, str] = {"SBPAIR_LOST": pair.lost} if pair.lost else {}
    secrets = []
    for side, end in (("SBPAIR_PRIMARY", pair.primary), ("SBPAIR_SECONDARY", pair.secondary)):
        found |= {f"{side}_{key.upper()}": value for key, value in endpoint_settings(end).items()}
        if isinstance(end.credential, Identity):
            secrets += [f"{side}_CLIENT_SECRET"] * bool(end.credential.secret)
        elif files and end.key_file:
            found[f"{side}_CONNECTION_STRING_FILE"] = end.key_file
        else:
            secrets.append(f"{side}_CONNECTION_STRING")
        if end.proxy is not None and end.proxy.user is not None:
            secrets.append(f"{side}_PROXY")
    return found, tuple(secrets)
