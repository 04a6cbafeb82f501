"""The gateway's own key, with which applications sign in, in a file that this user alone can use.

Invariant: the key is in that file and in memory only, and in no repr, log or error. A file that is there is never
changed: applications have its key.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.errors import StateRefused
from sbpair.operating_system import ownership
from sbpair.operating_system.files import open_bytes, open_new
from sbpair.runs.database import make_directory, unusable

KEY_NAME: Final = "sbpair-gateway"
FILE_NAME: Final = "gateway.key"
KEY_BYTES: Final = 32
MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class LocalKey:
    """A key of base64 text, and its file."""

    path: Path
    text: str = field(repr=False)

    @property
    def rule(self) -> AuthorizationRule:
        """The rights of its holder."""
        return AuthorizationRule(KEY_NAME, self.text, self.text, frozenset({AccessRight.SEND, AccessRight.LISTEN}))

    def connection_string(self, host: str, more: str = "") -> str:
        """Return the connection string of an application, which is a secret."""
        return connection_string(host, self.text, more)


def connection_string(host: str, key: str, more: str = "") -> str:
    """Return a connection string with a key, or with a text in its place."""
    return f"Endpoint=sb://{host};SharedAccessKeyName={KEY_NAME};SharedAccessKey={key}{more}"


def read_key(path: Path) -> LocalKey:
    """Return the key of a file, which is made if it does not exist.

    Raises StateRefused for a file that another user owns or can use, or without a key; MachineLacks.
    """
    text = kept_secret(path, lambda: base64.b64encode(secrets.token_bytes(KEY_BYTES))).decode(errors="replace").strip()
    try:
        decoded = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        decoded = b""
    if len(decoded) < KEY_BYTES:
        hint = f"remove it for a new key, or write {KEY_BYTES} random bytes as base64"
        raise StateRefused(f"{path} has no key of {KEY_BYTES} bytes in base64", hint=hint)
    return LocalKey(path, text)


def kept_secret(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of a private file, which is made if it does not exist: by one of several starts at once.

    Raises as `read_key` does.
    """
    try:
        if not path.exists():
            make_directory(path.parent)
            _create(path, make())
        descriptor = open_bytes(path)
        with os.fdopen(descriptor, "rb") as file:
            ownership.check_secret(path, descriptor)
            return file.read(MAX_BYTES)
    except OSError as error:
        raise unusable(path, error) from error


def _create(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(open_new(beside), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link does not replace the file of another start.
        os.link(beside, path)
    except FileExistsError:
        pass
    finally:
        beside.unlink(missing_ok=True)
