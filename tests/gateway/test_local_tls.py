"""TLS of a gateway: certificates for loopback alone, renewed without another CA, and given ones that change."""

import socket
import ssl
import stat
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from sbpair.amqp_server import tls
from sbpair.errors import StateRefused, UsageError
from sbpair.gateway.local_tls import LIFE, OVERLAP, YEARS, given_tls, own_tls

STEP = LIFE - OVERLAP


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


def connected(server: ssl.SSLContext, ca_file: Path, name: str = "localhost") -> x509.Certificate:
    """Connect by TLS as a client that trusts one file. Returns the certificate of the server."""
    trusting = ssl.create_default_context(cafile=str(ca_file))
    own, peer = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(peer, server_side=True).close()
        except OSError:
            peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with trusting.wrap_socket(own, server_hostname=name) as found:
            der = found.getpeercert(binary_form=True)
            assert der
            return x509.load_der_x509_certificate(der)
    finally:
        own.close()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_ca_reaches_loopback(tmp_path: Path, name: str) -> None:
    made, ca_file = own_tls(tmp_path / "gateway.key")
    connected(made(), ca_file, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(made(), ca_file, "contoso.servicebus.windows.net")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {"gateway.ca.pem": 0o644, "gateway.tls.pem": 0o600}


def test_the_ca_cannot_vouch_for_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key is discarded. A certificate for another name is refused all the same."""
    monkeypatch.setattr(tls, "_constraint", lambda _name: tls.alternative("localhost"))
    ca, [leaf] = tls.certificates("test", ["example.org"])
    (tmp_path / "ca.pem").write_bytes(ca)
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        connected(tls.server_context(leaf, tmp_path / "leaf"), tmp_path / "ca.pem", "example.org")


def test_a_certificate_is_renewed_in_place_under_the_same_ca(tmp_path: Path) -> None:
    clock = Clock()
    begin = clock.now
    made, ca_file = own_tls(tmp_path / "gateway.key", clock)
    first, trusted = made(), ca_file.read_bytes()
    clock.now = begin + LIFE - OVERLAP - timedelta(days=1)
    assert made() is first
    ends: list[datetime] = []
    for year in range(YEARS):
        clock.now = begin + year * STEP + timedelta(days=1)
        again, _ = own_tls(tmp_path / "gateway.key", clock)
        context = made()
        assert (context is first) == (year == 0)
        ends += [certificate_of(each).not_valid_after_utc for each in (context, again())]
    assert ends == sorted(ends)
    assert len(set(ends)) == YEARS
    assert ca_file.read_bytes() == trusted


def certificate_of(context: ssl.SSLContext) -> x509.Certificate:
    """Return the certificate that a context presents, whether or not it is valid today."""
    loose = ssl.create_default_context()
    loose.check_hostname, loose.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = loose.wrap_bio(incoming, outgoing)
    server_in, server_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(server_in, server_out, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            server_in.write(outgoing.read())
            incoming.write(server_out.read())
    der = client.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der)


def test_after_all_of_them_a_start_makes_a_new_ca(tmp_path: Path) -> None:
    clock = Clock()
    _, ca_file = own_tls(tmp_path / "gateway.key", clock)
    before = ca_file.read_bytes()
    clock.now += (YEARS - 1) * STEP + LIFE
    own_tls(tmp_path / "gateway.key", clock)
    assert ca_file.read_bytes() != before


def test_a_ca_file_that_was_changed_is_written_again(tmp_path: Path) -> None:
    _, ca_file = own_tls(tmp_path / "gateway.key")
    before = ca_file.read_bytes()
    ca_file.write_text("another")
    own_tls(tmp_path / "gateway.key")
    assert ca_file.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"text", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_without_certificates_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gateway.tls.pem").write_bytes(content)
    (tmp_path / "gateway.tls.pem").chmod(0o600)
    with pytest.raises(StateRefused, match="no certificates"):
        own_tls(tmp_path / "gateway.key")


Pair = tuple[bytes, bytes]


@pytest.fixture(scope="module")
def pairs() -> tuple[Pair, Pair]:
    """Two certificates of different authorities, with their keys."""
    mark = b"-----BEGIN CERTIFICATE"
    found = [tls.certificates("test", ["localhost"])[1][0].partition(mark) for _ in range(2)]
    first, second = ((mark + rest, key) for key, mark, rest in found)
    return first, second


def written(tmp_path: Path, pair: Pair) -> tuple[Path, Path]:
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path, content in zip(paths, pair, strict=True):
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(path)
    return paths


def test_given_files_are_read_again_when_they_change(tmp_path: Path, pairs: tuple[Pair, Pair]) -> None:
    given = given_tls(*written(tmp_path, pairs[0]))
    first = given()
    assert given() is first
    written(tmp_path, pairs[1])
    assert certificate_of(given()) == x509.load_pem_x509_certificate(pairs[1][0])


def test_half_written_files_keep_the_certificate_before(
    tmp_path: Path, pairs: tuple[Pair, Pair], caplog: pytest.LogCaptureFixture
) -> None:
    given = given_tls(*written(tmp_path, pairs[0]))
    first = given()
    written(tmp_path, (pairs[1][0], pairs[0][1]))
    assert given() is first
    (tmp_path / "key.pem").unlink()
    assert [given(), given()] == [first, first]
    assert "the one before stays" in caplog.text
    written(tmp_path, pairs[1])
    assert given() is not first


def encrypted(pair: Pair) -> bytes:
    key = load_pem_private_key(pair[1], None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))


@pytest.mark.parametrize("wrong", ["no key", "another key", "a password", "no PEM"])
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, pairs: tuple[Pair, Pair], wrong: str) -> None:
    key = {"another key": pairs[1][1], "a password": encrypted(pairs[0]), "no PEM": b"text", "no key": b""}[wrong]
    paths = written(tmp_path, (pairs[0][0], key))
    if wrong == "no key":
        paths[1].unlink()
    with pytest.raises(UsageError, match="--tls-cert: ") as refused:
        given_tls(*paths)
    assert "\n" not in f"{refused.value}"
