"""The nouns that every part of sbpair shares.

Frozen dataclasses and the pure functions that make them. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from ipaddress import ip_address
from typing import ClassVar
from urllib.parse import urlsplit

from sbpair.errors import ConnectionStringError, NameInvalid, UsageError

AMQP_PORT = 5672
AMQPS_PORT = 5671

BACKLOG_QUEUES_MOST = 10_000
"""A namespace of the Standard tier holds no more entities than that."""

# The service refuses anything above this, and Python's timedelta, with its six decimals, rounds it up.
TIMESPAN_MAX = "P10675199DT2H48M5.4775807S"
TIMESPAN_MAX_DAYS = 10_675_199
TICKS_PER_SECOND = 10_000_000


@dataclass(frozen=True, slots=True)
class SasKey:
    """A shared access key: who holds it can mint tokens for as long as the key lives."""

    name: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SasToken:
    """A ready-made `SharedAccessSignature …`: it cannot be renewed here when it expires."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whoever azure-identity's DefaultAzureCredential finds to be signed in."""


Credential = SasKey | SasToken | Identity


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One namespace of a pair, and how it is reached.

    `name` is the namespace's own name (`contoso`), which backlog paths are made of. `authority` is the
    host, with the port where the connection string has one; tokens are made out to it. `host` and `port`
    are where to connect, which differ from it behind a proxy or a private link. `ca_file` holds the
    certificates to trust instead of the machine's.
    """

    name: str
    authority: str
    host: str
    port: int
    tls: bool
    credential: Credential
    ca_file: str | None = None
    emulator: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """Two namespaces: messages for `primary` wait in backlog queues of `secondary` while it is away.

    `failover_interval` and `ping_interval` are seconds.
    """

    name: str
    primary: Endpoint
    secondary: Endpoint
    backlog_queues: int = 10
    failover_interval: float = 60.0
    ping_interval: float = 60.0

    def __post_init__(self) -> None:
        if not _PAIR_NAME.fullmatch(self.name):
            raise NameInvalid(
                f"{self.name!r} cannot be the name of a pair",
                hint="use up to 64 letters, digits, '.', '-' and '_', with a letter or a digit first",
            )
        if self.backlog_queues < 1:
            raise UsageError(
                f"pair {self.name!r}: backlog_queues is {self.backlog_queues}, and must be at least 1",
                hint="10 is the default, and what the original used",
            )
        if self.backlog_queues > BACKLOG_QUEUES_MOST:
            raise UsageError(
                f"pair {self.name!r}: backlog_queues is {self.backlog_queues}, and must be at most"
                f" {BACKLOG_QUEUES_MOST}",
                hint="10 is the default, and what the original used",
            )
        self._check_seconds("failover_interval", self.failover_interval, 0, 3600)
        self._check_seconds("ping_interval", self.ping_interval, 1, 1800)
        if self.primary.authority.lower() == self.secondary.authority.lower():
            raise UsageError(
                f"pair {self.name!r}: the primary and the secondary are the same namespace",
                hint="a backlog in the namespace that it stands in for would be away together with it",
            )

    def _check_seconds(self, option: str, value: float, least: int, most: int) -> None:
        if not least <= value <= most:
            raise UsageError(
                f"pair {self.name!r}: {option} is {value:g} s, and must be from {least} s to {most} s",
                hint="60 s is the default, and what the original used",
            )


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue's description. The defaults are the service's own; durations are ISO 8601 text.

    Text and not timedelta, because TIMESPAN_MAX does not fit a timedelta.
    """

    kind: ClassVar[str] = "queue"

    path: str
    lock_duration: str = "PT1M"
    max_size_in_megabytes: int = 1024
    max_delivery_count: int = 10
    default_message_time_to_live: str = TIMESPAN_MAX
    auto_delete_on_idle: str = TIMESPAN_MAX
    dead_lettering_on_message_expiration: bool = False
    enable_batched_operations: bool = True
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    forward_to: str = ""
    forward_dead_lettered_messages_to: str = ""
    status: str = "Active"


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages of a queue. `total` includes what has no figure of its own here, such as deferred ones."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the service gave it back. `counts` is None where they were not asked for."""

    spec: QueueSpec
    partitioned: bool = False
    counts: Counts | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One property of a queue that is not what it should be. `property` is the service's own name for it."""

    property: str
    expected: str | int | bool
    actual: str | int | bool


@dataclass(frozen=True, slots=True)
class Create:
    """A queue that is missing, and that provisioning makes."""

    spec: QueueSpec
    index: int

    @property
    def path(self) -> str:
        return self.spec.path


@dataclass(frozen=True, slots=True)
class Match:
    """A queue that is as it should be."""

    state: QueueState
    index: int

    @property
    def path(self) -> str:
        return self.state.spec.path


@dataclass(frozen=True, slots=True)
class Drift:
    """A queue that is there with other properties than it should have. It is reported, and never changed."""

    state: QueueState
    index: int
    differences: tuple[Difference, ...]

    @property
    def path(self) -> str:
        return self.state.spec.path


@dataclass(frozen=True, slots=True)
class Extra:
    """A queue under the prefix that nobody asked for: an index beyond the count, or none at all (None)."""

    state: QueueState
    index: int | None

    @property
    def path(self) -> str:
        return self.state.spec.path


Change = Create | Match | Drift | Extra


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """What is known of one queue of a report. `counts` is None where the queue is not there."""

    index: int | None
    counts: Counts | None = None
    differences: tuple[Difference, ...] = ()
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """Event: the backlog queues of a namespace were read."""

    namespace: str
    queues: int


@dataclass(frozen=True, slots=True)
class Retrying:
    """Event: something failed in a way that may pass, and is tried again after `wait_seconds`."""

    what: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class QueueDone:
    """Event: one queue of `total` was dealt with. `outcome` is a value of `report.Outcome`."""

    path: str
    outcome: str
    done: int
    total: int


ControlEvent = Listed | Retrying | QueueDone


def endpoint_from_connection_string(text: str, *, name: str | None = None, ca_file: str | None = None) -> Endpoint:
    """Read a Service Bus connection string, as the portal and the emulator print it.

    Raises ConnectionStringError, which says which part is wrong and never repeats a value.
    """
    parts = _connection_string_parts(text)
    address = parts.get("endpoint")
    if not address:
        raise _bad_connection_string("it has no Endpoint=")
    host, port = _host_and_port(address)
    emulator = parts.get("usedevelopmentemulator", "false").lower() == "true"
    return Endpoint(
        name=name or first_label(host),
        authority=authority_of(host, port),
        host=host,
        port=port or (AMQP_PORT if emulator else AMQPS_PORT),
        tls=not emulator,
        credential=_connection_string_credential(parts),
        ca_file=ca_file,
        emulator=emulator,
    )


def looks_like_connection_string(text: str) -> bool:
    """Whether `text` holds what must not stand where other users of the machine can read it."""
    lowered = text.lower()
    return any(mark in lowered for mark in ("sharedaccesskey=", "sharedaccesssignature", "endpoint=sb:"))


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Where Azure Resource Manager keeps namespaces. Raises UsageError for what can be none."""

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
    """`contoso` for `contoso.servicebus.windows.net`, lower-case as the service compares it.

    An address has no labels, and stands for itself.
    """
    return host.lower() if is_address(host) else host.split(".", 1)[0].lower()


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, which says nothing about a namespace's name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def authority_of(host: str, port: int | None) -> str:
    """`host[:port]` as it stands in a URL: an IPv6 address in brackets."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"


def ticks(duration: str) -> int:
    """The 100 ns ticks of a duration: `90s`, `1m`, `1.5h`, `1h30m`, `PT1M`, or a bare number of seconds.

    Days are 24 hours; years and months, which have no fixed length, are refused. Raises UsageError.
    """
    text = duration.strip()
    if number := _BARE_SECONDS.fullmatch(text):
        parts = {"s": number.group(0)}
    else:
        match = _ISO_DURATION.fullmatch(text) or _SPOKEN_DURATION.fullmatch(text)
        parts = {unit: value for unit, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise UsageError(f"{duration!r} is not a duration", hint="write 90s, 1m, 1h30m or PT1M")
    return int(sum(Decimal(value) * _UNIT_SECONDS[unit] for unit, value in parts.items()) * TICKS_PER_SECOND)


def iso_duration(count: int) -> str:
    """Ticks as ISO 8601 text; anything from the days of TimeSpan.MaxValue on is that value."""
    days, rest = divmod(count, 86_400 * TICKS_PER_SECOND)
    if days >= TIMESPAN_MAX_DAYS:
        return TIMESPAN_MAX
    minutes, rest = divmod(rest, 60 * TICKS_PER_SECOND)
    hours, minutes = divmod(minutes, 60)
    whole, fraction = divmod(rest, TICKS_PER_SECOND)
    seconds = f"{whole}.{fraction:07d}".rstrip("0").rstrip(".") if fraction else f"{whole or ''}"
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if value)
    return f"P{f'{days}D' if days else ''}{f'T{time}' if time else ''}" if days or time else "PT0S"


_SUBSCRIPTION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_RESOURCE_GROUP = re.compile(r"[\w.()-]{0,89}[\w()-]")
_PAIR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_UNIT_SECONDS = {
    "w": Decimal(604_800),
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_N = r"\d{1,12}(?:\.\d{1,9})?"
_BARE_SECONDS = re.compile(_N, re.ASCII)
_ISO_DURATION = re.compile(
    rf"P(?:(?P<w>{_N})W)?(?:(?P<d>{_N})D)?(?:T(?:(?P<h>{_N})H)?(?:(?P<m>{_N})M)?(?:(?P<s>{_N})S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SPOKEN_DURATION = re.compile(
    rf"(?:(?P<w>{_N})\s*w)?\s*(?:(?P<d>{_N})\s*d)?\s*(?:(?P<h>{_N})\s*h)?\s*(?:(?P<m>{_N})\s*m)?\s*"
    rf"(?:(?P<s>{_N})\s*s)?\s*(?:(?P<ms>{_N})\s*ms)?",
    re.ASCII | re.IGNORECASE,
)


def _host_and_port(address: str) -> tuple[str, int | None]:
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port
    except ValueError:
        raise _bad_connection_string("the host or the port of its Endpoint is malformed") from None
    if url.scheme != "sb" or not host:
        raise _bad_connection_string("its Endpoint is not of the form sb://<host>/")
    if port == 0:
        raise _bad_connection_string("the port of its Endpoint is not a number from 1 to 65535")
    return host, port


_KNOWN_PARTS = frozenset(
    (
        "endpoint",
        "sharedaccesskeyname",
        "sharedaccesskey",
        "sharedaccesssignature",
        "entitypath",
        "usedevelopmentemulator",
    )
)


def _connection_string_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.strip().split(";"))):
        key, equals, value = piece.partition("=")
        if not equals:
            raise _bad_connection_string("a part of it has no '='")
        lowered = key.strip().lower()
        if lowered in parts:
            # Only a known key is named: an unknown one may be a piece of a secret that holds a ';'.
            raise _bad_connection_string(
                f"it has {lowered!r} twice" if lowered in _KNOWN_PARTS else "a key stands twice"
            )
        parts[lowered] = value.strip()
    return parts


def _connection_string_credential(parts: dict[str, str]) -> Credential:
    if token := parts.get("sharedaccesssignature"):
        return SasToken(token)
    name, key = parts.get("sharedaccesskeyname"), parts.get("sharedaccesskey")
    if name and key:
        return SasKey(name, key)
    missing = "SharedAccessKeyName" if not name else "SharedAccessKey"
    raise _bad_connection_string(f"it has no {missing}=")


def _bad_connection_string(what: str) -> ConnectionStringError:
    return ConnectionStringError(
        f"the connection string cannot be read: {what}",
        hint="copy it whole from the portal: Endpoint=sb://<namespace>.servicebus.windows.net/;"
        "SharedAccessKeyName=<name>;SharedAccessKey=<key>",
    )
