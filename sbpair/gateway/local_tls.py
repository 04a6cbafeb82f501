"""The TLS contexts of a gateway: of its own certificates beside the key, or of files that others renew.

The own authority signs the certificates of YEARS years at once, and its key is discarded. So applications trust one CA
file for as long, and a renewal only turns to the next certificate. The names of a certificate are those of loopback.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sbpair.amqp_server import tls
from sbpair.errors import StateRefused, UsageError
from sbpair.gateway.local_key import KEY_NAME, kept_secret
from sbpair.operating_system.files import replaced_file, temporary_directory

log = logging.getLogger(__name__)

YEARS: Final = 10
LIFE: Final = tls.KEPT_LIFE
OVERLAP: Final = timedelta(days=33)


class RenewedTls:
    """Returns the TLS context for a new connection. Those that are open keep theirs.

    `version` identifies the present certificate, and `load` makes its context. A renewal that fails is logged, and the
    context stays as it is; the first one raises its error.
    """

    def __init__(self, version: Callable[[], object], load: Callable[[], ssl.SSLContext]) -> None:
        self._version, self._load = version, load
        self._loaded = version()
        self._context = load()

    def __call__(self) -> ssl.SSLContext:
        try:
            version = self._version()
            if version != self._loaded:
                self._loaded = version
                self._context = self._load()
        except (OSError, UsageError) as error:
            log.warning("the renewed certificate cannot be used, and the one before stays: %s", error)
        return self._context


def own_tls(key_file: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> tuple[RenewedTls, Path]:
    """Return the TLS of certificates that are kept beside the key, and the file of the CA that applications trust.

    Raises StateRefused for a file that another user owns or can use, MachineLacks if it cannot be made.
    """
    path = key_file.with_suffix(".tls.pem")
    ca, ends, certificates = _kept(path)
    if ends[-1] - now() < OVERLAP:
        path.unlink()
        ca, ends, certificates = _kept(path)
    ca_file = key_file.with_suffix(".ca.pem")
    if not ca_file.is_file() or ca_file.read_bytes() != ca:
        with replaced_file(str(ca_file), tls.CA_MODE) as file:
            file.write_bytes(ca)

    def current() -> int:
        return next((number for number, end in enumerate(ends) if end - now() > OVERLAP), len(ends) - 1)

    def load() -> ssl.SSLContext:
        with temporary_directory("sbpair-") as directory:
            return tls.server_context(certificates[current()], directory / "gateway.pem")

    return RenewedTls(current, load), ca_file


def _kept(path: Path) -> tuple[bytes, list[datetime], list[bytes]]:
    """Return the CA certificate, and the certificates with their keys and ends, of a file."""
    ca, *parts = kept_secret(path, _new_certificates).split(tls.KEY)
    certificates = [tls.KEY + each for each in parts]
    try:
        ends = [tls.end_of(each) for each in certificates]
        ends[-1]
    except (ValueError, LookupError) as error:
        raise StateRefused(f"{path} has no certificates with their keys", hint="remove it for new ones") from error
    return ca, ends, certificates


def _new_certificates() -> bytes:
    ca, certificates = tls.certificates(KEY_NAME, tls.ALWAYS, count=YEARS, life=LIFE, overlap=OVERLAP)
    return ca + b"".join(certificates)


def given_tls(certificate: Path, key: Path) -> RenewedTls:
    """Return the TLS of a certificate and its key in files, which are read again when they change.

    Raises UsageError for files that cannot be used.
    """

    def version() -> object:
        return [(found.st_mtime_ns, found.st_size, found.st_ino) for found in (certificate.stat(), key.stat())]

    def load() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password of its own, OpenSSL asks for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
        return context

    try:
        return RenewedTls(version, load)
    except OSError as error:
        missing = next((each for each in (certificate, key) if not each.is_file()), None)
        reason = getattr(error, "reason", error.strerror)
        why = f"{missing} cannot be read" if missing else f"{certificate} and {key}: {reason}"
        hint = "name a certificate with its chain, and its key without a password, as PEM"
        raise UsageError(f"--tls-cert: {why}", hint=hint) from error
