"""The nouns that every part of sbpair shares.

Frozen dataclasses and the pure functions that make them. Nothing here does I/O, reads a clock or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sbpair.errors import ConnectionStringError, UsageError

AMQP_PORT = 5672
AMQPS_PORT = 5671


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

    `name` is the namespace's own name (`contoso`), which backlog paths are made of. `authority` is the host, with the
    port where the connection string has one; tokens are made out to it. `host` and `port` are where to connect, which differ
    from it behind a proxy or a private link. `ca_file` holds the certificates to trust instead of the machine's.
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
        if self.backlog_queues < 1:
            raise UsageError(
                f"pair {self.name!r}: backlog_queues is {self.backlog_queues}, and must be at least 1",
                hint="10 is the default, and what the original used",
            )
        if self.primary.authority.lower() == self.secondary.authority.lower():
            raise UsageError(
                f"pair {self.name!r}: the primary and the secondary are the same namespace",
                hint="a backlog in the namespace that it stands in for would be away together with it",
            )


def endpoint_from_connection_string(text: str, *, name: str | None = None, ca_file: str | None = None) -> Endpoint:
    """Read a Service Bus connection string, as the portal and the emulator print it.

    Raises ConnectionStringError, which says which part is wrong and never repeats a value.
    """
    parts = _connection_string_parts(text)
    address = parts.get("endpoint")
    if not address:
        raise _bad_connection_string("it has no Endpoint=")
    url = urlsplit(address)
    if url.scheme != "sb" or not url.hostname:
        raise _bad_connection_string("its Endpoint is not of the form sb://<host>/")
    try:
        port = url.port
    except ValueError:
        raise _bad_connection_string("the port of its Endpoint is not a number from 1 to 65535") from None
    emulator = parts.get("usedevelopmentemulator", "false").lower() == "true"
    return Endpoint(
        name=name or first_label(url.hostname),
        authority=url.hostname if port is None else f"{url.hostname}:{port}",
        host=url.hostname,
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


def first_label(host: str) -> str:
    """`contoso` for `contoso.servicebus.windows.net`, lower-case as the service compares it."""
    return host.split(".", 1)[0].lower()


def _connection_string_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.strip().split(";"))):
        key, equals, value = piece.partition("=")
        if not equals:
            raise _bad_connection_string("a part of it has no '='")
        lowered = key.strip().lower()
        if lowered in parts:
            raise _bad_connection_string(f"it has {lowered!r} twice" if lowered.isalpha() else "a key stands twice")
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
