"""Which peers may connect: real connections, of this and of other users, to a listening socket."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sbpair.gateway import peer_users
from sbpair.gateway.peer_users import PeerUsers
from sbpair.operating_system.socket_owner import KnownSocket
from tests.kit.users import OTHER, USER, as_user, needs_root

CONNECT = (
    "import os, socket, sys; os.setuid(int(sys.argv[1])); s = socket.socket();"
    " s.connect(('127.0.0.1', int(sys.argv[2])))"
)
CLOSE = f"{CONNECT}; s.send(b'AMQP'); s.close()"


@pytest.fixture(params=[("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)], ids=["IPv4", "IPv6"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    host, family = request.param
    with socket.create_server((host, 0), family=family) as found:
        found.settimeout(30)
        yield found


@contextmanager
def accepted(listening: socket.socket, client: socket.socket | None = None) -> Iterator[socket.socket]:
    """Connect as the present user, and yield the accepted socket."""
    with client or socket.socket(listening.family) as peer:
        peer.connect(listening.getsockname())
        with listening.accept()[0] as connection:
            yield connection


def refuse_to_report() -> None:
    raise AssertionError("every user is known here")


def admits(connection: socket.socket, *allowed: int) -> bool:
    return PeerUsers(frozenset(allowed), refuse_to_report).admits(connection)


def test_a_peer_of_this_user_is_admitted(listening: socket.socket) -> None:
    with accepted(listening) as connection:
        assert admits(connection)


@needs_root
@pytest.mark.parametrize(("allowed", "admitted"), [((), False), ((USER,), False), ((USER, OTHER), True)])
def test_a_peer_of_another_user_has_to_be_allowed(allowed: tuple[int, ...], admitted: bool) -> None:
    words = [sys.executable, "-c", f"{CONNECT}; s.recv(1)", str(OTHER)]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        words.append(str(listening.getsockname()[1]))
        with subprocess.Popen(words), listening.accept()[0] as connection, as_user(USER):
            assert admits(connection, *allowed) is admitted


@needs_root
def test_root_may_use_the_gateway_of_a_user(listening: socket.socket) -> None:
    with accepted(listening) as connection, as_user(USER):
        assert admits(connection)


@needs_root
def test_a_socket_that_its_program_has_closed_is_not_roots() -> None:
    """Linux knows it with the user 0, while what was sent before can still be read."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        subprocess.run([sys.executable, "-c", CLOSE, str(OTHER), port], check=True)
        with listening.accept()[0] as connection:
            assert connection.recv(4, socket.MSG_PEEK) == b"AMQP"
            assert not admits(connection)


def test_a_peer_through_a_socket_of_ipv6_has_its_user() -> None:
    """As Java connects to an IPv4 address."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", listening.getsockname()[1]))
        with listening.accept()[0] as connection:
            assert admits(connection)


def test_a_connection_of_another_address_is_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))  # sends nothing
        own = asking.getsockname()[0]
    if own.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with socket.create_server((own, 0)) as listening, accepted(listening) as connection:
        assert not admits(connection)


def test_a_connection_that_has_ended_is_refused(listening: socket.socket) -> None:
    with accepted(listening) as connection:
        connection.close()
        assert not admits(connection)


OPEN, CLOSED = (KnownSocket(user=0, open=each) for each in (True, False))


@pytest.mark.parametrize(
    ("of_peer", "own", "admitted", "reported"),
    [
        (OPEN, OPEN, True, 0),
        (CLOSED, CLOSED, False, 0),
        (None, CLOSED, False, 0),
        (None, None, True, 1),
    ],
    ids=["root's", "closed, as if root's", "gone", "unknown"],
)
def test_only_a_system_that_knows_no_sockets_leaves_it_to_the_key(
    listening: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    of_peer: KnownSocket | None,
    own: KnownSocket | None,
    admitted: bool,
    reported: int,
) -> None:
    reports: list[int] = []
    peers = PeerUsers(frozenset(), lambda: reports.append(1))
    port = listening.getsockname()[1]
    monkeypatch.setattr(peer_users, "find_socket", lambda local, _remote: own if local.port == port else of_peer)
    with accepted(listening) as connection:
        assert [peers.admits(connection) for _ in range(3)] == [admitted] * 3
    assert sum(reports) == reported


def test_a_question_takes_less_than_5_milliseconds(listening: socket.socket) -> None:
    """The kernel finds one socket: no list of all of them is read."""
    with accepted(listening) as connection:
        began = time.process_time()
        assert all(admits(connection) for _ in range(100))
        assert time.process_time() - began < 0.5
