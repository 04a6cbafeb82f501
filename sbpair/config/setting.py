"""Values with their sources, the merge of layers, and the checked Pair of merged settings.

Pure; errors name the source of the wrong value, and no repr shows a secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from sbpair.errors import ConnectionStringError, UsageError, noting, raise_all
from sbpair.model.connection_string import (
    credential_of,
    endpoint_from_connection_string,
    looks_like_connection_string,
    read_key_file,
    remarks_on,
    transport_in,
)
from sbpair.model.pair import (
    AMQPS_PORT,
    IDENTITY_KINDS,
    SIDES,
    Endpoint,
    Identity,
    Pair,
    Transport,
    first_label,
    is_address,
    is_loopback,
)
from sbpair.model.proxy import Proxy, parse_proxy
from sbpair.model.rotated_key import RotatedKey
from sbpair.operating_system.files import user_directory
from sbpair.timespan import TICKS_PER_SECOND, ticks

log = logging.getLogger(__name__)

Environment: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Secret:
    """A connection string, a proxy with its credentials, or an identity's secret, hidden from every repr and message.

    `text` may name one in a secret manager. `more` are those of further entities. `reread` returns what its source has
    now; None where that stays the same.
    """

    text: str = field(repr=False)
    reread: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    more: tuple[Setting, ...] = ()

    def opened(self, source: str) -> Secret:
        """Return it with the text that its file, or the secret manager, has. Raises the errors of both."""
        if self.text and not self.text.startswith(REFERENCES):
            return self
        read = self.reread or (lambda: self.text)
        return Secret(_fetched(read(), source), lambda: _fetched(read(), source, again=True))


REFERENCES = ("https://", "gsm://")


def _fetched(text: str, source: str, *, again: bool = False) -> str:
    """Return the secret that a text names, else the text. Raises what `read_secret` raises, ConnectionStringError."""
    if not text.startswith(REFERENCES):
        return text
    from sbpair.azure.fetched_secrets import read_secret  # it loads clients of HTTP

    if (found := read_secret(text, again=again)) == text:
        hint = "write https://VAULT.vault.azure.net/secrets/NAME, or the connection string itself"
        raise ConnectionStringError(f"{source} has the URL of another service than Key Vault", hint=hint)
    return found


def key_file(path: str, option: str) -> Setting:
    """Return the setting of a connection string in a file, which is not read yet. `option` names the file in errors."""
    place = str(Path(path).absolute())
    origin = Origin.ENVIRONMENT if option.startswith("SBPAIR_") else Origin.FILE
    return Setting(Secret("", partial(read_key_file, place, option)), place, origin)


class Origin(StrEnum):
    """The kind of a value's source. The values are part of the JSON contract of `sbpair config`."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source: `--count`, `SBPAIR_PRIMARY_NAME`, `config.toml [pairs.orders]`.

    The source of a derived value is the key that it follows from; a default has none.
    """

    value: str | int | float | bool | Secret
    source: str
    origin: Origin


# Keys are such as `backlog_queues` or `primary.endpoint`. `primary.address` is a namespace's name or connection string:
# they exclude each other.
Layer: TypeAlias = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of the command line; None if not given."""

    pair: str | None = None
    config: Path | None = None
    state: Path | None = None
    primary: str | None = None
    secondary: str | None = None
    transport: str | None = None
    backlog_queues: int | None = None


def merged(*layers: Layer) -> dict[str, Setting]:
    """Merge layers, the highest first. Only the highest layer with a side's address configures that side.

    Lower layers' name and endpoint for it belong to another namespace, and are dropped.
    """
    settings: dict[str, Setting] = {}
    for layer in layers:
        closed = {side for side in SIDES if f"{side}.address" in settings}
        for key, setting in layer.items():
            if key.partition(".")[0] not in closed:
                settings.setdefault(key, setting)
    return settings


def user_path(kind: Literal["config", "state"], name: str, environ: Environment) -> Setting:
    """Return a path in this user's directory of a kind, and the XDG variable that it follows."""
    directory, variable = user_directory(kind, environ)
    return Setting(str(directory / name), variable, Origin.ENVIRONMENT if variable else Origin.DEFAULT)


ONE_ADDRESS = "keep one: the connection string of a key, the file that has it, or the namespace for an identity"
ONE_PROXY = "keep one: proxy_env names the variable of a proxy with user and password"


def conflict(one: str, other: str, place: str, hint: str = ONE_ADDRESS) -> UsageError:
    """Return the error for two values of one setting in one place."""
    return UsageError(f"{place} has both {one} and {other}", hint=hint)


def secret_in(source: str) -> UsageError:
    """Return the error for a secret in a setting that is printed. It does not repeat it."""
    return UsageError(
        f"{source} holds a connection string or a password, which is a secret",
        hint="put it into SBPAIR_PRIMARY_CONNECTION_STRING, SBPAIR_PRIMARY_PROXY or the secondary's variables",
    )


PUBLIC_SUFFIX = ".servicebus.windows.net"
CLOUD_SUFFIXES = (PUBLIC_SUFFIX, ".servicebus.usgovcloudapi.net", ".servicebus.chinacloudapi.cn")


def build_pair(name: str, settings: Mapping[str, Setting]) -> Pair:
    """Build the checked Pair that the merged settings describe. Raises UsageError for both sides at once."""
    sides, wrong = dict[str, Endpoint](), list[UsageError]()
    for side in SIDES:
        with noting(wrong):
            sides[side] = build_endpoint(side, settings, name)
    raise_all(wrong)
    pair = Pair(name, sides["primary"], sides["secondary"])
    if (count := settings.get("backlog_queues")) and isinstance(count.value, int):
        pair = replace(pair, backlog_queues=count.value)
    if failover := settings.get("failover_interval"):
        pair = replace(pair, failover_interval=_seconds(failover))
    if ping := settings.get("ping_interval"):
        pair = replace(pair, ping_interval=_seconds(ping))
    declared = {key: settings[key].value for key in ("lost", "when_lost") if key in settings}
    return replace(pair, **declared)  # type: ignore[arg-type]  # the pair checks them


def build_endpoint(side: str, settings: Mapping[str, Setting], pair: str) -> Endpoint:
    """Build one side of a pair, or a single namespace: its address, and its overrides."""
    address = settings.get(f"{side}.address")
    if address is None and side not in SIDES:
        raise UsageError(f"[{side}] has no address", hint="give it a namespace, or a connection_string_env")
    if address is None:
        raise UsageError(
            f"pair {pair!r} has no {side} namespace",
            hint=f"set SBPAIR_{side.upper()}_CONNECTION_STRING, or [pairs.{pair}.{side}] in the configuration file",
        )
    endpoint, transport = _endpoint_at(address)
    own = settings.get(f"{side}.transport")
    if transport is not None and (own is None or own.origin is Origin.FILE):
        settings = {**settings, f"{side}.transport": Setting(transport, address.source, address.origin)}
    if name := settings.get(f"{side}.name"):
        endpoint = replace(endpoint, name=str(name.value))
    elif side == "primary" and is_address(endpoint.host):
        raise UsageError(
            f"{address.source}: the namespace's name is unknown: {endpoint.host} is an IP address",
            hint="set SBPAIR_PRIMARY_NAME, or name in the configuration file: it is part of backlog queue paths",
        )
    endpoint = _with_identity(_with_overrides(endpoint, side, settings), side, settings)
    _refuse_readable_credential(endpoint, address.source)
    return endpoint


def _refuse_readable_credential(endpoint: Endpoint, source: str) -> None:
    """Raise UsageError where a token of Azure would travel without TLS to another machine."""
    if endpoint.tls or is_loopback(endpoint.host):
        return
    if isinstance(endpoint.credential, Identity):
        raise UsageError(
            f"{source}: the token of an identity would travel without TLS to {endpoint.host}",
            hint="remove tls = false; an emulator on another machine takes a connection string, or TLS with a ca_file",
        )
    if endpoint.host.lower().endswith(CLOUD_SUFFIXES):
        raise UsageError(
            f"{source}: TLS is off, and {endpoint.host} is a namespace of Azure",
            hint="remove UseDevelopmentEmulator=true, or tls = false: they are for emulators",
        )


def _seconds(setting: Setting) -> float:
    try:
        return ticks(str(setting.value)) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{setting.source}: {error.message}", hint=error.hint) from None


def _endpoint_at(address: Setting) -> tuple[Endpoint, Transport | None]:
    """Return the namespace at an address, and the transport that its connection string names, if any."""
    if isinstance(address.value, Secret):
        secret = address.value.opened(address.source)
        try:
            endpoint, transport = endpoint_from_connection_string(secret.text), transport_in(secret.text)
        except UsageError as error:
            raise type(error)(f"{address.source}: {error.message}", hint=error.hint) from None
        rotated = None
        if reread := secret.reread:
            rotated = RotatedKey(credential_of(secret.text), lambda: credential_of(reread()))
        for remark in remarks_on(secret.text):
            log.warning("%s: %s", address.source, remark)
        endpoint = replace(endpoint, key_source=address.source, rotated=rotated)
        return replace(endpoint, other_keys=_other_keys(endpoint, address.value.more)), transport
    text = str(address.value)
    if looks_like_connection_string(text):
        raise UsageError(
            f"{address.source}: expected the name of a namespace, got a connection string",
            hint="put it into SBPAIR_PRIMARY_CONNECTION_STRING or SBPAIR_SECONDARY_CONNECTION_STRING",
        )
    host = (text if "." in text or is_address(text) else text + PUBLIC_SUFFIX).lower()
    if _host_port(f"{host}:1") is None:
        raise UsageError(
            f"{address.source}: expected a namespace, got {_shown(text)}",
            hint=f"write contoso or contoso{PUBLIC_SUFFIX}",
        )
    return Endpoint(first_label(host), host, host, AMQPS_PORT, tls=True, credential=Identity()), None


def _other_keys(endpoint: Endpoint, more: tuple[Setting, ...]) -> tuple[Endpoint, ...]:
    """Return the keys of further entities. Raises UsageError for one of another namespace."""
    others = [(each.source, _endpoint_at(each)[0]) for each in more]
    known: dict[str, str] = {}
    for source, other in [(endpoint.key_source, endpoint), *others] if others else []:
        wrong, hint = "", "copy the connection string of the queue's own shared access policy"
        if not other.entity:
            wrong = "has no EntityPath, and is one of several"
        elif other.authority != endpoint.authority:
            wrong, hint = (
                f"is of {other.name}, and {endpoint.key_source} of {endpoint.name}",
                "keep those of one namespace",
            )
        elif (path := other.entity.lower()) in known:
            wrong, hint = f"has the EntityPath of {known[path]}", "keep one of them"
        if wrong:
            raise UsageError(f"{source}: the connection string {wrong}", hint=hint)
        known[path] = source
    return tuple(other for _, other in others)


def _with_overrides(endpoint: Endpoint, side: str, settings: Mapping[str, Setting]) -> Endpoint:
    if setting := settings.get(f"{side}.endpoint"):
        found = _host_port(str(setting.value))
        if found is None:
            raise UsageError(
                f"{setting.source}: expected host:port, got {_shown(setting.value)}", hint="write 127.0.0.1:5672"
            )
        endpoint = replace(endpoint, host=found[0], port=found[1])
    if setting := settings.get(f"{side}.tls"):
        endpoint = replace(endpoint, tls=bool(setting.value))
    if setting := settings.get(f"{side}.ca_file"):
        endpoint = replace(endpoint, ca_file=str(setting.value))
    if setting := settings.get(f"{side}.proxy"):
        endpoint = replace(endpoint, proxy=_proxy(setting, endpoint), transport=Transport.WEBSOCKET)
    if setting := settings.get(f"{side}.transport"):
        if setting.value not in set(Transport):
            raise UsageError(
                f"{setting.source}: expected {' or '.join(Transport)}, got {_shown(setting.value)}",
                hint="tcp uses port 5671; websocket uses port 443, also through a proxy",
            )
        endpoint = replace(endpoint, transport=Transport(str(setting.value)))
    return endpoint


IDENTITY_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "client_id": ("default", "managed", "workload", "client-secret"),
    "tenant": ("workload", "cli", "client-secret"),
    "authority": ("default", "workload", "client-secret"),
    "client_secret": ("client-secret",),
}
"""The settings of an identity, and the kinds that use each."""

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,253}")


def _with_identity(endpoint: Endpoint, side: str, settings: Mapping[str, Setting]) -> Endpoint:
    """Return the endpoint with the identity that is configured for it. Raises UsageError for a wrong setting."""
    keys = ("identity", *IDENTITY_SETTINGS)
    given = {key: settings[f"{side}.{key}"] for key in keys if f"{side}.{key}" in settings}
    if not given:
        return endpoint
    first, setting = next(iter(given.items()))
    if not isinstance(endpoint.credential, Identity):
        raise UsageError(
            f"{setting.source}: {first} is for an identity, and {endpoint.key_source} has a key for {endpoint.name}",
            hint="keep one: give the namespace instead of the connection string, or leave the identity out",
        )
    fallback = "client-secret" if "client_secret" in given else "default"
    kind = str(given["identity"].value) if "identity" in given else fallback
    if kind not in IDENTITY_KINDS:
        hint = f"use {', '.join(IDENTITY_KINDS)}"
        raise UsageError(f"{setting.source}: {_shown(kind)} is not a kind of identity", hint=hint)
    found = {key: _identity_value(key, kind, each) for key, each in given.items() if key != "identity"}
    missing = [key for key in ("client_id", "tenant", "client_secret") if key not in found]
    if kind == "client-secret" and missing:
        variable = f"SBPAIR_{side.upper()}_CLIENT_SECRET" if side in SIDES else "client_secret_env"
        raise UsageError(
            f"{setting.source}: the identity client-secret has no {' and no '.join(missing)}",
            hint=f"give client_id and tenant, and the secret in {variable}",
        )
    secret = found.pop("client_secret", "")
    trusted = endpoint.ca_file if "authority" in found else None
    credential = Identity(kind, **found, secret=secret, ca_file=trusted)
    return replace(endpoint, credential=credential, key_source=given["client_secret"].source if secret else "")


def _identity_value(key: str, kind: str, setting: Setting) -> str:
    """Return a value of an identity. Raises UsageError for one that is malformed, or that its kind does not use."""
    if kind not in IDENTITY_SETTINGS[key]:
        raise UsageError(
            f"{setting.source}: {key} has no effect for the identity {kind}",
            hint=f"leave it out, or set identity to {' or '.join(IDENTITY_SETTINGS[key])}",
        )
    if isinstance(setting.value, Secret):
        return setting.value.opened(setting.source).text
    text = str(setting.value)
    if key == "authority":
        host = text.removeprefix("https://").removesuffix("/")
        if _host_port(host) or _host_port(f"{host}:443"):
            return f"https://{host}"
    elif _IDENTIFIER.fullmatch(text):
        return text
    example = "login.microsoftonline.us" if key == "authority" else "00000000-0000-0000-0000-000000000000"
    raise UsageError(f"{setting.source}: {_shown(text)} is not a valid {key}", hint=f"write it as {example}")


def _proxy(setting: Setting, endpoint: Endpoint) -> Proxy:
    text = setting.value.text if isinstance(setting.value, Secret) else str(setting.value)
    proxy = parse_proxy(text, setting.source)
    if proxy.user is not None and not isinstance(setting.value, Secret):
        raise UsageError(
            f"{setting.source}: proxy has a user or a password, which are secrets",
            hint='export the whole URL, and write the variable\'s name there: proxy_env = "CORPORATE_PROXY"',
        )
    if not endpoint.tls:
        raise UsageError(
            f"{setting.source}: a proxy needs TLS, and the {endpoint.name} namespace is configured without it",
            hint="remove the proxy, or tls = false; an emulator with --tls prints a connection string with TLS",
        )
    return proxy


def _shown(value: object) -> str:
    """Return a wrong value for an error, unless it may hold a password."""
    return "a URL with a user" if "@" in str(value) else repr(value)


def _host_port(text: str) -> tuple[str, int] | None:
    try:
        url = urlsplit(f"//{text}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    return (host, port) if host and port and url.netloc == text and "@" not in text and " " not in text else None
