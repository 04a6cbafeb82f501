"""The cost of an HTTP request through the relay, beside a plain reverse proxy of aiohttp for the same request.

python -m tests.benchmarks.relay_proxy [--messages SMALL LARGE] [--body BYTES] [--rounds N] [--instructions]
                                       [--output json]

They take turns in each round. `relay` is emulator and listener, whose handler answers. `passed_on` is emulator and
listener too, but the listener is a reverse proxy to a server, which is not counted. `proxy` is the plain reverse proxy
alone, and `proxy_and_server` it and its server. CPU is noisy on a busy machine: with --instructions, valgrind counts
those of a request.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from sbpair.model.pair import SasKey
from sbpair.model.signature import sign
from sbpair.relay import RelayAnswer, RelayEndpoint, RelayPair
from sbpair.relay.aio import RelayListener
from sbpair.relay.reverse_proxy import ReverseProxy
from tests.benchmarks.figures import Run, emit, log, parser, ratio, summary
from tests.benchmarks.processes import CACHEGRIND, counted_by_valgrind, cpu_seconds, peak_mb, started

MODULE = "tests.benchmarks.relay_proxy"
IN_FLIGHT = 8
WARM_UP = 20
LOCAL = "127.0.0.1"
STRINGS = "SBPAIR_BENCHMARK_CONNECTION_STRINGS"
RATIOS = [("relay", "proxy_and_server"), ("passed_on", "proxy"), ("relay", "proxy")]
OF_CONNECTION = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


# The processes


async def listen(port: str = "") -> None:
    """Answer requests through the relay with their bodies, or pass them on to a server."""

    async def echo(request: Any) -> RelayAnswer:
        return RelayAnswer(200, {"Content-Type": "text/plain"}, await request.read())

    texts = json.loads(os.environ[STRINGS])
    pair = RelayPair(*(RelayEndpoint.from_connection_string(text) for text in texts))
    async with (
        ReverseProxy(pair, f"http://{LOCAL}:{port or 1}") as proxy,
        RelayListener(pair, proxy.handle if port else echo),
    ):
        await until_ended("listening")


async def serve() -> None:
    """Answer requests over HTTP with their bodies."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), content_type="text/plain")

    await serve_with(echo)


async def proxy(port: str) -> None:
    """Pass requests on to a server, and its answers back, as streams."""
    async with ClientSession(auto_decompress=False, connector=TCPConnector(limit=0)) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            url, body = f"http://{LOCAL}:{port}{request.raw_path}", request.content if request.body_exists else None
            async with session.request(request.method, url, headers=passed(request.headers), data=body) as answer:
                response = web.StreamResponse(status=answer.status, reason=answer.reason)
                response.headers.update(passed(answer.headers))
                response.content_length = answer.content_length
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    await response.write(part)
                return response

        await serve_with(pass_on)


def passed(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in OF_CONNECTION}


async def serve_with(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, LOCAL, 0).start()
    await until_ended(str(runner.addresses[0][1]))
    await runner.cleanup()


async def until_ended(line: str) -> None:
    """Write a line, and wait for the signal to end."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    await ended.wait()


# The measurement


@dataclass(slots=True)
class Process:
    """A running process, the line that it wrote when it was ready, and its cost."""

    pid: int
    line: str
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    instructions: int | None = None


@dataclass(frozen=True, slots=True)
class Sending:
    """The requests of a run."""

    count: int
    body: int
    counting: bool = False

    def through_relay(self, *, is_passed_on: bool = False) -> dict[str, Run]:
        with ExitStack() as stack:
            server = [stack.enter_context(self.started(MODULE, "serve")).line] if is_passed_on else []
            words = ("--namespace", "bench=0", "--namespace", "bench-dr=0", "--relay", "hyco", "--quiet")
            emulator = stack.enter_context(self.started("sbpair", "emulator", *words, "--output", "json"))
            texts = [each["hybrid_connections"][0] for each in json.loads(emulator.line)["namespaces"]]
            environ = {STRINGS: json.dumps(texts)}
            listener = stack.enter_context(self.started(MODULE, "listen", *server, environ=environ))
            endpoint = RelayEndpoint.from_connection_string(texts[0])
            assert isinstance(endpoint.credential, SasKey)
            token = sign(endpoint.audience, endpoint.credential, int(time.time()) + 3_000)
            headers = {"ServiceBusAuthorization": token}
            seconds = asyncio.run(self.send(endpoint.request_url(), headers, emulator, listener))
        if is_passed_on:
            return self.runs(seconds, passed_on=[emulator, listener])
        return self.runs(seconds, relay=[emulator, listener], emulator=[emulator], listener=[listener])

    def through_proxy(self) -> dict[str, Run]:
        with ExitStack() as stack:
            server = stack.enter_context(self.started(MODULE, "serve"))
            between = stack.enter_context(self.started(MODULE, "proxy", server.line))
            seconds = asyncio.run(self.send(f"http://{LOCAL}:{between.line}/hyco", {}, between, server))
        return self.runs(seconds, proxy=[between], proxy_and_server=[between, server])

    @contextmanager
    def started(self, *words: str, environ: dict[str, str] | None = None) -> Iterator[Process]:
        """Run a process until it is ready, and end it after the block."""
        command = [*(CACHEGRIND if self.counting else ()), sys.executable, "-m", *words]
        with TemporaryFile("w+") as errors:
            with started(command, {**os.environ, **(environ or {})}, errors) as (pid, line):
                made = Process(pid, line)
                yield made
            errors.seek(0)
            made.instructions = counted_by_valgrind(errors.read())

    async def send(self, url: str, headers: dict[str, str], *processes: Process) -> float:
        """Send the requests, some at once, and note the cost of the processes. Returns the seconds of all."""
        body = b"x" * self.body
        left = iter(range(self.count))

        async def work() -> None:
            for _ in left:
                await ask()

        async def ask() -> None:
            async with session.post(url, headers=headers, data=body) as answer:
                received = await answer.read()
                if answer.status != 200 or received != body:
                    raise RuntimeError(f"{answer.status} with {len(received)} bytes")

        async with ClientSession() as session:
            for _ in range(WARM_UP):
                # The first one may be too slow below valgrind.
                with suppress(RuntimeError):
                    await ask()
            before, began = [cpu_seconds(each.pid) for each in processes], time.perf_counter()
            await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
            seconds = time.perf_counter() - began
            for each, cpu_s in zip(processes, before, strict=True):
                each.cpu_s, each.peak_mb = cpu_seconds(each.pid) - cpu_s, peak_mb(each.pid) or 0.0
        return seconds

    def runs(self, seconds: float, **parts: list[Process]) -> dict[str, Run]:
        return {
            name: Run(
                self.count,
                sum(each.cpu_s for each in processes),
                self.count / seconds,
                sum(each.peak_mb for each in processes),
                sum(each.instructions or 0 for each in processes) or None,
            )
            for name, processes in parts.items()
        }


def document(sizes: list[int], rounds: int, body: int, *, counting: bool) -> dict[str, Any]:
    turns: dict[str, list[dict[int, Run]]] = {}
    for number in range(rounds):
        for size in sizes:
            sending = Sending(size, body, counting)
            ways = sending.through_relay() | sending.through_relay(is_passed_on=True) | sending.through_proxy()
            for name, run in ways.items():
                found = turns.setdefault(name, [{} for _ in range(rounds)])
                found[number][size] = run
                log(f"round {number + 1} of {rounds}: {name}: {run}")
    found = {name: summary(each) for name, each in turns.items()}
    ratios: dict[str, Any] = {}
    for one, other in RATIOS:
        if counting:
            counts = [found[name]["instructions_per_message"]["min"] for name in (one, other)]
            ratios[f"{one}_to_{other}"] = round(counts[0] / counts[1], 2)
        else:
            ratios[f"{one}_to_{other}"] = ratio(turns[one], turns[other])
    return {"body": body, "ways": found, "ratios": ratios}


def main() -> None:
    options_of = parser(__doc__, messages=(2_000, 10_000), rounds=5)
    options_of.add_argument("--body", type=int, default=1024, help="bytes of a request and its answer")
    options_of.add_argument("--instructions", action="store_true", help="count instructions, with valgrind")
    options = options_of.parse_args()
    emit(options, document(options.messages, options.rounds, options.body, counting=options.instructions))


if __name__ == "__main__":
    if sys.argv[1:2] in (["listen"], ["serve"], ["proxy"]):
        asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
    else:
        main()
