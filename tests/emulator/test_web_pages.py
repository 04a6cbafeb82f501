"""Web pages and an emulator: which hosts and origins reach what, over each kind of request, and in a browser."""

import asyncio
import shutil
import ssl
from uuid import UUID

import pytest
from aiohttp import web

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.operating_system import listen
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.peer import Stage, raw_connection
from tests.emulator.relay_peers import HANDSHAKE
from tests.kit.command import Here

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WEBSOCKET = "\r\n".join(f"{name}: {value}" for name, value in HANDSHAKE.items())
RELAYED = f"{WEBSOCKET}\r\nServiceBusAuthorization: x"
ARM = f"/subscriptions/{UUID(int=1)}/resourceGroups/b/providers/Microsoft.ServiceBus/namespaces/contoso/queues"
DOORS = {
    "AMQP over WebSocket": ("/$servicebus/websocket", f"{WEBSOCKET}\r\nSec-WebSocket-Protocol: amqp", 101),
    "Atom": ("/orders?api-version=2021-05", "X: y", 401),
    "Resource Manager": (f"{ARM}?api-version=2024-01-01", "X: y", 401),
    "a listener of the relay": ("/$hc/hyco?sb-hc-action=listen", RELAYED, 401),
    "a sender of the relay": ("/$hc/hyco?sb-hc-action=connect", RELAYED, 401),
    "a rendezvous of the relay": ("/$hc/hyco?sb-hc-action=accept&sb-hc-id=1", RELAYED, 403),
    "a request through the relay": ("/hyco/suffix", "ServiceBusAuthorization: x", 401),
}  # fmt: skip
OWN, ANY = "127.0.0.1", "0.0.0.0"  # noqa: S104  # an emulator in a container
BOTH = (OWN, ANY)
HOSTS = [
    # host, the emulators that have it
    ("127.0.0.1:5672", BOTH),
    ("localhost", BOTH),
    ("LOCALHOST.:1", BOTH),
    ("[::1]:5672", BOTH),
    ("contoso.localhost", BOTH),
    ("contoso.servicebus.windows.net", BOTH),
    ("host.docker.internal:5300", BOTH),
    ("Host.Docker.Internal.", BOTH),
    ("192.0.2.7", BOTH),
    ("10.0.0.7:5672", (ANY,)),
    ("[fd00::7]", (ANY,)),
    ("servicebus:5672", (ANY,)),
    ("", ()),
    ("evil.example:5672", ()),
    ("docker.internal", ()),
    ("evil.host.docker.internal", ()),
    ("localhost.evil.example", ()),
    ("127.0.0.1.evil.example", ()),
    ("evil.example@localhost", ()),
    ("localhost/evil.example", ()),
    ("localhost:x", ()),
    ("localhost\r\nHost: evil.example", ()),
]
ORIGINS = [
    # Host, Origin, the emulators that accept both
    ("localhost:5672", "http://localhost:5672", BOTH),
    ("localhost:5672", "http://localhost:3000", BOTH),
    ("127.0.0.1:5672", "https://LOCALHOST", BOTH),
    ("localhost", "http://[::1]:8080", BOTH),
    ("localhost", "http://127.8.9.10", BOTH),
    ("localhost", "http://app.localhost:4200", BOTH),
    ("localhost", "tauri://localhost", BOTH),
    ("localhost", "https://host.docker.internal", BOTH),
    ("contoso.servicebus.windows.net", "http://contoso.servicebus.windows.net:5672", BOTH),
    ("servicebus:5672", "http://frontend:3000", (ANY,)),
    ("10.0.0.7:5672", "http://10.0.0.7:3000", (ANY,)),
    # Pages of the internet may have any IP address, and a namespace of Azure the name of the emulator's.
    ("10.0.0.7:5672", "http://198.51.100.9", ()),
    ("localhost", "https://contoso.servicebus.windows.net", ()),
    ("localhost", "null", ()),
    ("localhost", "", ()),
    ("localhost", "file://", ()),
    ("localhost", "http://evil.example", ()),
    ("localhost", "http://localhost.evil.example", ()),
    ("localhost", "http://evil.example:5672", ()),
    ("localhost", "http://localhost@evil.example", ()),
    ("localhost", "http://evil.example#localhost", ()),
    ("localhost", "localhost", ()),
    ("localhost", "http://localhost\r\nOrigin: http://evil.example", ()),
    ("servicebus", "chrome-extension://abcdefghijklmnopabcdefghijklmnop", ()),
]


async def status_of(authority: str, target: str, header: str, version: str = "1.1") -> tuple[int, str]:
    """Send a request; return the status of the answer, and its reason phrase."""
    async with raw_connection(authority) as (reader, writer):
        writer.write(f"GET {target} HTTP/{version}\r\n{header}\r\n\r\n".encode())
        _, status, reason = (await reader.readline()).decode().split(" ", 2)
        return int(status), reason.strip()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("host", BOTH)
async def test_requests_need_a_host_and_an_origin_of_the_emulator(host: str, door: str) -> None:
    target, header, otherwise = DOORS[door]
    options = EmulatorOptions(allow_hosts=("host.docker.internal", "192.0.2.7"))
    async with Emulator([("contoso", 0)], host=host, options=options) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.hybrid_connections.create("hyco")
        cases = [(f"Host: {name}", hosts, "Host") for name, hosts in HOSTS]
        cases += [(f"Host: {name}\r\nOrigin: {origin}", hosts, "Origin") for name, origin, hosts in ORIGINS]
        for headers, hosts, named in [*cases, ("X: no host", (), "Host")]:
            status, reason = await status_of(namespace.authority, target, f"{headers}\r\n{header}")
            if host in hosts:
                assert (status, "not a name" in reason) == (otherwise, False), headers
            elif status != 400:  # a parser refuses it
                assert status == 403, headers
                assert named in reason or "Host" in reason, headers
                assert "--allow-host" in reason, headers


async def test_a_health_probe_may_use_any_host_name(stage: Stage) -> None:
    for host, version in (("Host: pod.cluster.example", "1.1"), ("X: no host", "1.0")):
        assert (await status_of(stage.namespace.authority, "/health", host, version))[0] == 200


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: Debian's package chromium")
async def test_a_browsers_page_of_another_host_takes_no_message(stage: Stage) -> None:
    """A page that was loaded from a host name which now leads to the emulator, too."""
    playwright = pytest.importorskip("playwright.async_api")
    stage.queue.send([StoredMessage(Sections(), 10)])
    port = stage.namespace.authority.rpartition(":")[2]
    script = f"""(host) => new Promise(done => {{
        const socket = new WebSocket(`ws://${{host}}:{port}/$servicebus/websocket`, "AMQPWSB10");
        socket.onopen = () => done("open"); socket.onerror = () => done("refused"); }})"""

    async def page_of(_: web.BaseRequest) -> web.Response:
        return web.Response(text="<title>page</title>", content_type="text/html")

    with listen("127.0.0.1", 0) as listening:
        runner = web.ServerRunner(web.Server(page_of, access_log=None))
        await runner.setup()
        await web.SockSite(runner, listening).start()
        found = {}
        async with playwright.async_playwright() as started:
            rule = "--host-resolver-rules=MAP *.example 127.0.0.1"
            browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rule])
            for host in ("evil.example", "localhost"):
                page = await browser.new_page()
                await page.goto(f"http://{host}:{listening.getsockname()[1]}/")
                for to in ("127.0.0.1", "localhost", "evil.example"):
                    found[host, to] = await page.evaluate(script, to)
            await browser.close()
        await runner.cleanup()
    assert [pair for pair, result in found.items() if result == "open"] == [
        ("localhost", "127.0.0.1"),
        ("localhost", "localhost"),
    ]


async def test_an_allowed_host_is_a_name_of_the_certificate() -> None:
    options = EmulatorOptions(tls=True, allow_hosts=("host.docker.internal",))
    async with Emulator([("contoso", 0)], options=options) as emulator:
        trust = ssl.create_default_context(cafile=emulator.ready.ca_file)
        ask = b"GET /health HTTP/1.1\r\nHost: host.docker.internal\r\nConnection: close\r\n\r\n"
        host, _, port = emulator.namespaces["contoso"].authority.rpartition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=trust, server_hostname="host.docker.internal"
        )
        writer.write(ask)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


def test_the_command_refuses_a_wrong_allowed_host(here: Here) -> None:
    code, written, said = here("emulator", "--namespace", "contoso=0", "--allow-host", "http://x")
    assert (code, written) == (2, "")
    assert "expected a host name such as host.docker.internal, got 'http://x'" in said
