"""`sbpair emulator` as a process with a durable data file, which tests kill and start again on the same ports."""

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.kit import command


async def control(endpoint: str, method: str, path: str, body: object = None) -> Any:
    """Send a request to the control API of an emulator, and return the answer's document."""
    url = f"http:{endpoint.removeprefix('sb:').rstrip('/')}/$control/{path}"
    # An outage breaks whatever connection is not busy.
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
        http.request(method, url, json=body) as answer,
    ):
        answer.raise_for_status()
        return await answer.json() if answer.content_type == "application/json" else None


class EmulatorProcess:
    """The process, for the duration of an `async with`, or from `start` to `kill`. `words` are further options."""

    def __init__(self, data: Path, *words: str) -> None:
        self._words = ("--data", str(data), "--durable", *words)
        self.namespaces: list[dict[str, str]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start, and wait until its ports accept."""
        self.process = await command.start("emulator", "-o", "json", *self._words, env=command.environment(None))
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, await self.process.communicate()
        self.namespaces = json.loads(line)["namespaces"]

    async def kill(self, number: int = signal.SIGKILL) -> tuple[int | None, str]:
        """Send it a signal, and return its exit code and errors."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        _, said = await self.process.communicate()
        return self.process.returncode, said.decode()

    @property
    def connection_string(self) -> str:
        return self.namespaces[0]["connection_string"]

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment for the pair of the first two namespaces."""
        found = command.environment(None, **more)
        for side, each in zip(command.SIDES, self.namespaces, strict=True):
            found[f"SBPAIR_{side}_CONNECTION_STRING"] = each["connection_string"]
            found[f"SBPAIR_{side}_NAME"] = each["name"]
        return found

    async def control(self, method: str, path: str, body: object = None) -> Any:
        return await control(self.namespaces[0]["endpoint"], method, path, body)

    async def begin_fault(self, kind: str, namespace: str, **wanted: int | str) -> str:
        """Begin a fault, and return its id for the control API."""
        found: str = (await self.control("POST", "faults", {"kind": kind, "namespace": namespace, **wanted}))["id"]
        return found

    async def end_fault(self, identity: str) -> None:
        await self.control("DELETE", f"faults/{identity}")
