"""A watch whose access ends again and again: its tokens, their provider, a key, and the network rules."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.config import load_pair
from sbpair.emulator.bearer_tokens import Bearers
from sbpair.model.pair import Identity, Pair
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.mounted_keys import MountedKey
from tests.kit.pairs import BACKLOG
from tests.kit.stranded import numbered, put


class Watch:
    """A watch of two backlog queues: an identity signs in to the primary, a key in a file to the secondary."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self.emulator, self.key = emulator, MountedKey(folder, emulator.namespaces["contoso-dr"])
        ready = emulator.ready.namespaces[0]
        environ = {
            "SBPAIR_PRIMARY_CONNECTION_STRING": ready.connection_string,
            "SBPAIR_PRIMARY_NAME": "contoso",
            "SBPAIR_SECONDARY_CONNECTION_STRING_FILE": str(self.key.path),
            "SBPAIR_SECONDARY_NAME": "contoso-dr",
            "HOME": str(folder),
        }
        pair = load_pair(environ=environ)
        primary = replace(pair.primary, credential=Identity("managed", client_id=ready.client_id), rotated=None)
        self.pair: Pair = replace(pair, primary=primary, backlog_queues=2)
        self.orders = emulator.namespaces["contoso"].create_queue("orders")
        self.backlog = [self.key.namespace.create_queue(queue_path("contoso", index), BACKLOG) for index in range(2)]
        self.issued = self.stranded = 0
        self.failures: list[str] = []
        self._changed = asyncio.Event()

    def on_event(self, event: Any) -> None:
        self.failures.append(str(getattr(event, "reason", "")))
        self._changed.set()

    async def until(self, holds: Any) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def strand(self) -> None:
        """Put a message into each backlog queue."""
        for queue in self.backlog:
            put(queue, numbered(self.stranded, "orders"))
            self.stranded += 1

    async def moves(self) -> None:
        """Strand messages, and wait until the primary has all."""
        self.strand()
        await self.until(lambda: self.orders.counts().active >= self.stranded)

    async def fails(self, why: str) -> None:
        """Strand messages, and wait until the watch names this reason."""
        before = len(self.failures)
        self.strand()
        await self.until(lambda: any(why in each for each in self.failures[before:]))


@asynccontextmanager
async def watching(monkeypatch: pytest.MonkeyPatch, folder: Path) -> AsyncIterator[Watch]:
    async with Emulator(options=EmulatorOptions(identity=True, token_life=1.0)) as emulator:
        assert emulator.ready.identity is not None
        for name, value in emulator.ready.identity.environment.items():
            monkeypatch.setenv(name, value)
        watch, stop, issue = Watch(emulator, folder), asyncio.Event(), Bearers.issue

        def counted(*given: Any) -> tuple[str, int]:
            watch.issued += 1
            return issue(*given)

        monkeypatch.setattr(Bearers, "issue", counted)
        request = syphon_request(watch.pair, once=False, lease=False)
        running = asyncio.create_task(runner.run(request, stop=stop, on_event=watch.on_event))
        try:
            yield watch
        finally:
            stop.set()
            result = await running
        assert (result.exit_code, result.failures) == (0, ())
        received = [each.sections.read_properties().message_id for each in watch.orders.messages.peek(0, 1 << 20)]
        assert {*received} == {f"m{number}" for number in range(watch.stranded)}
        assert len(received) - watch.stranded <= result.receipt.doubtful_total + len(result.receipt.doubtful)
        assert not any(queue.counts().total for queue in watch.backlog)


@pytest.mark.parametrize(
    ("lives", "modes"), [(4, ("500",)), pytest.param(20, ("refuse", "500", "throttle"), marks=pytest.mark.slow)]
)
async def test_a_watch_outlives_tokens_their_provider_keys_and_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: int, modes: tuple[str, ...]
) -> None:
    async with watching(monkeypatch, tmp_path) as watch:
        faults = watch.emulator.faults
        while watch.issued < lives:
            await watch.moves()
        for mode in modes:
            fault = faults.identity_down("contoso", mode)
            await watch.fails("the identity provider is away")
            faults.end(fault)
            await watch.moves()
        watch.key.regenerate()
        faults.drop("contoso-dr", count=1)
        await watch.moves()
        for name in ("contoso", "contoso-dr"):
            fault = faults.firewall(name)
            faults.drop(name, count=1)
            await watch.fails("Ip has been prevented")
            faults.end(fault)
            await watch.moves()
