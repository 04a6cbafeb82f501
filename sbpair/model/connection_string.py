"""Service Bus connection strings, parsed into endpoints. No error repeats a value of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from sbpair.errors import ConnectionStringError, UsageError
from sbpair.model.pair import (
    AMQP_PORT,
    AMQPS_PORT,
    HTTPS_PORT,
    Endpoint,
    SasKey,
    SasToken,
    Transport,
    authority_of,
    first_label,
)
from sbpair.operating_system.files import read_document

MAX_KEY_BYTES: Final = 64 * 1024


def endpoint_from_connection_string(text: str, *, name: str | None = None, ca_file: str | None = None) -> Endpoint:
    """Parse a Service Bus connection string, as the portal and the emulator print it, and as it is pasted from there.

    `remarks_on` yields the ignored parts. Raises ConnectionStringError, which names the part and repeats no value.
    """
    parts = _connection_string_parts(text)
    url = _url_of(parts)
    host, port = str(url.hostname), url.port
    emulator = _is_emulator(parts)
    if port == HTTPS_PORT and not emulator:
        port = None
    return Endpoint(
        name=name or first_label(host),
        authority=authority_of(host, port),
        host=host,
        port=port or (AMQP_PORT if emulator else AMQPS_PORT),
        tls=not emulator,
        credential=_connection_string_credential(parts),
        ca_file=ca_file,
        emulator=emulator,
        transport=transport_in(text) or Transport.TCP,
        entity=parts.get("entitypath", ""),
    )


def transport_in(text: str) -> Transport | None:
    """Return the transport that a connection string names; None if it names none that is known."""
    return _TRANSPORTS.get(_connection_string_parts(text).get("transporttype", "").lower())


def remarks_on(text: str) -> Iterator[str]:
    """Yield the ignored parts of a connection string, and the limit of its key. Values are not repeated."""
    parts = _connection_string_parts(text)
    url = _url_of(parts)
    if url.port == HTTPS_PORT and not _is_emulator(parts):
        yield "the port of its Endpoint is ignored: AMQP has another one, and TransportType=AmqpWebSockets uses 443"
    if url.path.strip("/") or url.query:
        yield "what follows the host of its Endpoint is ignored"
    if "transporttype" in parts and transport_in(text) is None:
        yield "its TransportType is ignored: neither Amqp nor AmqpWebSockets"
    # Only a known key is named: an unknown one may be a piece of a secret that holds a ';'.
    if others := parts.keys() - _KNOWN_PARTS:
        named = [each if each in _WITHOUT_EFFECT else "an unknown part" for each in sorted(others)]
        yield f"{' and '.join(dict.fromkeys(named))} of it is ignored"


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


def _is_emulator(parts: Mapping[str, str]) -> bool:
    if (value := parts.get("usedevelopmentemulator", "false").lower()) not in ("true", "false"):
        raise _bad_connection_string("its UseDevelopmentEmulator is neither true nor false")
    return value == "true"


def _url_of(parts: Mapping[str, str]) -> SplitResult:
    if not (address := parts.get("endpoint")):
        raise _bad_connection_string("it has no Endpoint=")
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        raise _bad_connection_string("the host or the port of its Endpoint is malformed") from None
    if url.scheme not in ("sb", "amqps", "https") or not url.hostname:
        raise _bad_connection_string("its Endpoint is not of the form sb://<host>/")
    if port == 0:
        raise _bad_connection_string("the port of its Endpoint is not a number from 1 to 65535")
    return url


_SHARED_ACCESS_PARTS = ("sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature")
_KNOWN_PARTS = {"endpoint", *_SHARED_ACCESS_PARTS, "entitypath", "usedevelopmentemulator", "transporttype"}
_WITHOUT_EFFECT = {"operationtimeout", "stsendpoint", "runtimeport", "managementport", "authentication"}
_TRANSPORTS = {"amqp": Transport.TCP, "amqpwebsockets": Transport.WEBSOCKET}
_AROUND = " \t\r\n\xa0\ufeff\u200b\"'`\u2018\u2019\u201c\u201d"
"""Spaces, quotes, and the byte order mark of a file, around a pasted string."""


def _connection_string_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    text, breaks = re.subn(r"\s*[\r\n]\s*", "", text.strip(_AROUND))
    text = re.sub(r"[\t\xa0]", " ", text)
    if not text.isprintable():
        raise _bad_connection_string("it has control characters")
    if breaks and re.search(r"=[^=;\s]*=+[^=;\s]", text):  # a key that goes on after its padding
        raise _bad_connection_string("it has several lines, and more than one string")
    for piece in filter(None, (piece.strip(_AROUND) for piece in text.split(";"))):
        key, equals, value = piece.partition("=")
        if not equals:
            raise _bad_connection_string("a part of it has no '='")
        lowered = key.strip().lower()
        if lowered in parts:
            # Only a known key is named: an unknown one may be a piece of a secret that holds a ';'.
            name = repr(lowered) if lowered in _KNOWN_PARTS else "a key"
            raise _bad_connection_string(f"it has {name} twice")
        # Only a signature has a space, and a line that a mail program wrapped.
        parts[lowered] = value.strip(_AROUND) if lowered == "sharedaccesssignature" else "".join(value.split())
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
