"""The compared ways of moving a backlog, each as a process of its own, and one run of one of them.

Invariant: a run counts only after a check of every message in the primary.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import Run
from tests.benchmarks.processes import emulated_environment, emulator, endpoints, spent_by, started, user_instructions
from tests.benchmarks.stranded import PRIMARY, SECONDARY, Stranded, backlog_queues
from tests.integration.node import install

HERE = Path(__file__).parent
RELAYS = {"relay": "streams", "relay_protocol": "protocol"}
SYPHON = [sys.executable, "-m", "sbpair", "syphon", "--once", "--credits", "none", "--output", "json"]
TRANSPORTS = {"wire": "tcp", "wire_websocket": "websocket"}
ENGINES = ("wire", "wire_websocket", "sdk_loop", "node", *RELAYS)

MAX_SECONDS_PER_MESSAGE = 0.01
"""A slower engine hangs."""

RELAYED_TIMES = 10
"""The relay copies the bytes of that many more messages: its cost is too small to measure otherwise."""


class NotHere(Exception):
    """An engine that cannot be run, and why."""


def measure(engine: str, count: int, *, round_trip_ms: float = 0.0) -> Run:
    """Move `count` messages by an engine. Raises NotHere; RuntimeError if a message is missing or altered."""
    if engine in RELAYS:
        return relayed(RELAYS[engine], count)
    return moved(command(engine), count, round_trip_ms=round_trip_ms)


def command(engine: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of an engine, and the variables that it needs. Raises NotHere."""
    if engine in TRANSPORTS:
        return [*SYPHON, "--transport", TRANSPORTS[engine]], {}
    if engine == "sdk_loop":
        return [sys.executable, str(HERE / "sdk_loop.py"), *backlog_queues()], {}
    try:
        return [install.node(), str(HERE / "node_loop.mjs"), *backlog_queues()], {"MODULES": f"{install.modules()}/"}
    except install.NotHere as error:
        raise NotHere(str(error)) from error


def moved(
    engine: tuple[list[str], dict[str, str]], count: int, *, round_trip_ms: float = 0.0, kind: type[Stranded] = Stranded
) -> Run:
    words, variables = engine
    stranded = kind(count, int(time.time() * 1000))
    with emulator(PRIMARY, SECONDARY) as (_, namespaces), TemporaryDirectory() as state:
        primary, secondary = endpoints(namespaces)
        environment = emulated_environment(namespaces, state) | variables
        with _far_away(round_trip_ms, [primary.port, secondary.port]) as delayed:
            asyncio.run(stranded.create(primary, secondary))
            asyncio.run(stranded.fill(secondary))
            spent = spent_by(words, environment | delayed, max_seconds=60 + MAX_SECONDS_PER_MESSAGE * count)
            rate = asyncio.run(stranded.check(primary, secondary))
    return Run(count, spent.cpu_s, rate, spent.peak_mb, spent.instructions)


@contextmanager
def _far_away(round_trip_ms: float, ports: list[int]) -> Iterator[dict[str, str]]:
    """Delay both namespaces, and return the variables by which `sbpair` finds the delayed ones."""
    if not round_trip_ms:
        yield {}
        return
    words = [sys.executable, str(HERE / "delay.py"), str(round_trip_ms / 2), *map(str, ports)]
    with started(words) as (_, near):
        found = zip(("PRIMARY", "SECONDARY"), json.loads(near), strict=True)
        yield {f"SBPAIR_{side}_ENDPOINT": f"127.0.0.1:{port}" for side, port in found}


def relayed(kind: str, count: int) -> Run:
    """Copy the bytes of RELAYED_TIMES as many messages, without doing anything with them."""
    messages = RELAYED_TIMES * count
    script = [sys.executable, "-m", "tests.benchmarks.relay"]
    with subprocess.Popen([*script, kind], stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        port = relay.stdout.readline().strip()
        size = Stranded(messages, 0).size
        with user_instructions(relay.pid) as instructions:
            subprocess.run([*script, port, str(size)], check=True)
            found: dict[str, Any] = json.loads(relay.stdout.readline())
    if found["bytes"] != size:
        raise RuntimeError(f"the relay carried {found['bytes']} bytes of {size}")
    counted = sum(instructions) or None
    return Run(messages, found["cpu_s"], messages / found["seconds"], found["rss_mb"], counted)
