"""From merged settings to a checked Pair. Pure; what is wrong is told with the place that said it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from sbpair.config.setting import Secret, Setting
from sbpair.errors import UsageError
from sbpair.model.connection_string import endpoint_from_connection_string, looks_like_connection_string
from sbpair.model.durations import TICKS_PER_SECOND, ticks
from sbpair.model.pair import AMQPS_PORT, Endpoint, Identity, Pair, first_label, is_address

PUBLIC_SUFFIX = ".servicebus.windows.net"


def pair_of(name: str, settings: Mapping[str, Setting]) -> Pair:
    """The checked Pair that the merged settings describe."""
    pair = Pair(name, endpoint_of("primary", settings, name), endpoint_of("secondary", settings, name))
    if (count := settings.get("backlog_queues")) and isinstance(count.value, int):
        pair = replace(pair, backlog_queues=count.value)
    if failover := settings.get("failover_interval"):
        pair = replace(pair, failover_interval=_seconds(failover))
    if ping := settings.get("ping_interval"):
        pair = replace(pair, ping_interval=_seconds(ping))
    return pair


def endpoint_of(side: str, settings: Mapping[str, Setting], pair: str) -> Endpoint:
    """One side of a pair: its address, and whatever was said about how to get there."""
    address = settings.get(f"{side}.address")
    if address is None:
        raise UsageError(
            f"pair {pair!r} has no {side} namespace",
            hint=f"set SBPAIR_{side.upper()}_CONNECTION_STRING, or [pairs.{pair}.{side}] in the configuration file",
        )
    endpoint = _addressed(address)
    if name := settings.get(f"{side}.name"):
        endpoint = replace(endpoint, name=str(name.value))
    elif side == "primary" and is_address(endpoint.host):
        raise UsageError(
            f"{address.source}: {endpoint.host} does not say what the primary namespace is called",
            hint="set SBPAIR_PRIMARY_NAME, or name = in the configuration file: backlog queues are named after it",
        )
    return _led(endpoint, side, settings)


def _seconds(setting: Setting) -> float:
    try:
        return ticks(str(setting.value)) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{setting.source}: {error.message}", hint=error.hint) from None


def _addressed(address: Setting) -> Endpoint:
    if isinstance(address.value, Secret):
        try:
            return endpoint_from_connection_string(address.value.text)
        except UsageError as error:
            raise type(error)(f"{address.source}: {error.message}", hint=error.hint) from None
    text = str(address.value)
    if looks_like_connection_string(text):
        raise UsageError(
            f"{address.source} holds a connection string, and wants the name of a namespace",
            hint="put it into SBPAIR_PRIMARY_CONNECTION_STRING or SBPAIR_SECONDARY_CONNECTION_STRING",
        )
    host = (text if "." in text or is_address(text) else text + PUBLIC_SUFFIX).lower()
    if _host_port(f"{host}:1") is None:
        raise UsageError(
            f"{address.source}: {text!r} is not a namespace", hint=f"write contoso or contoso{PUBLIC_SUFFIX}"
        )
    return Endpoint(first_label(host), host, host, AMQPS_PORT, tls=True, credential=Identity())


def _led(endpoint: Endpoint, side: str, settings: Mapping[str, Setting]) -> Endpoint:
    if setting := settings.get(f"{side}.endpoint"):
        found = _host_port(str(setting.value))
        if found is None:
            raise UsageError(f"{setting.source}: {setting.value!r} is not host:port", hint="write 127.0.0.1:5672")
        endpoint = replace(endpoint, host=found[0], port=found[1])
    if setting := settings.get(f"{side}.tls"):
        endpoint = replace(endpoint, tls=bool(setting.value))
    if setting := settings.get(f"{side}.ca_file"):
        endpoint = replace(endpoint, ca_file=str(setting.value))
    return endpoint


def _host_port(text: str) -> tuple[str, int] | None:
    try:
        url = urlsplit(f"//{text}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    return (host, port) if host and port and url.netloc == text and "@" not in text and " " not in text else None
