"""TLS on the ports of a server, with a certificate authority created for it. The authority's key is discarded.

Only this module imports `cryptography`, and it is loaded only for TLS. The frontends inside of TLS are the usual ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sbpair.errors import MachineLacks
from sbpair.operating_system import ownership
from sbpair.operating_system.files import PRIVATE, open_bytes, open_new, replaced_file, temporary_directory

log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 5.0
LIFE: Final = timedelta(days=30)
KEPT_LIFE: Final = timedelta(days=398)
"""Of a certificate that outlives a run: some systems refuse those that live longer."""

MAX_KEPT_BYTES: Final = 65_536
KEY: Final = b"-----BEGIN PRIVATE KEY-----"
CA_MODE: Final = 0o644
"""All users may read the certificate, and only this one may change it."""

ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
_OTHER_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)
_USAGE_OF_CA: Final = {"key_cert_sign": True, "crl_sign": True, **dict.fromkeys(_OTHER_USAGES, False)}


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS context of a port, and the file with the CA certificate that clients trust."""

    context: ssl.SSLContext
    ca_file: Path


@contextmanager
def tls_for(
    server: str, hosts: Iterable[str], ca_file: Path | None = None, beside: Path | None = None
) -> Iterator[Tls]:
    """Create a certificate of `server` for `hosts` and this machine, and write the CA certificate.

    It is kept, with its key, beside the file `beside` or else `ca_file`: clients trust it after a restart. Without
    both, the CA certificate is a temporary file, removed at the end. Raises MachineLacks, StateRefused.
    """
    names = tuple(dict.fromkeys((*ALWAYS, *hosts)))
    with temporary_directory("sbpair-") as directory:
        near = beside or ca_file
        path = ca_file or (directory / "ca.pem" if near is None else near.with_name(f"{near.name}.ca.pem"))
        if near is None:
            ca_pem, [server_pem] = certificates(server, names)
        else:
            ca_pem, server_pem = _kept(server, names, near.with_name(f"{near.name}.tls.pem"), path)
        if not path.is_file() or path.read_bytes() != ca_pem:
            with replaced_file(str(path), CA_MODE) as file:
                file.write_bytes(ca_pem)
        yield Tls(server_context(server_pem, directory / "server.pem"), path)


def _kept(server: str, names: tuple[str, ...], path: Path, ca_file: Path) -> tuple[bytes, bytes]:
    """Return the CA certificate and the certificate with its key of a private file, or new ones, which it keeps."""
    if path.exists():
        ca, key, rest = _read_secret(path).partition(KEY)
        if _serves(rest, names):
            return ca, key + rest
        log.warning("The certificate in %s ends soon or lacks a name: trust the new one of %s.", path, ca_file)
    ca, [own] = certificates(server, names, life=KEPT_LIFE)
    with replaced_file(str(path), PRIVATE) as beside:
        beside.write_bytes(ca + own)
    return ca, own


def _read_secret(path: Path) -> bytes:
    try:
        descriptor = open_bytes(path)
        with os.fdopen(descriptor, "rb") as file:
            ownership.check_secret(path, descriptor)
            return file.read(MAX_KEPT_BYTES)
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="remove it for a new one") from error


def _serves(pem: bytes, names: Iterable[str]) -> bool:
    """Return whether a certificate is for all these names, and not in the last third of its life."""
    try:
        certificate = certificate_in(pem)
        own = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return left > KEPT_LIFE / 3 and {alternative(name) for name in names} <= set(own)


def server_context(pem: bytes, path: Path) -> ssl.SSLContext:
    # OpenSSL reads keys only from files.
    with os.fdopen(open_new(path), "wb") as file:
        file.write(pem)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context


def certificates(
    server: str, hosts: Iterable[str], *, count: int = 1, life: timedelta = LIFE, overlap: timedelta = timedelta(0)
) -> tuple[bytes, list[bytes]]:
    """Return a CA certificate, and `count` certificates of `server`, each with its key, as PEM.

    The first one is valid for `life` from now on, and each further one from `overlap` before the end of the last. The
    CA cannot sign for other names than `hosts`.
    """
    names = [alternative(host) for host in hosts]
    ca_key = ec.generate_private_key(ec.SECP256R1())
    # The machine's time, which clients use.
    now, step = datetime.now(UTC), life - overlap
    ca_name = f"{server} CA"
    ca = new_certificate(ca_name, ca_key, ca_name, ca_key, now, (count - 1) * step + life)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(x509.KeyUsage(**_USAGE_OF_CA), critical=True)
    ca = ca.add_extension(x509.NameConstraints([_constraint(each) for each in names], None), critical=True)
    signed = []
    for start in (now + number * step for number in range(count)):
        key = ec.generate_private_key(ec.SECP256R1())
        own = (
            new_certificate(server, key, ca_name, ca_key, start, life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        pem = own.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM)
        signed.append(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
    return ca.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM), signed


def new_certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    ca_name: str,
    ca_key: ec.EllipticCurvePrivateKey,
    start: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ca_name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - timedelta(days=1))
        .not_valid_after(start + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )


def certificate_in(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])


def end_of(pem: bytes) -> datetime:
    return certificate_in(pem).not_valid_after_utc


def alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _constraint(name: x509.GeneralName) -> x509.GeneralName:
    return x509.IPAddress(ip_network(name.value)) if isinstance(name, x509.IPAddress) else name


class TlsFrontend(SSLProtocol):
    """The TLS layer of a connection, which passes the decrypted bytes to another protocol.

    `loop.start_tls` cannot be used: the first bytes were already read to detect the protocol.
    """

    def __init__(self, context: ssl.SSLContext, inside: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        handshake: asyncio.Future[None] = loop.create_future()
        # A failed handshake ends its connection; mark the exception as retrieved.
        handshake.add_done_callback(lambda done: done.cancelled() or done.exception())
        # The limit of the time to open ends a handshake sooner than that of asyncio.
        super().__init__(loop, inside, context, handshake, server_side=True, ssl_shutdown_timeout=CLOSE_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Take the bytes that were already read; later ones come through the buffer."""
        rest = memoryview(data)
        while rest:
            room = self.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self.buffer_updated(size)
            rest = rest[size:]
