"""The way to a namespace where TCP is blocked and WebSockets are not, or where only a proxy leads out."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.doctor import CheckSubject, diagnose
from sbpair.doctor.check import Check
from sbpair.doctor.namespace_checks import PROXY_HINT, check_connectivity
from sbpair.errors import ExitCode
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Transport
from sbpair.model.proxy import parse_proxy
from sbpair.model.report import Outcome
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.proxy import closed_port, running_proxy
from tests.kit.shortages import no_file_left

SETTING = 'set SBPAIR_PRIMARY_TRANSPORT=websocket, or transport = "websocket" in the configuration file'
CHANGED = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHANGED:
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def emulated() -> AsyncIterator[Endpoint]:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(tls=True)) as emulator:
        found = endpoint_from_connection_string(emulator.ready.namespaces[0].tls_connection_string)
        yield replace(found, ca_file=emulator.ready.ca_file)


@contextmanager
def blackholed_port() -> Iterator[int]:
    """Yield a port that does not answer: its queue of connections is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]
        for each in waiting:
            each.close()


async def checked(endpoint: Endpoint, *, web_port: int | None = None) -> dict[str, Check]:
    emitted: list[Check] = []

    def emit(check: Check) -> Check:
        emitted.append(check)
        return check

    checks = await check_connectivity("primary", endpoint, 1.0, emit, web_port=web_port)
    assert emitted == checks
    return {check.name.removeprefix("primary."): check for check in checks}


def hint(check: Check) -> str:
    return check.detail.hint if check.detail else ""


@pytest.mark.parametrize("blocked", [closed_port, blackholed_port])
async def test_websocket_is_proposed_where_tcp_is_blocked(blocked: type[closed_port]) -> None:
    async with emulated() as endpoint:
        with blocked() as port:
            found = await checked(replace(endpoint, port=port), web_port=endpoint.port)
    assert found["tcp"].exit_code == ExitCode.UNAVAILABLE
    assert hint(found["tcp"]).startswith(f"{SETTING}: AMQP over WebSocket opens a connection at {endpoint.authority}")
    assert found["websocket"].outcome is Outcome.OK
    assert {found["tls"].outcome, found["amqp"].outcome} == {Outcome.UNKNOWN}


@pytest.mark.parametrize("blocked", [closed_port, blackholed_port])
async def test_a_proxy_is_proposed_where_both_ports_are_blocked(blocked: type[closed_port]) -> None:
    async with emulated() as endpoint:
        with blocked() as port, blocked() as web_port:
            found = await checked(replace(endpoint, port=port), web_port=web_port)
    assert "127.0.0.1" in hint(found["tcp"]) + found["tcp"].reason
    assert (found["websocket"].outcome, found["websocket"].exit_code) == (Outcome.NOTE, 0)
    assert found["websocket"].reason.startswith("AMQP over WebSocket does not work either: ")
    assert hint(found["websocket"]) == PROXY_HINT


async def test_websocket_through_the_proxy_of_the_environment_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with emulated() as endpoint, running_proxy(login=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        hidden = replace(endpoint, host="contoso.invalid", port=5671)
        proxy.routes["contoso.invalid:443"] = endpoint.port
        found = await checked(hidden)
    assert found["dns"].outcome is Outcome.FAILED
    assert hint(found["dns"]).startswith(SETTING)
    assert hint(found["dns"]).endswith(f"at contoso.invalid:443 through the proxy {proxy.address}")


async def test_the_proxy_s_own_error_is_shown_where_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with emulated() as endpoint, running_proxy(login=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        with closed_port() as port:
            found = await checked(replace(endpoint, port=port), web_port=endpoint.port)
    assert "407 Proxy Authentication Required" in found["websocket"].reason
    assert hint(found["websocket"]).startswith("give user and password in HTTPS_PROXY")


async def test_a_configured_proxy_is_checked_in_place_of_dns_and_tcp() -> None:
    async with emulated() as endpoint, running_proxy(login=True) as proxy:
        right = parse_proxy(proxy.url, "SBPAIR_PRIMARY_PROXY")
        over = replace(endpoint, transport=Transport.WEBSOCKET, proxy=right)
        found = await checked(over)
        assert {name: check.outcome for name, check in found.items()} == dict.fromkeys(
            ("proxy", "tls", "amqp"), Outcome.OK
        )
        assert found["proxy"].reason == f"{proxy.address} connects to {endpoint.authority}"
        found = await checked(replace(over, proxy=replace(right, password="wrong")))
    assert (found["proxy"].outcome, found["proxy"].exit_code) == (Outcome.FAILED, ExitCode.ACCESS)
    assert {found["tls"].outcome, found["amqp"].outcome} == {Outcome.UNKNOWN}
    assert "SBPAIR_PRIMARY_PROXY" in hint(found["proxy"])


@pytest.mark.parametrize("transport", Transport)
async def test_a_malformed_proxy_is_a_failed_check(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://user:nobody-may-see@127.0.0.1:1")
    async with emulated() as endpoint:
        with closed_port() as port:
            found = await checked(replace(endpoint, port=port, transport=transport), web_port=endpoint.port)
    assert "HTTPS_PROXY: expected a proxy" in found["proxy" if transport is Transport.WEBSOCKET else "websocket"].reason
    assert "nobody-may-see" not in str(found)


async def test_a_check_without_a_free_file_blames_no_network() -> None:
    async with emulated() as endpoint:
        await checked(endpoint)  # with all modules loaded
        with no_file_left():
            found = await checked(endpoint)
    failures = [(name, check) for name, check in found.items() if check.outcome is Outcome.FAILED]
    assert [(name, check.exit_code) for name, check in failures] == [("tcp", ExitCode.MACHINE)]
    assert found["tcp"].reason == f"{endpoint.amqp_address}: too many open files"


async def test_a_port_that_serves_everything_is_tried_once() -> None:
    async with emulated() as endpoint:
        with closed_port() as port:
            found = await checked(replace(endpoint, port=port))
    assert "websocket" not in found


async def test_websocket_without_a_way_out_proposes_a_proxy() -> None:
    async with emulated() as endpoint:
        with blackholed_port() as port:
            found = await checked(replace(endpoint, port=port, transport=Transport.WEBSOCKET))
    assert hint(found["tcp"]).endswith(PROXY_HINT)


async def test_what_a_proxy_refuses_says_nothing_of_claims() -> None:
    for answer in (b"HTTP/1.1 403 no\r\n\r\n", b"HTTP/1.1 407 no\r\n\r\n"):
        async with emulated() as endpoint, running_proxy(answer=answer) as proxy:
            over = replace(endpoint, transport=Transport.WEBSOCKET, proxy=parse_proxy(proxy.url, "HTTPS_PROXY"))
            diagnosis = await diagnose(CheckSubject({"primary": over}, Path("/nowhere"), paths={"primary": "orders"}))
        found = {check.name: check for check in diagnosis}
        assert found["primary.proxy"].exit_code == found["primary.http"].exit_code == ExitCode.ACCESS
        outcomes = {found[f"primary.{name}"].outcome for name in ("sign_in", "send", "listen", "manage")}
        assert outcomes == {Outcome.UNKNOWN}
        assert found["primary.send"].reason.startswith("Send could not be tried: the proxy")
