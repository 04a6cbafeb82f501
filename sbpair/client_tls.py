"""TLS contexts of clients, one for all connections that trust the same certificates."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from sbpair.errors import MachineLacks, UsageError

_HINT = "ca_file, SBPAIR_PRIMARY_CA_FILE or SBPAIR_SECONDARY_CA_FILE names a PEM file with the certificates to trust"


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts exactly the certificates of `ca_file`, or the system's.

    Raises UsageError if it is not a file of certificates, and MachineLacks if it cannot be read.
    """
    try:
        return _context(ca_file, Path(ca_file).stat().st_mtime_ns if ca_file else 0)
    except PermissionError as error:
        raise MachineLacks(f"the CA file {ca_file} cannot be read: {error.strerror}", hint=_HINT) from error
    except (OSError, ValueError) as error:
        problem = "it holds no certificate" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
        raise UsageError(f"the CA file {ca_file} cannot be used: {problem}", hint=_HINT) from error


@lru_cache(maxsize=8)
def _context(ca_file: str | None, _changed_ns: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)
