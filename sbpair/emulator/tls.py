"""TLS on the emulator's ports, under a certificate authority that is made for one run and whose key nobody keeps.

`cryptography` is imported here alone, and only when TLS was asked for. What speaks inside of TLS is another door's
business: the same ones as without.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from asyncio.sslproto import SSLProtocol
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sbpair.errors import MachineLacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

HANDSHAKE_SECONDS: Final = 30
LIFE: Final = timedelta(days=30)
ALWAYS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Tls:
    """What a port needs to speak TLS, and the file with which clients can trust it."""

    context: ssl.SSLContext
    ca_file: Path


@contextmanager
def tls_for(hosts: Iterable[str], ca_file: Path | None = None) -> Iterator[Tls]:
    """A certificate for these hosts and this machine. Without `ca_file` the authority's is in a private place until the
    end; a named file stays.

    Raises MachineLacks where it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="sbpair-") as private:
        place = Path(private)
        ca_pem, server_pem = certificates(dict.fromkeys((*ALWAYS, *hosts)))
        wanted = ca_file or place / "ca.pem"
        try:
            wanted.write_bytes(ca_pem)
        except OSError as error:
            raise MachineLacks(
                f"the CA file {wanted} cannot be written: {error.strerror}",
                hint="name a file in a directory that exists",
            ) from error
        yield Tls(server_context(server_pem, place / "server.pem"), wanted)


def server_context(pem: bytes, passing: Path) -> ssl.SSLContext:
    # OpenSSL takes a key from a file only: it is there for this moment.
    passing.touch(mode=0o600)
    passing.write_bytes(pem)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(passing)
    finally:
        passing.unlink()
    return context


def certificates(hosts: Iterable[str]) -> tuple[bytes, bytes]:
    """The authority's certificate, and a server's with its key, both in PEM form."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = as_authority(new_certificate("sbpair emulator CA", ca_key, issuer="sbpair emulator CA"), ca_key)
    signed_ca = ca.sign(ca_key, hashes.SHA256())
    server = as_server(new_certificate("sbpair emulator", server_key, issuer="sbpair emulator CA"), hosts, ca_key)
    signed: Certificate = server.sign(ca_key, hashes.SHA256())
    key_pem = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return signed_ca.public_bytes(Encoding.PEM), key_pem + signed.public_bytes(Encoding.PEM)


def new_certificate(name: str, key: EllipticCurvePrivateKey, *, issuer: str) -> CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    # The machine's own time, since that is what clients go by.
    now = datetime.now(UTC)
    subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + LIFE)
        .add_extension(subject_key, critical=False)
    )


def as_authority(builder: CertificateBuilder, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509

    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )


def as_server(builder: CertificateBuilder, hosts: Iterable[str], ca_key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names = x509.SubjectAlternativeName([alternative(host) for host in hosts])
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )


def alternative(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class TlsFrontend(asyncio.Protocol):
    """Takes TLS off a connection, and gives what is inside to another protocol.

    It stays between the socket and asyncio's own, since the first bytes have been read before anybody knew that they
    were TLS's: `loop.start_tls` has no way to be given them.
    """

    def __init__(self, context: ssl.SSLContext, inside: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        shaken: asyncio.Future[None] = loop.create_future()
        # A handshake that fails ends its connection; nobody waits to be told why.
        shaken.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tls = SSLProtocol(
            loop, inside, context, shaken, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tls.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            room = self._tls.get_buffer(len(rest))
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            self._tls.buffer_updated(taken)
            rest = rest[taken:]

    def eof_received(self) -> None:
        self._tls.eof_received()

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tls.connection_lost(exc)
