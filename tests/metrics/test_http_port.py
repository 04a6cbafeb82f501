"""The HTTP port of a run: its answers, and what a scraper cannot do to a run."""

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from sbpair.metrics import http_port
from sbpair.metrics.http_port import MAX_CONNECTIONS, HttpPort, Page, Render

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
Address = tuple[str, int]


def rendered(accept: str) -> Page:
    return Page(b"a_metric 1\n", f"text/plain; accept={accept}")


@asynccontextmanager
async def served(render: Render = rendered) -> AsyncIterator[Address]:
    """Serve metrics on a free port, and yield its address."""
    done = asyncio.Event()
    options = ("--metrics-port", "--metrics-address")
    with closing(HttpPort(("127.0.0.1", 0), options, "metrics", {"/metrics": render})) as port:
        serving = asyncio.create_task(port.serve_during(done.wait()))
        try:
            yield "127.0.0.1", int(port.url.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))
        finally:
            done.set()
            await serving


async def ask(address: Address, request: bytes = GET) -> bytes:
    """Return all that is answered to a request."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET, 200),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\nHost: h\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET /metrics/../etc HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", 405),
        (b"\x16\x03\x01\x00\x05hello\r\n\r\n", 400),
        (b"AMQP\x00\x01\x00\x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: h\r\nA: " + b"a" * 20_000, 400),
    ],
)
async def test_a_request_has_one_answer_and_the_connection_ends(request_: bytes, status: int) -> None:
    async with served() as address:
        head, _, content = (await ask(address, request_)).partition(b"\r\n\r\n")
        assert head.split()[1] == str(status).encode()
        assert b"connection: close" in head.lower()
        assert (content == b"a_metric 1\n") is (status == 200 and not request_.startswith(b"HEAD"))
        assert await ask(address) != b""


async def test_the_accepted_formats_reach_the_library() -> None:
    async with served() as address:
        answer = await ask(address, GET[:-2] + b"Accept: one\r\nAccept: two\r\n\r\n")
        assert b"text/plain; accept=one,two" in answer


async def test_a_client_that_leaves_or_says_nothing_costs_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "MAX_SECONDS", 0.2)
    async with served() as address:
        for sent in (b"", b"GET /met"):
            _, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            writer.close()
        silent = [await asyncio.open_connection(*address) for _ in range(2 * MAX_CONNECTIONS)]
        # All connections are taken: this one waits until the first ones are ended.
        assert b"200" in await ask(address)
        assert await asyncio.gather(*(reader.read() for reader, _ in silent)) == [b""] * len(silent)
        for _, writer in silent:
            writer.close()


async def test_clients_without_a_request_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "MAX_SECONDS", 1_000.0)
    async with served() as address:
        silent = [await asyncio.open_connection(*address) for _ in range(3 * MAX_CONNECTIONS)]
        for _, writer in silent:
            writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert b"200" in await ask(address)
        for reader, writer in silent[: 2 * MAX_CONNECTIONS]:
            assert await reader.read() == b""
            writer.close()
        assert b"200" in await ask(address)
        for _, writer in silent:
            writer.close()


async def test_a_client_that_does_not_read_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "MAX_SECONDS", 0.2)
    async with served(lambda _: Page(b"x" * 50_000_000, "text/plain")) as address:
        _, writer = await asyncio.open_connection(*address, limit=1)
        writer.write(GET)
        assert b"404" in await ask(address, GET.replace(b"/metrics", b"/other"))
        writer.transport.abort()


async def test_a_bug_in_the_metrics_is_an_answer_and_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: str) -> Page:
        raise ZeroDivisionError

    async with served(broken) as address:
        with caplog.at_level(logging.ERROR):
            assert b" 500 " in await ask(address)
            assert b" 500 " in await ask(address)
    assert "the metrics could not be rendered" in caplog.text


async def test_rendering_takes_a_part_of_the_time_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(http_port.asyncio, "sleep", note)
    loop = asyncio.get_running_loop()

    def slow(_: str) -> Page:
        until = loop.time() + 0.01
        while loop.time() < until:
            pass
        return rendered("")

    async with served(slow) as address:
        for _ in range(3):
            await ask(address)
    # The second one waits for the rest after the first one, less the time that has passed.
    assert waits[0] <= 0
    assert waits[1] > 40 * 0.01


@pytest.mark.timeout_seconds(300)
async def test_thousands_of_scrapes_leak_neither_memory_nor_descriptors() -> None:
    descriptors = Path("/proc/self/fd")
    async with served() as address:
        for _ in range(50):
            await ask(address)
        before = len([*descriptors.iterdir()])
        tracemalloc.start()
        for _ in range(2000 // MAX_CONNECTIONS):
            await asyncio.gather(*(ask(address) for _ in range(MAX_CONNECTIONS)))
        gc.collect()  # closed connections are in cycles
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len([*descriptors.iterdir()]) <= before + MAX_CONNECTIONS
    assert size < 500_000
