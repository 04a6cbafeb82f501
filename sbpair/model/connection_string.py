"""Service Bus connection strings, parsed into endpoints. No error repeats a value of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sbpair.errors import ConnectionStringError, UsageError
from sbpair.model.pair import AMQP_PORT, AMQPS_PORT, Endpoint, SasKey, SasToken, authority_of, first_label
from sbpair.operating_system.files import read_document

MAX_KEY_BYTES: Final = 64 * 1024


def endpoint_from_connection_string(text: str, *, name: str | None = None, ca_file: str | None = None) -> Endpoint:
    """Parse a Service Bus connection string, as the portal and the emulator print it.

    Raises ConnectionStringError, which names the wrong part and never repeats a value.
    """
    parts = _connection_string_parts(text)
    if "entitypath" in parts:
        raise ConnectionStringError(
            "the connection string has an EntityPath: its key may be for one queue or topic only",
            hint="use one of the namespace's shared access policies; if the key is from there, remove EntityPath",
        )
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


def read_key_file(path: str, option: str = "") -> str:
    """Return the text of a file with a connection string; `option` names it. Raises UsageError, MachineLacks."""
    hint = "name a file that has a connection string alone"
    text = read_document(Path(path), option=option, hint=hint, max_bytes=MAX_KEY_BYTES)
    if not text.strip():
        raise UsageError(f"{option or 'the file'}: {path} is empty", hint="write the connection string into it")
    return text.removesuffix("\n").removesuffix("\r")


def credential_of(text: str) -> SasKey | SasToken:
    """Return the key or the signature of a connection string. Raises ConnectionStringError."""
    return _connection_string_credential(_connection_string_parts(text))


_URL_WITH_PASSWORD = re.compile(r"//[^/@\s:]*:[^/@\s]+@")
_ADDRESS_WITH_PASSWORD = re.compile(r"[^/@\s:]*:[^/@\s]+@")


def looks_like_connection_string(text: str) -> bool:
    """Return whether `text` holds a secret that other users of the machine must not see."""
    lowered = text.lower()
    return any(mark in lowered for mark in ("sharedaccesskey=", "sharedaccesssignature", "endpoint=sb:"))


def holds_secret(text: str, *, is_setting: bool = False) -> bool:
    """Return whether `text` holds a connection string, or a URL with a user and a password.

    The value of a setting may also be an address without a scheme, `user:password@host`. Arguments such as SQL may
    look like one.
    """
    if looks_like_connection_string(text) or _URL_WITH_PASSWORD.search(text):
        return True
    return is_setting and _ADDRESS_WITH_PASSWORD.match(text) is not None


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


_SHARED_ACCESS_PARTS = ("sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature")
_KNOWN_PARTS = {"endpoint", *_SHARED_ACCESS_PARTS, "entitypath", "usedevelopmentemulator"}


def _connection_string_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    if not text.strip().isprintable():
        raise _bad_connection_string("it has several lines, or control characters")
    for piece in filter(None, (piece.strip() for piece in text.strip().split(";"))):
        key, equals, value = piece.partition("=")
        if not equals:
            raise _bad_connection_string("a part of it has no '='")
        lowered = key.strip().lower()
        if lowered in parts:
            # Only a known key is named: an unknown one may be a piece of a secret that holds a ';'.
            name = repr(lowered) if lowered in _KNOWN_PARTS else "a key"
            raise _bad_connection_string(f"it has {name} twice")
        parts[lowered] = value.strip()
    return parts


def _connection_string_credential(parts: dict[str, str]) -> SasKey | SasToken:
    if token := parts.get("sharedaccesssignature"):
        return SasToken(token)
    name, key = parts.get("sharedaccesskeyname"), parts.get("sharedaccesskey")
    if name and key:
        return SasKey(name, key)
    missing = "SharedAccessKeyName" if not name else "SharedAccessKey"
    raise _bad_connection_string(f"it has no {missing}=")


def _bad_connection_string(problem: str) -> ConnectionStringError:
    return ConnectionStringError(
        f"the connection string is invalid: {problem}",
        hint="copy it whole from the portal: Endpoint=sb://<namespace>.servicebus.windows.net/;"
        "SharedAccessKeyName=<name>;SharedAccessKey=<key>",
    )
