"""Signals to a syphon that has no lane yet, because the namespace does not answer: it ends at once, with a receipt."""

import asyncio
import json
import os
import signal
import sys

import pytest

from sbpair.errors import AccessError
from sbpair.syphon import move_spec
from tests.faults.simulation.stage import Stage, play, played

PATIENCE_SECONDS = 8.0
"""Less than the ten seconds after which the process would be cancelled without a receipt."""


class Silent(asyncio.Protocol):
    """A namespace that hears, and says nothing."""

    heard: asyncio.Event

    def data_received(self, data: bytes) -> None:
        del data
        self.heard.set()


@pytest.mark.parametrize(("mode", "code"), [("--once", 130), ("--watch", 0)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_ends_it_with_a_receipt(mode: str, code: int, number: signal.Signals) -> None:

    Silent.heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    primary, secondary = [await loop.create_server(Silent, "127.0.0.1", 0) for _ in range(2)]
    async with asyncio.timeout(60), primary, secondary:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sbpair", "syphon", mode, "--output", "json"),
            env=environment(primary, secondary),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        await Silent.heard.wait()
        process.send_signal(number)
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await process.communicate()
    receipt = json.loads(out)
    assert process.returncode == code
    assert (receipt["received"], receipt["stopped"], receipt["failures"]) == (0, True, [])


def environment(*servers: asyncio.Server) -> dict[str, str]:
    given = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_")}
    key = "SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    for side, name, server in zip(("PRIMARY", "SECONDARY"), ("contoso", "contoso-dr"), servers, strict=True):
        port = server.sockets[0].getsockname()[1]
        given[f"SBPAIR_{side}_CONNECTION_STRING"] = f"Endpoint=sb://127.0.0.1:{port};{key}"
        given[f"SBPAIR_{side}_NAME"] = name
    return given


@played()
async def test_a_stop_that_was_asked_for_before_the_start_moves_nothing(stage: Stage) -> None:
    stage.destination()
    stage.strand(1)
    stage.stop.set()
    result = await stage.start(once=True)
    assert (result.stopped, result.receipt.received, result.failures) == (True, 0, ())
    assert stage.ids(stage.backlog()) == ["m1"]


def test_what_is_wrong_with_the_start_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise AccessError("the key is not known")

    async def scene(stage: Stage) -> None:
        with pytest.raises(AccessError, match="the key is not known"):
            await stage.start(once=True)

    monkeypatch.setattr(move_spec, "find_backlog_queues", refuse)
    play(scene)
