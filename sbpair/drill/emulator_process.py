"""The emulator of a drill: a child process on free ports, stopped with the drill."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from sbpair.errors import MachineLacks
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.model.python_path import is_working_directory_trusted
from sbpair.operating_system.signals import detached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.model.pair import Endpoint

PRIMARY, SECONDARY = "contoso", "contoso-dr"
START_SECONDS = 30.0
STOP_SECONDS = 10.0


@asynccontextmanager
async def emulated_pair(backlog_queues: int, *words: str) -> AsyncIterator[Pair]:
    """Start an emulator with a pair of namespaces, and these options. Raises MachineLacks where it does not start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *([] if is_working_directory_trusted() else ["-P"])),
        *("-m", "sbpair", "emulator", "--output", "json"),
        *("--namespace", f"{PRIMARY}=0", "--namespace", f"{SECONDARY}=0", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Ctrl-C goes to the drill, which then stops its emulator itself.
        **detached(),
    )
    try:
        primary, secondary = await _ready(process)
        yield Pair("drill", primary, secondary, backlog_queues=backlog_queues)
    finally:
        await _stop(process)


async def emulator_control(endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """Call the emulator's control API. Returns the body of its answer."""
    request = urllib.request.Request(
        f"http://{endpoint.authority}/$control/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method=method,
    )

    def ask() -> bytes:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:  # noqa: S310
            return bytes(answer.read())

    return await asyncio.to_thread(ask)


class EmulatedOutages:
    """Outages of emulated namespaces, or of one backlog queue: connections or links break, and new ones are refused."""

    outage = None

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._faults: list[str] = []

    async def stop_primary(self) -> None:
        await self._begin({"kind": "namespace-down", "namespace": self._pair.primary.name})

    async def stop_relay(self, namespace: str) -> None:
        """Break every connection of a namespace. Later ones reach it, and its relay refuses them with 503."""
        await self._begin({"kind": "relay-down", "namespace": namespace, "status": 503})
        await self._begin({"kind": "namespace-down", "namespace": namespace})
        await self._end()

    async def stop_queue(self, path: str) -> None:
        await self._begin({"kind": "entity-down", "namespace": self._pair.secondary.name, "entity": path})

    async def restore(self) -> None:
        while self._faults:
            await self._end()

    async def _begin(self, fault: dict[str, Any]) -> None:
        # The secondary's port controls both, also while the primary is down.
        answer = await emulator_control(self._pair.secondary, "POST", "faults", fault)
        self._faults.append(str(json.loads(answer)["id"]))

    async def _end(self) -> None:
        """End the latest fault."""
        await emulator_control(self._pair.secondary, "DELETE", f"faults/{self._faults.pop()}")


async def _ready(process: asyncio.subprocess.Process) -> tuple[Endpoint, Endpoint]:
    assert process.stdout is not None  # noqa: S101  requested above
    line = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
    if not line.strip():
        raise MachineLacks(
            f"the emulator did not start{await _failure(process)}", hint="to see why, run sbpair emulator"
        )
    found = {
        entry["name"]: endpoint_from_connection_string(entry["connection_string"], name=entry["name"])
        for entry in json.loads(line)["namespaces"]
    }
    return found[PRIMARY], found[SECONDARY]


async def _failure(process: asyncio.subprocess.Process) -> str:
    if process.returncode is None and process.stdout is not None and not process.stdout.at_eof():
        return f" within {START_SECONDS:g} s"
    assert process.stderr is not None  # noqa: S101  requested above
    lines = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
    return f": {lines[0]}" if lines else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
