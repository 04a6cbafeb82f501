"""`--health-port` of a watch: its address, its answers and its refusals."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.test_runs import open_pair
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout_seconds(90)


@pytest.mark.parametrize(("command", "sent"), [("syphon", 1), ("move 0 orders", 1), ("redrive --backlog", 0)])
async def test_a_probe_of_a_process_gets_its_readiness(tmp_path: Path, command: str, sent: int) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        words = ("--health-port", "0", "--metrics-port", "0", "--log-format", "json", "--quiet", "--output", "json")
        process = await pair.start(*command.split(), "--watch", *words)
        assert process.stderr
        event = json.loads(await process.stderr.readline())
        assert (event["schema"], event["event"]) == ("sbpair/syphon-event/1", "health-served")
        assert json.loads(await process.stderr.readline())["event"] == "metrics-served"
        host, _, port = event["url"].removesuffix("/health/ready").removeprefix("http://").partition(":")
        answer = b""
        while not answer.endswith(b"\r\n\r\nmoving\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /health/ready HTTP/1.1\r\nHost: here\r\n\r\n")
            answer = await reader.read()
            writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        await until(lambda: pair.arrived == sent)
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
        assert (process.returncode, json.loads(out)["sent"]) == (0, sent)


async def test_a_port_that_is_taken_ends_before_anything_is_received(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            code, out, err = await pair.run("syphon", "--watch", "--health-port", port)
        assert (code, out) == (7, "")
        assert err.startswith(f"error: --health-port: port {port} on 127.0.0.1 is in use\nhint: ")
        assert pair.arrived == 0
