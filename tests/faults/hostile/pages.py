"""Web pages of other origins, and of host names that lead here, at every door of the emulator and of `sbpair page`.

Each request is sent as a browser would send it; a few come from a real browser, if one is installed. None may be let
in, while the same request without the foreign names is answered. Then hundreds of pages are open at once.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final

from aiohttp import web

from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.azure.atom import open_atom
from sbpair.emulator.bearer_tokens import AUDIENCE, Bearers
from sbpair.model.pair import SasKey
from sbpair.model.queues import QueueSpec
from tests.benchmarks.stranded import PRIMARY
from tests.faults.emulated_pair import EmulatedPair
from tests.faults.hostile.trial import Trial
from tests.kit.sas import sign

LIMIT_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 180.0
PAGES: Final = 900
EVIL: Final = "evil.example"
ORIGINS: Final = (
    f"http://{EVIL}",
    f"https://{EVIL}:8443",
    "null",
    f"http://127.0.0.1.{EVIL}",
    f"http://localhost.{EVIL}:3000",
    "file://",
    "chrome-extension://abcdefgh",
    "http://169.254.169.254",
)
HOSTS: Final = (
    EVIL,
    f"127.0.0.1.{EVIL}",
    f"localhost.{EVIL}",
    f"contoso.servicebus.windows.net.{EVIL}",
    f"127.0.0.1@{EVIL}",
)
OPENING: Final = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
}
QUEUE: Final = "held"
ARM: Final = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/r/providers/Microsoft.ServiceBus"
    f"/namespaces/{PRIMARY}/queues/{QUEUE}?api-version=2021-11-01"
)
CLOCK: Final = '{"advance_ms": 1}'


@dataclass(frozen=True)
class Request:
    """A request to one of the doors. `looks_at` are the headers by which that door must tell pages apart."""

    name: str
    port: int
    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    looks_at: tuple[str, ...] = ("Host",)


async def ask(request: Request, **more: str) -> int:
    """Return the status of the answer; 0 if the connection is closed without one."""
    headers = {"Host": f"127.0.0.1:{request.port}", **request.headers, "Content-Length": str(len(request.body))} | more
    lines = [f"{request.method} {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    async with asyncio.timeout(LIMIT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", request.port)
        try:
            writer.write(("\r\n".join(lines) + "\r\n\r\n" + request.body).encode())
            words = (await reader.readline()).split()
            return int(words[1]) if len(words) > 1 else 0
        except ConnectionError:
            return 0
        finally:
            writer.close()


def requests(pair: EmulatedPair, page: int) -> Iterator[Request]:
    """Yield a request for each door. `page` is the port of `sbpair page`."""
    endpoint = pair.endpoint(PRIMARY)
    credential = endpoint.credential
    assert isinstance(credential, SasKey)
    rule = AuthorizationRule(credential.name, credential.key, "", frozenset())
    token = sign(rule, f"http://{endpoint.host}:{endpoint.port}/", int(time.time()) + 3_600)
    bearer, _ = Bearers(accept_any=True).issue(AUDIENCE, time.time_ns() // 1_000_000)
    port, both, signed = endpoint.port, ("Host", "Origin"), {"Authorization": token}
    amqp = OPENING | {"Sec-WebSocket-Protocol": "AMQPWSB10"}
    relay = OPENING | {"ServiceBusAuthorization": token}
    yield Request("AMQP over WebSocket", port, "GET", "/$servicebus/websocket", amqp, looks_at=both)
    yield Request("the relay's WebSocket", port, "GET", "/$hc/hc?sb-hc-action=listen", relay, looks_at=both)
    yield Request("control: state", port, "GET", "/$control/state", looks_at=both)
    yield Request("control: clock", port, "POST", "/$control/clock", {"Content-Type": "text/plain"}, CLOCK, both)
    yield Request("Atom: read", port, "GET", f"/{QUEUE}?api-version=2021-05", signed)
    yield Request("Atom: list", port, "GET", "/$Resources/queues?api-version=2021-05", signed)
    yield Request("Resource Manager", port, "GET", ARM, {"Authorization": f"Bearer {bearer}"})
    yield Request("the emulator's page", port, "GET", "/$page/")
    yield Request("the emulator's page: control", port, "GET", "/$page/control")
    yield Request("sbpair page", page, "GET", "/")
    yield Request("sbpair page: runs", page, "GET", "/runs")


def foreign(request: Request) -> Iterator[dict[str, str]]:
    """Yield the headers that browsers add for a page of another origin, or of a name that leads here."""
    for host in HOSTS:
        yield {"Host": f"{host}:{request.port}"}
        yield {"Host": f"{host}:{request.port}", "Origin": f"http://{host}:{request.port}"}
    for origin in ORIGINS if "Origin" in request.looks_at else ():
        yield {"Origin": origin}
        yield {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    for site in ("cross-site", "same-site") if "page" in request.name else ():
        yield {"Sec-Fetch-Site": site, "Origin": f"http://{EVIL}"}


async def play(trial: Trial) -> None:
    pair = trial.pair()
    pair.options = ("--relay", "hc", "--accept-any-token")
    async with pair.running():
        async with open_atom(pair.endpoint(PRIMARY)) as control:
            await control.create(QueueSpec(QUEUE))
        page = await pair.launch("page")
        try:
            await page.first_line(60.0)
            port = int(page.receipt()["url"].rstrip("/").rpartition(":")[2])
            for request in requests(pair, port):
                await _knock(trial, request)
            if trial.number % 2 == 0:
                await _browse(trial, pair)
            for kind, where, path in (
                ("sbpair page", port, "/events"),
                ("emulator", pair.endpoint(PRIMARY).port, "/$page/events"),
            ):
                await _open_many(trial, kind, where, path)
        finally:
            page.signal(signal.SIGTERM)
            await page.end({0}, limit=60.0)


async def _knock(trial: Trial, request: Request) -> None:
    figures, let_in = trial.figures, []
    if not 100 < (status := await ask(request)) < 300:
        figures.find("other", f"{request.name}: {status} without foreign headers")
    for headers in foreign(request):
        if 100 < (status := await ask(request, **headers)) < 400:
            let_in.append(f"{status} with {headers}")
        figures.messages += 1
    if let_in:
        figures.find("let_in", f"{request.name}: {let_in[0]}, {let_in[-1]}", len(let_in))


async def _open_many(trial: Trial, kind: str, port: int, path: str) -> None:
    """Open many pages at once; each must get its first event, and so must one more afterwards."""

    async def opened() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        await reader.readuntil(b"data: {")
        return writer

    count = trial.amount(PAGES)
    trial.figures.messages += count
    tasks = [asyncio.create_task(opened()) for _ in range(count)]
    done, waiting = await asyncio.wait(tasks, timeout=OPEN_SECONDS)
    failed = [str(each.exception()) for each in done if each.exception()]
    if failed or waiting:
        trial.figures.find("other", f"{kind}: of {count} pages {len(waiting)} wait, {len(failed)} fail: {failed[:1]}")
    for each in waiting:
        each.cancel()
    for each in done:
        if not each.exception():
            each.result().close()
    async with asyncio.timeout(OPEN_SECONDS):
        (await opened()).close()


# A real browser

SCRIPT: Final = """async ([port, path]) => {
  const opened = await new Promise(done => {
    const socket = new WebSocket(`ws://127.0.0.1:${port}/$servicebus/websocket`, "AMQPWSB10");
    socket.onopen = () => done(true); socket.onerror = () => done(false);
  });
  const read = async (url, options) => {
    try { return (await (await fetch(url, options)).text()).length > 0 } catch { return false }
  };
  const post = {method: "POST", body: '{"advance_ms": 7777777}', mode: "no-cors"};
  await read(`http://127.0.0.1:${port}/$control/clock`, post);
  return {"WebSocket": opened, "state": await read(`http://127.0.0.1:${port}/$control/state`),
          "page": await read(`http://127.0.0.1:${port}/$page/control`)};
}"""


async def _browse(trial: Trial, pair: EmulatedPair) -> None:
    """Open a page of another origin, and pages of a name that leads here, in a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or find_spec("playwright") is None:
        trial.skipped.add("pages in a browser: needs Debian's package chromium")
        return
    from playwright.async_api import async_playwright

    port, figures = pair.endpoint(PRIMARY).port, trial.figures
    before = (await pair.control(PRIMARY, "GET", "state"))["now_ms"]
    runner = web.ServerRunner(web.Server(_empty_page))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"]
    async with async_playwright() as started:
        chromium = await started.chromium.launch(executable_path=browser, args=arguments)
        page = await chromium.new_page()
        await page.goto(f"http://{EVIL}:{runner.addresses[0][1]}/")
        found = await page.evaluate(SCRIPT, [port, ""])
        for path in ("$page/", "$control/state"):
            answer = await page.goto(f"http://{EVIL}:{port}/{path}")
            found[f"rebound {path}"] = answer is not None and answer.ok
        await chromium.close()
    await runner.cleanup()
    figures.messages += len(found) + 1
    for name in [name for name, let_in in found.items() if let_in]:
        figures.find("let_in", f"a browser's page of another origin: {name}")
    if (await pair.control(PRIMARY, "GET", "state"))["now_ms"] - before > 7_000_000:
        figures.find("let_in", "a browser's page of another origin: the clock")


async def _empty_page(request: web.BaseRequest) -> web.Response:  # noqa: ARG001  aiohttp's signature
    return web.Response(text="<!doctype html><title>other</title>", content_type="text/html")
