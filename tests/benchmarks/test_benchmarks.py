"""Each benchmark measures its ways once, in small; and its check finds each lost or altered message."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import stranded
from tests.benchmarks.startup import COMMANDS
from tests.integration.node import install

ROOT = Path(__file__).parents[2]
ONCE = ("--rounds", "1")
SMALL = ("--messages", "200", "400", *ONCE)
SUMMARY = {"cpu_s_per_1k", "instructions_per_message", "msg_per_s", "rss_mb", "rounds"}
RELAY_PARTS = {"relay", "emulator", "listener", "passed_on", "proxy", "proxy_and_server"}
RELAY_RATIOS = {"relay_to_proxy", "passed_on_to_proxy", "relay_to_proxy_and_server"}
REPLAY_MODES = [("archive", {"drain", "plan", "send", "verify"}), ("direct", {"move"})]
SLOW = pytest.mark.slow


def benchmark(name: str, *words: str) -> dict[str, Any]:
    """Return the document of a benchmark, which names its schema and the Python build."""
    command = (sys.executable, "-m", f"tests.benchmarks.{name}", *words, "--output", "json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document.pop("schema") == "sbpair/benchmark/1"
    assert set(document.pop("python")) == {"version", "pgo", "lto"}
    return document


@SLOW
@pytest.mark.parametrize(
    ("command", "part", "ways", "ratios"),
    [
        (
            ("syphon", *SMALL, "--round-trip-ms", "5", "--engine", "wire", "relay", "relay_protocol"),
            "engines",
            {"wire", "wire_distant", "relay", "relay_protocol"},
            {"wire_to_relay", "wire_to_relay_protocol"},
        ),
        (("syphon", *SMALL, "--round-trip-ms", "0", "--engine", "sdk_loop"), "engines", {"sdk_loop"}, set()),
        (("syphon", *SMALL, "--round-trip-ms", "0", "--engine", "node"), "engines", {"node"}, set()),
        (
            ("move", *SMALL, "--way", "syphon", "move", "move_bare", "move_sessions"),
            "ways",
            {"syphon", "move", "move_bare", "move_sessions"},
            {"move_to_syphon", "move_bare_to_syphon", "move_sessions_to_syphon"},
        ),
        (
            ("filter", *SMALL),
            "ways",
            {"loop", "property", "several", "none"},
            {"property_to_none", "several_to_none", "property_to_loop", "several_to_loop", "none_to_loop"},
        ),
        (
            ("metrics", *SMALL),
            "ways",
            {"without", "scraped", "besieged"},
            {"scraped_to_without", "besieged_to_without"},
        ),
        (("relay_proxy", *SMALL, "--body", "1024"), "ways", RELAY_PARTS, RELAY_RATIOS),
        (("relay_proxy", *SMALL, "--body", "70000"), "ways", RELAY_PARTS, RELAY_RATIOS),
    ],
    ids=["syphon", "sdk_loop", "node", "move", "filter", "metrics", "relay_proxy", "relay_proxy, large bodies"],
)
def test_a_benchmark_compares_its_ways(command: tuple[str, ...], part: str, ways: set[str], ratios: set[str]) -> None:
    if "node" in command:
        try:
            install.node(), install.modules()
        except install.NotHere as error:
            pytest.skip(str(error))
    found = benchmark(*command)
    assert found["messages"] == [200, 400]
    assert {way: SUMMARY - set(figures) for way, figures in found[part].items()} == {
        way: {"msg_per_s"} if command[0] == "filter" else set() for way in ways
    }
    assert set(found["ratios"]) == ratios


@SLOW
@pytest.mark.parametrize(
    ("name", "words", "kinds", "figures"),
    [
        ("dedup", ("--messages", "60", *ONCE), {"sync", "aio"}, {"removed_per_s", "sdk_per_s", "ratio"}),
        ("sender", ("--messages", "40", "80", *ONCE), {"relay_ms", "sync", "aio"}, {"plain_ms", "paired_ms", "ratio"}),
    ],
)
def test_a_benchmark_measures_both_kinds_of_client(
    name: str, words: tuple[str, ...], kinds: set[str], figures: set[str]
) -> None:
    found = benchmark(name, *words)[name]
    assert set(found) == kinds
    assert set(found["sync"]) == set(found["aio"]) == figures


@SLOW
def test_provisioning_is_measured_both_ways_and_on_a_metered_namespace() -> None:
    found = benchmark("provision", "--queues", "6", "--latency", "1", *ONCE, "--metered", "3")
    figures = {"queues", "latency_ms", "rounds", "concurrency", "sequential_s", "concurrent_s", "ratio"}
    assert set(found["provision"]) == figures
    assert (found["provision"]["queues"], found["provision"]["latency_ms"]) == (6, 1)
    assert found["metered"]["throttled"] == 0


@SLOW
def test_the_start_of_each_command_is_measured() -> None:
    found = benchmark("startup", *ONCE)
    assert set(found["cpu_s"]) == {"python", *COMMANDS, "emulator"}
    assert all(0 < each["min"] <= each["median"] <= each["max"] for each in found["cpu_s"].values())


@SLOW
def test_a_gateway_is_measured_beside_a_relay() -> None:
    found = benchmark("gateway", "--messages", "500", "--links", "100", "--reconnects", "50", *ONCE)["gateway"]
    rates = {"raw_single", "raw_batch", "sdk_single", "sdk_batch"}
    assert set(found["ways"]) == {"direct", "relay", "gateway"}
    assert set(found["ratios"]) == rates | {"added_median_ms", "added_p99_ms"}
    assert found["links"]["count"] == 100
    assert found["reconnects"]["grown_mb"] < 5
    assert found["listening_s"]["min"] < 5
    assert found["failover_s"] < 20


@SLOW
def test_large_streams_and_many_sockets_need_little_memory() -> None:
    """The benchmark fails if a byte differs, or a message reaches another connection."""
    found = benchmark("relay_streams", "--megabytes", "10", "100", "--sockets", "200", "1500")
    for figures in found["streams"].values():
        assert max(figures["grown_mb"].values()) < 8
    assert found["sockets"]["count"] == 1500
    assert max(found["sockets"]["kb_each"].values()) < 40


@pytest.mark.java
@SLOW
@pytest.mark.parametrize(("mode", "phases"), REPLAY_MODES)
def test_a_mode_of_replay_is_measured_beside_the_loop_and_a_relay(mode: str, phases: set[str]) -> None:
    found = benchmark("replay", *SMALL, "--mode", mode)
    assert set(found["modes"]) == {mode}
    assert set(found["modes"][mode]["largest"]["phases"]) >= phases
    assert found["modes"][mode]["slopes"]["seconds_per_1k"]
    assert set(found["ratios"]) == {f"{mode}_to_relay", f"{mode}_to_sdk_loop"}


def found(*numbers: int, count: int) -> stranded.Found:
    """Check a primary that holds these of `count` messages."""
    made = stranded.Stranded(count, 0)
    arrived = stranded.Found(made)
    for number in numbers:
        arrived.add(stranded.destination(number), made.restore(number, enqueued_at=1_000 * number))
    return arrived


def test_a_run_counts_only_when_every_message_is_there_once() -> None:
    assert found(0, 1, 2, count=3).rate() == 1.5
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 0 did twice"):
        found(0, 2, count=3).rate()
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 1 did twice"):
        found(0, 2, 2, count=3).rate()


def test_a_misrouted_or_altered_message_fails_the_run() -> None:
    made = stranded.Stranded(20, 0)
    for number in range(20):
        with pytest.raises(RuntimeError, match=f"message {number} arrived as"):
            stranded.Found(made).add("elsewhere", made.restore(number, enqueued_at=1))
        with pytest.raises(RuntimeError, match=f"message {number} arrived as"):
            stranded.Found(made).add(stranded.destination(number), made.sections(number))
