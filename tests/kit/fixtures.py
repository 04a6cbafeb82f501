"""An emulator in a thread of its own, and the official clients, sync and aio, behind one face.

The tests are written once, as a sync program would be. `Face` runs what the aio client answers on a loop that nobody
else uses, between two lines of the test. The clients are unmodified; only the transport of management is the tests'.
"""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.failover import failover_send
from sbpair.syphon import runner as syphon_runner
from sbpair.syphon.run_request import RunTimings
from tests.integration.node import install
from tests.kit.command import Here, run_here
from tests.kit.failover_rig import Face, Rig
from tests.kit.running import Running


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    with Running() as running:
        yield running


@pytest.fixture(scope="session")
def another() -> type[Running]:
    """For `with another(options=EmulatorOptions(tls=True)) as secure:`, an emulator with options of its own."""
    return Running


class PlainTransport(RequestsTransport):
    """The administration client always speaks https, and the emulator's port is plain."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = plain(request.url)
        return super().send(request, **options)


class PlainAioTransport(AioHttpTransport):
    async def send(self, request: Any, **options: Any) -> Any:
        request.url = plain(request.url)
        return await super().send(request, **options)


def plain(url: str) -> str:
    return url.replace("https://", "http://", 1)


class Official:
    """One of the official clients. Opens what it is asked for, and closes it again."""

    def __init__(self, kind: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "aio" else None
        # Without retries: the tests are about what the service answers.
        self._options = {"retry_total": 0, **options}

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @contextmanager
    def sender(self, connection_string: str, queue: str) -> Iterator[Any]:
        with self._open(connection_string, lambda client: client.get_queue_sender(queue)) as sender:
            yield sender

    @contextmanager
    def receiver(self, connection_string: str, queue: str, **options: Any) -> Iterator[Any]:
        with self._open(connection_string, lambda client: client.get_queue_receiver(queue, **options)) as receiver:
            yield receiver

    @contextmanager
    def admin(self, connection_string: str, **options: Any) -> Iterator[Any]:
        """The administration client of the same kind; its lists are whole."""
        if self._loop is None:
            with ServiceBusAdministrationClient.from_connection_string(
                connection_string, transport=PlainTransport(), retry_total=0, **options
            ) as client:
                yield Face(client, lambda result: result)
            return
        run = self._loop.run_until_complete
        client = run(_aio_admin(connection_string, options))
        try:
            yield Face(client, run)
        finally:
            run(client.close())

    @contextmanager
    def _open(self, connection_string: str, make: Callable[[Any], Any]) -> Iterator[Any]:
        if self._loop is None:
            with (
                ServiceBusClient.from_connection_string(connection_string, **self._options) as client,
                make(client) as opened,
            ):
                yield opened
            return
        run = self._loop.run_until_complete
        client = AioServiceBusClient.from_connection_string(connection_string, **self._options)
        opened = make(client)
        try:
            run(opened.__aenter__())
            yield Face(opened, run)
        finally:
            run(opened.close())
            run(client.close())


async def _aio_admin(connection_string: str, options: dict[str, Any]) -> AioAdministrationClient:
    # Its transport wants to be made where the loop runs.
    return AioAdministrationClient.from_connection_string(
        connection_string, transport=PlainAioTransport(), retry_total=0, **options
    )


@pytest.fixture(scope="module", params=["sync", "aio"])
def official(request: pytest.FixtureRequest) -> Iterator[Official]:
    official = Official(request.param)
    yield official
    official.close()


@pytest.fixture(scope="session")
def node() -> str:
    """The program that runs JavaScript."""
    try:
        return install.node()
    except install.NotHere as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def modules() -> Path:
    """Where the packages for Node.js are installed."""
    try:
        return install.modules()
    except install.NotHere as error:
        pytest.skip(str(error))


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A pair with two backlog queues, for paired clients of both kinds."""
    with Running() as running:
        yield Rig(running, queues=2)
    # What the SDK has left open is complained of here, and not in a test that has nothing to do with it.
    gc.collect()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Return a function that runs a command line in this process, with the given configuration only.

    For what does not depend on the process: to start one takes a third of a second of CPU time.
    """
    for name in os.environ:
        if name.startswith(("SBPAIR_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))

    def invoke(*words: str, **environ: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            code = run_here(words)
        return code, *capsys.readouterr()

    return invoke


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A syphon that soon believes that a queue is empty, and a paired client that soon leaves a silent primary."""
    hasty = RunTimings(empty_wait_seconds=0.03, count_wait_seconds=(0.01, 0.02, 0.3))
    monkeypatch.setattr(syphon_runner, "DEFAULT_TIMINGS", hasty)
    # Opening a link takes the SDK half a second at least.
    monkeypatch.setattr(failover_send, "PRIMARY_SHARE", 0.3)
