"""TLS contexts of clients, one for all connections that trust the same certificates."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts exactly the certificates of `ca_file`, or the system's. Raises OSError."""
    return _context(ca_file, Path(ca_file).stat().st_mtime_ns if ca_file else 0)


@lru_cache(maxsize=8)
def _context(ca_file: str | None, _changed_ns: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)
