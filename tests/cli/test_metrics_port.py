"""`--metrics-port` and `--health-port` of a watch: addresses, refusals, metrics and probes of a process."""

import asyncio
import json
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.test_runs import open_pair
from tests.kit.command import Here, untimed
from tests.kit.waiting import until

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/metrics")


async def scrape(url: str) -> dict[str, float]:
    """Return the sum of each metric."""
    found = ADDRESS.fullmatch(url)
    assert found
    reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
    content = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    samples = (sample for family in text_string_to_metric_families(content.decode()) for sample in family.samples)
    sums: dict[str, float] = {}
    for sample in samples:
        sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


async def url_in(process: asyncio.subprocess.Process) -> str:
    assert process.stderr
    while line := (await process.stderr.readline()).decode():
        if found := ADDRESS.search(line):
            return found[0]
    pytest.fail("no address was printed")


async def receipt_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    process.send_signal(signal.SIGTERM)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)  # type: ignore[no-any-return]


async def test_a_watch_serves_the_figures_of_its_receipt(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(7)
        process = await pair.start("syphon", "--watch", "--metrics-port", "0", "--output", "json")
        url, found = await url_in(process), dict[str, float]()
        while found.get("sbpair_messages_sent_total", 0) < 7:
            found = await scrape(url)
        receipt = await receipt_of(process)
        assert (found["sbpair_messages_received_total"], receipt["received"], receipt["sent"]) == (7, 7, 7)
        assert found["sbpair_sent_bytes_total"] == receipt["bytes_sent"]
        assert found["process_cpu_seconds_total"] > 0


async def test_a_free_port_is_printed_although_quiet(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        process = await pair.start("syphon", "--watch", "--metrics-port", "0", "--output", "json", "--quiet")
        assert process.stderr
        url = untimed((await process.stderr.readline()).decode()).removeprefix("metrics at ").strip()
        while (await scrape(url)).get("sbpair_queue_messages", 1) > 0:
            pass  # the depth is known with --quiet, too
        await receipt_of(process)


@pytest.mark.parametrize("option", ["--metrics-port", "--health-port"])
async def test_a_port_that_is_taken_ends_before_anything_is_received(tmp_path: Path, option: str) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            code, out, err = await pair.run("syphon", "--watch", option, port)
        assert (code, out) == (7, "")
        assert err.startswith(f"error: {option}: port {port} on 127.0.0.1 is in use\nhint: ")
        assert list(tmp_path.iterdir()) == []
        assert pair.arrived == 0


@pytest.mark.parametrize(("command", "sent"), [("syphon", 1), ("move 0 orders", 1), ("redrive --backlog", 0)])
async def test_a_probe_of_a_process_gets_its_readiness(tmp_path: Path, command: str, sent: int) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        words = ("--health-port", "0", "--metrics-port", "0", "--log-format", "json", "--quiet", "--output", "json")
        process = await pair.start(*command.split(), "--watch", *words)
        assert process.stderr
        event = json.loads(await process.stderr.readline())
        assert (event["schema"], event["event"]) == ("sbpair/syphon-event/1", "health-served")
        metrics = json.loads(await process.stderr.readline())
        assert metrics["event"] == "metrics-served"
        host, _, port = event["url"].removesuffix("/health/ready").removeprefix("http://").partition(":")
        answer = b""
        while not answer.endswith(b"\r\n\r\nmoving\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /health/ready HTTP/1.1\r\nHost: here\r\n\r\n")
            answer = await reader.read()
            writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        await until(lambda: pair.arrived == sent)
        assert (await scrape(metrics["url"]))["sbpair_run_info"] == 1
        assert (await receipt_of(process))["sent"] == sent


def test_without_the_library_the_extra_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    key = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    for side in ("PRIMARY", "SECONDARY"):
        monkeypatch.setenv(f"SBPAIR_{side}_CONNECTION_STRING", key.replace("contoso", f"contoso-{side.lower()}"))
    code, _, err = here("syphon", "--watch", "--metrics-port", "0")
    assert (code, err) == (7, "error: prometheus-client is not installed\nhint: pip install 'sbpair[metrics]'\n")


async def test_a_collector_that_is_away_is_one_line_and_no_failure(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(3)
        away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:secret@127.0.0.1:1/?key=secret"}
        code, out, err = await pair.run("syphon", "--once", "--output", "json", **away)
        assert (code, json.loads(out)["sent"]) == (0, 3)
        first, *more = [line for line in err.splitlines() if "telemetry" in line]
        assert "warning sbpair.metrics.run_metrics: telemetry: " in first
        assert len(more) <= 1  # that it was not exported in time
        assert "secret" not in out + err
        assert "opentelemetry." not in err
