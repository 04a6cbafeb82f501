"""Relay endpoints, pairs of them, and their addresses. Pure: no repr and no error shows a secret."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from sbpair.errors import ConnectionStringError, NameInvalid, UsageError
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import HTTP_PORT, HTTPS_PORT, Credential, Endpoint, SasKey, SasToken, Side, authority_of
from sbpair.model.proxy import Proxy, proxy_for
from sbpair.model.rotated_key import RotatedKey

MAX_PATH: Final = 260
MAX_SUFFIX: Final = 8_000

_PATH: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")
_RESERVED: Final = "sb-hc-"
_SAFE: Final = "!$%&'()*+,-./:;=?@_~"


class TokenProvider(Protocol):
    """A credential of azure-identity, sync or async: `get_token(scope)` returns a token and its expiry."""

    def get_token(self, *scopes: str, **options: Any) -> Any | Awaitable[Any]: ...


RelayCredential: TypeAlias = Credential | TokenProvider


@dataclass(frozen=True, slots=True)
class RelayEndpoint:
    """A hybrid connection: its namespace, as `host` or `host:port`, its path, and a credential for it.

    `ca_file` holds the certificates to trust instead of the machine's. Without `proxy`, that of the environment is
    used with TLS. `rotated` is that of an Endpoint. Raises NameInvalid for a path, UsageError for a namespace.
    """

    namespace: str
    path: str
    credential: RelayCredential = field(repr=False)
    tls: bool = True
    ca_file: str | None = None
    proxy: Proxy | None = None
    rotated: RotatedKey[SasKey | SasToken] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (
            not _AUTHORITY.fullmatch(self.namespace)
            or int(self.namespace.rpartition("]")[2].partition(":")[2] or 1) > 65535
        ):
            raise UsageError(
                f"expected a namespace such as contoso.servicebus.windows.net, got {self.namespace[:80]!r}",
                hint="give its host, and a port if it is not 443: neither a scheme nor a path",
            )
        segments = self.path.split("/")
        if len(self.path) > MAX_PATH or not _PATH.fullmatch(self.path) or climbs(self.path) or "" in segments:
            raise NameInvalid(
                f"{self.path[:80]!r} is not the path of a hybrid connection",
                hint=f"up to {MAX_PATH} letters, digits, '.', '-', '_' and '/', with a letter or digit at both ends",
            )

    @classmethod
    def from_connection_string(
        cls, text: str, path: str | None = None, *, ca_file: str | None = None, proxy: Proxy | None = None
    ) -> Self:
        """Parse a connection string of the namespace, or of one hybrid connection (EntityPath).

        Raises ConnectionStringError, which never repeats a value; NameInvalid.
        """
        rest, path = split_entity_path(text, path)
        if not path:
            raise ConnectionStringError(
                "the connection string has no EntityPath, and no path is given", hint="give the path of the endpoint"
            )
        endpoint = endpoint_from_connection_string(rest, ca_file=ca_file)
        made = cls.of_namespace(endpoint, path)
        return made if proxy is None else cls(made.namespace, path, made.credential, made.tls, ca_file, proxy)

    @classmethod
    def of_namespace(cls, endpoint: Endpoint, path: str) -> Self:
        """Return the hybrid connection `path` of a configured namespace.

        Raises NameInvalid; UsageError if the namespace is reached at an address that is not its own.
        """
        if endpoint.tls and endpoint.host.lower() != endpoint.tls_name.lower():
            raise UsageError(
                f"{endpoint.name}: a relay endpoint is reached at its own address, not at another host",
                hint="leave the address out: the name server of a private link returns the private address",
            )
        default = HTTPS_PORT if endpoint.tls else HTTP_PORT
        port = None if endpoint.web_port == default else endpoint.web_port
        host = endpoint.tls_name if endpoint.tls else endpoint.host
        options = (endpoint.tls, endpoint.ca_file, endpoint.proxy, endpoint.rotated)
        return cls(authority_of(host, port), path, endpoint.credential, *options)

    @property
    def present(self) -> RelayCredential:
        """The credential to sign with now."""
        return self.credential if self.rotated is None else self.rotated.current

    @property
    def host(self) -> str:
        return urlsplit(f"//{self.namespace}").hostname or self.namespace

    def web_proxy(self) -> Proxy | None:
        """Return the proxy that leads to it. Raises UsageError for a malformed one."""
        return proxy_for(self.host, self.proxy, tls=self.tls)

    @property
    def audience(self) -> str:
        """The resource that tokens are issued for: without port, as the service compares it."""
        return f"http://{self.host}/{self.path}"

    def __str__(self) -> str:
        return f"{self.path} in {self.namespace}"

    def request_url(self, suffix: str = "") -> str:
        """Return the address of HTTP requests. `suffix` begins with `/` or `?`. Raises UsageError."""
        return f"{'https' if self.tls else 'http'}://{self.namespace}/{self.path}{checked_suffix(suffix)}"

    def connect_url(self, suffix: str = "") -> str:
        """Return the address of a sender's WebSocket. Raises UsageError."""
        return self._websocket_url(checked_suffix(suffix), "connect")

    def listen_url(self, listener_id: str) -> str:
        """Return the address of a control channel."""
        return self._websocket_url("", "listen", f"&sb-hc-id={quote(listener_id, safe='')}")

    def _websocket_url(self, suffix: str, action: str, more: str = "") -> str:
        scheme, join = "wss" if self.tls else "ws", "&" if "?" in suffix else "?"
        return f"{scheme}://{self.namespace}/$hc/{self.path}{suffix}{join}sb-hc-action={action}{more}"


@dataclass(frozen=True, slots=True)
class RelayPair:
    """Two relay endpoints, in two namespaces, for one service. Raises UsageError if they are in one namespace."""

    primary: RelayEndpoint
    secondary: RelayEndpoint

    def __post_init__(self) -> None:
        if self.primary.namespace.lower() == self.secondary.namespace.lower():
            raise UsageError(
                f"both relay endpoints are in {self.primary.namespace}",
                hint="put the second one in another namespace: the first one would take it along when it fails",
            )

    def __getitem__(self, side: Side) -> RelayEndpoint:
        return self.primary if side == "primary" else self.secondary


def split_entity_path(text: str, path: str | None) -> tuple[str, str | None]:
    """Return a connection string without its EntityPath, and the path, given or from there.

    Raises ConnectionStringError for several paths.
    """
    pieces = text.split(";")
    own = [each for each in pieces if each.partition("=")[0].strip().lower() == "entitypath"]
    found = [each.partition("=")[2].strip() for each in own]
    if len(found) > 1 or (path and found and found[0] and found[0].lower() != path.lower()):
        what = "it has several EntityPaths" if len(found) > 1 else "its EntityPath is not the path of the endpoint"
        raise ConnectionStringError(
            f"the connection string is invalid: {what}",
            hint="leave the path out, or use a shared access policy of the namespace",
        )
    return ";".join(each for each in pieces if each not in own), path or next(iter(found), None)


def other_side(side: Side) -> Side:
    return "secondary" if side == "primary" else "primary"


def climbs(path: str) -> bool:
    """Return whether a segment of an escaped path is `.` or `..`."""
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path)))


def checked_suffix(suffix: str) -> str:
    """Return what follows the path of an endpoint, escaped. Raises UsageError if it leaves the endpoint.

    A suffix begins with `/` or `?`. Escapes stay as they are. Names of query parameters that begin with `sb-hc-` belong
    to the relay.
    """
    if not suffix:
        return ""
    path, _, query = suffix.partition("?")
    problem = ""
    if suffix[0] not in "/?":
        problem = "it does not begin with '/' or '?'"
    elif len(suffix) > MAX_SUFFIX:
        problem = f"it is longer than {MAX_SUFFIX} characters"
    elif _CONTROL.search(suffix) or _CONTROL.search(unquote(path).replace(" ", "")):
        problem = "it has spaces or control characters"
    elif "#" in suffix or "\\" in suffix:
        problem = "it has a '#' or a '\\'"
    elif climbs(path):
        problem = "a part of its path is '.' or '..'"
    elif any(unquote(each.partition("=")[0]).lower().startswith(_RESERVED) for each in query.split("&")):
        problem = f"a query parameter begins with {_RESERVED}"
    if problem:
        raise UsageError(f"invalid suffix of a relay request: {problem}", hint="give a suffix such as /orders?id=7")
    try:
        return quote(suffix, safe=_SAFE)
    except UnicodeEncodeError:
        raise UsageError("invalid suffix of a relay request: it is not Unicode", hint="give text") from None


def target_of(address: str) -> str:
    """Return path and query of a sender, from a rendezvous address: without `/$hc` and the relay's own parameters."""
    url = urlsplit(address)
    path = url.path.partition("/$hc")[2] or url.path
    kept = [each for each in url.query.split("&") if not ("=" in each and each.lower().startswith(_RESERVED))]
    query = "&".join(kept)
    return f"{path}?{query}" if query else path
