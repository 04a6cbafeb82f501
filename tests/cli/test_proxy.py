"""The command line where only an HTTP proxy leads to the namespaces: every command, and every way in which it fails."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.command import environment, finished, start
from tests.kit.proxy import PASSWORD, Proxy, closed_port, expected, running_proxy
from tests.kit.stranded import numbered, put

HOSTS = {name: f"{name}.servicebus.windows.net" for name in ("contoso", "contoso-dr")}
FILE = """
[pairs.orders.primary]
connection_string_env = "CONTOSO"
ca_file = "{ca_file}"
[pairs.orders.secondary]
connection_string_env = "CONTOSO_DR"
ca_file = "{ca_file}"
"""


class Office:
    """A network in which names and ports of the pair are known to the proxy alone."""

    def __init__(self, emulator: Emulator, proxy: Proxy, directory: Path) -> None:
        self.emulator, self.proxy = emulator, proxy
        self.config = directory / "config.toml"
        self.config.write_text(FILE.format(ca_file=emulator.ready.ca_file))
        self.env = environment(None, "HTTP", "http", "NO_", "no_", "ALL_", "all_")
        self.env |= {"SBPAIR_CONFIG": str(self.config), "XDG_STATE_HOME": str(directory / "state")}
        for each in emulator.ready.namespaces:
            port = int(each.endpoint.rpartition(":")[2].strip("/"))
            key = each.tls_connection_string.partition(";")[2]
            self.env[each.name.upper().replace("-", "_")] = f"Endpoint=sb://{HOSTS[each.name]}/;{key}"
            proxy.routes[f"{HOSTS[each.name]}:443"] = port

    async def run(
        self, command: str, text: str = "", *, program: tuple[str, str] = ("-m", "sbpair"), **more: str
    ) -> tuple[int, str, str]:
        """Run a command. The password is in nothing that it writes."""
        stdin = asyncio.subprocess.PIPE if text else asyncio.subprocess.DEVNULL
        process = await start(*command.split(), env=self.env | more, stdin=stdin, python=(), program=program)
        code, out, err = await finished(process, text)
        for secret in (PASSWORD, expected().removeprefix("Basic "), "nobody-may-see"):
            assert secret not in out + err
        return code, out, err


@asynccontextmanager
async def office(directory: Path, *, login: bool = True, answer: bytes | None = b"connect") -> AsyncIterator[Office]:
    async with (
        running_proxy(login=login, answer=answer) as proxy,
        Emulator([("contoso", 0), ("contoso-dr", 0)], options=EmulatorOptions(tls=True)) as emulator,
    ):
        emulator.namespaces["contoso"].create_queue("orders")
        yield Office(emulator, proxy, directory)


COMMANDS = (
    "provision --count 2",
    "send orders",
    "ping orders",
    "status --count 2",
    "audit --count 2",
    "peek orders",
    "receive orders --remove --yes --wait 1s",
    "syphon --once --count 2",
)


@pytest.mark.timeout_seconds(300)
async def test_every_command_goes_through_the_proxy(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        for command in COMMANDS:
            text = "hello\n" if command.startswith("send") else ""
            code, out, err = await here.run(f"{command} --transport websocket -vv", text, HTTPS_PROXY=here.proxy.url)
            assert code == 0, (command, out, err)
            if command.startswith("provision"):
                backlog = here.emulator.namespaces["contoso-dr"].queue("contoso/x-servicebus-transfer/1")
                put(backlog, numbered(7, "orders"))
        assert out.split()[:6] == ["MESSAGES", "COUNT", "received", "1", "sent", "1"]
        assert {*here.proxy.targets} == {f"{host}:443" for host in HOSTS.values()}


HASTY = """
from sbpair import __main__, http_tunnel
from sbpair.model import retries
from sbpair.model.retries import Backoff
retries.REQUEST_BACKOFF = Backoff(0.01, retries.MAX_WAIT_SECONDS)
http_tunnel.TUNNEL_SECONDS /= {divisor}
__main__.main()
"""
"""The program, which does not wait for seconds before it tries again. A silent proxy has less time too."""


def answered(status: int) -> bytes:
    return f"HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize(
    "command", ["peek orders", "provision --count 1", pytest.param("receive orders", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("answer", "code", "problem"),
    [
        (answered(407), 5, "407 Proxy Authentication Required"),
        (answered(403), 5, "403 Forbidden"),
        (answered(502), 6, "502 Bad Gateway"),
        (answered(405), 6, "405 Method Not Allowed"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", 6, "is not an HTTP proxy"),
        (b"", 6, "closed the connection"),
        (None, 6, "opened no connection to contoso"),
    ],
)
async def test_a_proxy_that_refuses_is_named(
    tmp_path: Path, command: str, answer: bytes | None, code: int, problem: str
) -> None:
    async with office(tmp_path, answer=answer) as here:
        sides = {f"SBPAIR_{side}_PROXY": here.proxy.url for side in ("PRIMARY", "SECONDARY")}
        hasty = ("-c", HASTY.format(divisor=1 if answer is not None else 10))
        ended, out, err = await here.run(f"{command} -vv --debug", program=hasty, **sides)
        assert (ended, out) == (code, ""), err
        error = next(line for line in err.splitlines() if line.startswith("error: "))
        assert problem in error
        assert here.proxy.address in error
        assert "_PROXY" in err.rpartition("hint: ")[2]


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_send_through_a_dead_proxy_has_failed(tmp_path: Path, hangs: bool) -> None:
    async with office(tmp_path, answer=None) as here:
        with closed_port() as port:
            address = here.proxy.address if hangs else f"127.0.0.1:{port}"
            more = {"HTTPS_PROXY": f"http://me:nobody-may-see@{address}"}
            command = "send orders --transport websocket --timeout 4s --failover-interval 1s"
            ended, out, err = await here.run(command, "hello\n", program=("-c", HASTY.format(divisor=10)), **more)
    assert ended == 6
    assert dict(re.findall("(in doubt|failed) +([0-9]+)", out)) == {"in doubt": "0", "failed": "1"}
    assert " object at " not in err
    assert f"error: line 1: the proxy {address} " in err
    assert "HTTPS_PROXY" in err.rpartition("hint: ")[2]


async def test_ping_names_a_proxy_that_hangs(tmp_path: Path) -> None:
    async with office(tmp_path, answer=None) as here:
        proxy = f"http://me:nobody-may-see@{here.proxy.address}"
        ended, out, err = await here.run("ping orders --transport websocket --timeout 1s", HTTPS_PROXY=proxy)
    assert ended == 6
    assert f"through the proxy {here.proxy.address}" in out
    assert "HTTPS_PROXY" in err.rpartition("hint: ")[2]
    assert "nobody-may-see" not in out + err


@pytest.mark.parametrize("command", ["status orders", "ping orders", "receive orders --remove --yes"])
@pytest.mark.parametrize(("answer", "code"), [(answered(407), 5), (answered(403), 5), (answered(502), 6), (None, 2)])
async def test_health_commands_exit_as_the_proxy_refuses(
    tmp_path: Path, command: str, answer: bytes | None, code: int
) -> None:
    async with office(tmp_path, answer=answer) as here:
        variable = "SBPAIR_PRIMARY_PROXY" if command.startswith("receive") else "HTTPS_PROXY"
        settings = {variable: here.proxy.url if answer else "socks5://me:nobody-may-see@127.0.0.1:1"}
        ended, out, err = await here.run(f"{command} --transport websocket", **settings)
        assert ended == code, (out, err)
        assert (here.proxy.address if answer else f"{variable}: expected a proxy") in out + err
        hint = err.rpartition("hint: ")[2]
        assert variable in hint
        assert "--yes" not in hint


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "socks5://nobody-may-see:x@127.0.0.1:1080"),
        ("HTTPS_PROXY", "http://user:nobody-may-see@127.0.0.1:port"),
        ("SBPAIR_PRIMARY_PROXY", "http://user:nobody-may-see@"),
        ("SBPAIR_PRIMARY_PROXY", "http://user:nobody-may-see/x@127.0.0.1:1"),
    ],
)
async def test_a_malformed_setting_is_named_and_not_repeated(tmp_path: Path, variable: str, value: str) -> None:
    async with office(tmp_path) as here:
        settings = {"SBPAIR_PRIMARY_TRANSPORT": "websocket", variable: value}
        code, out, err = await here.run("peek orders --debug", **settings)
        assert (code, out) == (2, "")
        assert f"error: {variable}: expected " in err
