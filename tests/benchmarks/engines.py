"""The ways of moving a backlog that are compared, each as a process of its own; and one run of one of them.

The law of this file: a run is measured twice, first with so few messages that every queue and destination has some, so
that what starting costs is known and can be taken off; and it ends with a look at every message.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.model.connection_string import endpoint_from_connection_string
from tests.benchmarks.processes import emulated_environment, emulator, spent_by
from tests.benchmarks.stranded import BATCH, PRIMARY, QUEUES, SECONDARY, Stranded, backlog_queues
from tests.integration.node import install

HERE = Path(__file__).parent
RELAYS = {"relay": "streams", "relay_protocol": "protocol"}
ENGINES = ("wire", "sdk_loop", "node", *RELAYS)
SIDES = ("PRIMARY", "SECONDARY")

SECONDS_A_MESSAGE = 0.01
"""Slower than this is no engine but one that hangs."""

MAX_FIRST = QUEUES * BATCH
"""How many messages are moved to see what starting costs: imports, connections, a link to each destination."""

MIN_RELAYED = 200_000
"""The relay is given the bytes of at least so many messages: with fewer there is nothing to measure."""


class NotHere(Exception):
    """An engine that cannot be run, and why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. `start_s` is what of `cpu_s` the same process takes for the first messages, not counted here."""

    messages: int
    cpu_s: float
    start_s: float
    msg_per_s: float
    rss_mb: float


def measure(engine: str, count: int, *, round_trip_ms: float = 0.0) -> Run:
    """Move `count` messages by an engine. Raises NotHere; RuntimeError where one did not arrive as it should."""
    if engine in RELAYS:
        return relayed(RELAYS[engine], count)
    return moved(command(engine), count, round_trip_ms=round_trip_ms)


def command(engine: str) -> tuple[list[str], dict[str, str]]:
    """How an engine is started, and what it wants of its environment besides. Raises NotHere."""
    if engine == "wire":
        return [sys.executable, "-m", "sbpair", "syphon", "--once", "--credits", "none", "--output", "json"], {}
    if engine == "sdk_loop":
        return [sys.executable, str(HERE / "sdk_loop.py"), *backlog_queues()], {}
    try:
        return [install.node(), str(HERE / "node_loop.mjs"), *backlog_queues()], {"MODULES": f"{install.modules()}/"}
    except install.NotHere as error:
        raise NotHere(str(error)) from error


def moved(engine: tuple[list[str], dict[str, str]], count: int, *, round_trip_ms: float = 0.0) -> Run:
    words, wants = engine
    stranded, first = Stranded(count, int(time.time() * 1000)), min(MAX_FIRST, count // 2)
    with emulator(PRIMARY, SECONDARY) as (_, namespaces), TemporaryDirectory() as state:
        primary, secondary = (
            endpoint_from_connection_string(namespaces[name]["connection_string"]) for name in (PRIMARY, SECONDARY)
        )
        environment = emulated_environment(namespaces, state) | wants
        with _far_away(round_trip_ms, [primary.port, secondary.port]) as roads:
            asyncio.run(stranded.create(primary, secondary))
            asyncio.run(stranded.fill(secondary, range(first)))
            start = spent_by(words, environment | roads)
            asyncio.run(stranded.fill(secondary, range(first, count)))
            spent = spent_by(words, environment | roads, max_seconds=60 + SECONDS_A_MESSAGE * count)
            rate = asyncio.run(stranded.check(primary, secondary, early=first))
    return Run(count - first, spent.cpu_s, start.cpu_s, rate, spent.peak_mb)


@contextmanager
def _far_away(round_trip_ms: float, ports: list[int]) -> Iterator[dict[str, str]]:
    """What makes `sbpair` take the longer way to both namespaces, if there is to be one."""
    if not round_trip_ms:
        yield {}
        return
    words = [sys.executable, str(HERE / "delay.py"), str(round_trip_ms / 2), *map(str, ports)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            near = json.loads(proxy.stdout.readline())
            yield {f"SBPAIR_{side}_ENDPOINT": f"127.0.0.1:{port}" for side, port in zip(SIDES, near, strict=True)}
        finally:
            proxy.terminate()


def relayed(kind: str, count: int) -> Run:
    """What it costs to do nothing with the bytes of so many messages."""
    messages = max(count, MIN_RELAYED)
    script = [sys.executable, "-m", "tests.benchmarks.relay"]
    with subprocess.Popen([*script, kind], stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        port = relay.stdout.readline().strip()
        size = Stranded(messages, 0).size
        subprocess.run([*script, port, str(size)], check=True)
        told: dict[str, Any] = json.loads(relay.stdout.readline())
    if told["bytes"] != size:
        raise RuntimeError(f"the relay carried {told['bytes']} bytes of {size}")
    return Run(messages, told["cpu_s"], 0.0, messages / told["seconds"], told["rss_mb"])
