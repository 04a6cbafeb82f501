"""The addresses and credentials of a started emulator, and the file that announces them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.errors import MachineLacks

if TYPE_CHECKING:
    from sbpair.emulator.frontends.http.identity_frontend import IdentityEndpoint


@dataclass(frozen=True, slots=True)
class ReadyNamespace:
    name: str
    endpoint: str
    connection_string: str
    tls_connection_string: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Addresses and credentials of a started emulator. `ca_file` is set with TLS, `identity` with an identity."""

    namespaces: tuple[ReadyNamespace, ...]
    ca_file: str | None = None
    identity: IdentityEndpoint | None = None

    def as_json(self) -> str:
        return json.dumps(self.as_document())

    def as_document(self) -> dict[str, object]:
        """Return the JSON document: namespaces, then `ca_file` and `identity` where they are set."""
        described = [{name: value for name, value in asdict(each).items() if value} for each in self.namespaces]
        document: dict[str, object] = {"namespaces": described}
        if self.ca_file is not None:
            document["ca_file"] = self.ca_file
        if self.identity is not None:
            document["identity"] = asdict(self.identity)
        return document


def write_ready_file(path: Path, ready: Ready) -> None:
    """Write the ready file atomically: a reader sees all of it or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(ready.as_json() + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise MachineLacks(
            f"cannot write the ready file {path}: {error.strerror}", hint="name a file in a directory that exists"
        ) from error


def remove_ready_file(path: Path) -> None:
    """Remove the ready file: an old one would announce the next emulator too soon."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineLacks(
            f"cannot remove the old ready file {path}: {error.strerror}", hint="remove it, or name another"
        ) from error
