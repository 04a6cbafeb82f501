"""HTTP proxies, and the one of the environment. No repr and no error shows credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from sbpair.errors import UsageError
from sbpair.operating_system import has_system_proxy

VARIABLES = ("https_proxy", "HTTPS_PROXY")
EXPECTED = "expected a proxy such as http://proxy.example.com:3128"
ESCAPES = "in a password, write @ as %40, : as %3A, / as %2F and # as %23"

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `scheme` is https if TLS leads to it; `source` names the variable or the key that it came from."""

    host: str
    port: int
    scheme: str = "http"
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    source: str = field(default="", compare=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL, without credentials."""
        return f"{self.scheme}://{self.address}"

    @property
    def authorization(self) -> str | None:
        """The value of the header Proxy-Authorization."""
        if self.user is None:
            return None
        import base64  # here: short commands need no proxy

        pair = f"{self.user}:{self.password or ''}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def parse_proxy(text: str, source: str) -> Proxy:
    """Parse `[http[s]://][user:password@]host[:port]`. Raises UsageError, which never repeats the text."""
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        raise _malformed(source, "its host or port is malformed") from None
    if url.scheme not in _PORTS:
        raise _malformed(source, "it is not an HTTP proxy")
    if not host or port == 0 or any(each.isspace() or not each.isprintable() for each in text):
        raise _malformed(source, "its host or port is malformed")
    if url.path not in ("", "/") or url.query or url.fragment:
        raise _malformed(source, "something follows its port")
    user = None if url.username is None else unquote(url.username)
    password = None if url.password is None else unquote(url.password)
    if user is not None and ":" in user:
        raise _malformed(source, "its user has a colon, which HTTP does not allow")
    return Proxy(host, port or _PORTS[url.scheme], url.scheme, user, password, source)


def proxy_for(host: str, own: Proxy | None, *, tls: bool, environ: Mapping[str, str] = os.environ) -> Proxy | None:
    """Return the proxy for HTTP to `host`: its own, or the environment's or, on Windows and macOS, the system's.

    Only TLS has the latter two: they lead out of this network, not to an emulator on this machine. Raises UsageError.
    """
    if own is not None or not tls:
        return own
    source = next((name for name in VARIABLES if name in environ), "")
    if not source and not has_system_proxy():
        return None
    # It takes as long to load as a short command runs.
    from urllib.request import getproxies, proxy_bypass, proxy_bypass_environment  # type: ignore[attr-defined]

    if not source:
        address, passed_by = getproxies().get("https", ""), bool(proxy_bypass(host))
    else:
        exempt = environ.get("no_proxy", environ.get("NO_PROXY", ""))
        address, passed_by = environ[source], bool(proxy_bypass_environment(host, {"no": exempt}))
    return None if passed_by or not address else parse_proxy(address, source or "the system's settings")


def _malformed(source: str, problem: str) -> UsageError:
    return UsageError(f"{source}: {EXPECTED}, and {problem}", hint=f"correct {source}; {ESCAPES}")
