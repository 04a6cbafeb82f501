"""The cost of a gateway: sends, receives and latency through it, beside those without it and those through a TCP relay.

python -m tests.benchmarks.gateway [--messages N] [--rounds N] [--links N] [--reconnects N] [--output json]

The three ways take turns in each round. `raw` is our own client with 64 messages in flight, `sdk` the official client
for Python. Latency is that of a send with nothing else in flight; what a way adds is the difference to `direct`.
`failover_s` is the time from the end of the primary to the first send that is accepted, with 70 ms of latency to both
namespaces.
"""

import asyncio
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbpair.amqp.message import BATCH_FORMAT, batch_of, data_body
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.atom import open_atom
from sbpair.backlog import queue_spec
from sbpair.config import load_pair
from sbpair.errors import SbpairError
from sbpair.gateway.gateway import Gateway, GatewayOptions
from sbpair.model.pair import Endpoint, SasKey
from sbpair.model.queues import QueueSpec
from tests.benchmarks.figures import emit, log, parser, spread
from tests.benchmarks.processes import (
    cpu_seconds,
    emulated_environment,
    emulator,
    endpoints,
    far_away,
    faulty,
    resident_mb,
    started,
)
from tests.kit.gateway_key import KEY, RULE

MODULE = "tests.benchmarks.gateway"
LOCAL = "127.0.0.1"
BODY = b"x" * 1024
IN_FLIGHT, BATCH, BATCHES_IN_FLIGHT = 64, 100, 4
SDK_PART = 5
"""The official client sends one message of so many: it is slower."""

LATENCY_MS, CONNECTIONS = 70, 10


# The processes


async def serve() -> None:
    """Run a gateway for the pair of the environment."""
    async with Gateway(load_pair(), GatewayOptions(rule=RULE, port=0)) as gateway:
        await until_ended(gateway.port)


class Relay(asyncio.Protocol):
    """Passes what it reads on to `other`, which may not be there yet."""

    def __init__(self, port: int | None = None) -> None:
        self._port = port
        self.transport: Any = None
        self.other: Relay | None = None
        self._early = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._port is not None:
            self._opening = asyncio.ensure_future(self._open(self._port))

    async def _open(self, port: int) -> None:
        _, self.other = await asyncio.get_running_loop().create_connection(Relay, LOCAL, port)
        self.other.other = self
        self.other.transport.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.other is not None:
            self.other.transport.close()


async def relay(port: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Relay(int(port)), LOCAL, 0)
    await until_ended(server.sockets[0].getsockname()[1])


async def until_ended(port: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await ended.wait()


# The measurement


@dataclass(frozen=True, slots=True)
class Way:
    """How a client reaches the primary, and the process in between; None for none."""

    endpoint: Endpoint
    pid: int | None

    @property
    def connection_string(self) -> str:
        key = self.endpoint.credential
        assert isinstance(key, SasKey)
        address = f"Endpoint=sb://{LOCAL}:{self.endpoint.port};SharedAccessKeyName={key.name};SharedAccessKey={key.key}"
        return f"{address};UseDevelopmentEmulator=true"


async def side_by_side(count: int, in_flight: int, act: Callable[[], Awaitable[object]]) -> float:
    """Do something so many times, some at once. Returns how many were done in a second."""
    left, began = iter(range(count)), time.perf_counter()

    async def work() -> None:
        for _ in left:
            await act()

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return count / (time.perf_counter() - began)


async def raw_figures(way: Way, count: int, latencies: list[float]) -> dict[str, float]:
    """Return messages in a second, and CPU seconds of 1 000 single messages of the process between.

    `latencies`, in ms, are added to.
    """
    async with connect(way.endpoint) as client:
        sender = await client.sender("orders")
        await side_by_side(200, 1, lambda: sender.send(data_body(BODY)))
        before = cpu_seconds(way.pid) if way.pid else 0.0
        single = await side_by_side(count, IN_FLIGHT, lambda: sender.send(data_body(BODY)))
        spent = (cpu_seconds(way.pid) if way.pid else 0.0) - before
        batch = batch_of([data_body(BODY)] * BATCH)
        send_batch = lambda: sender.send(batch, message_format=BATCH_FORMAT)  # noqa: E731
        batches = await side_by_side(count // BATCH, BATCHES_IN_FLIGHT, send_batch)
        for _ in range(count // SDK_PART):
            began = time.perf_counter()
            await sender.send(data_body(BODY))
            latencies.append(1000 * (time.perf_counter() - began))
    return {"raw_single": single, "raw_batch": batches * BATCH} | (
        {"cpu_s_per_1k": 1000 * spent / count} if way.pid else {}
    )


async def sdk_figures(way: Way, count: int) -> dict[str, float]:
    async with ServiceBusClient.from_connection_string(way.connection_string) as client:
        sender = client.get_queue_sender("orders")
        async with sender:
            await sender.send_messages(ServiceBusMessage(BODY))
            one = ServiceBusMessage(BODY)
            single = await side_by_side(count // SDK_PART, 1, lambda: sender.send_messages(one))
            many = [ServiceBusMessage(BODY) for _ in range(BATCH)]
            batches = await side_by_side(count // BATCH, 1, lambda: sender.send_messages(many))
    return {"sdk_single": single, "sdk_batch": batches * BATCH}


async def renewed(primary: Endpoint, secondary: Endpoint) -> None:
    """Create the queues, `orders` without the messages of the round before."""
    async with open_atom(primary) as control:
        if await control.list_under("orders"):
            await control.delete("orders")
        await control.create(QueueSpec("orders", max_size_in_megabytes=5120))
    async with open_atom(secondary) as control:
        if not await control.list_under("contoso"):
            for index in range(10):
                await control.create(queue_spec("contoso", index))


async def linked(way: Way, links: int) -> dict[str, float]:
    """Attach many links on a few connections, and send by the last ones."""
    assert way.pid is not None
    before, began = resident_mb(way.pid), time.perf_counter()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(way.endpoint)) for _ in range(CONNECTIONS)]
        for number in range(links):
            sender = await clients[number % CONNECTIONS].sender("orders")
            if number >= links - CONNECTIONS:
                await sender.send(data_body(BODY))
        seconds = time.perf_counter() - began
        return {"count": links, "seconds": round(seconds, 2), "mb": round(resident_mb(way.pid) - before, 1)}


async def reconnected(way: Way, count: int) -> dict[str, float]:
    """Connect again and again, and send once each time. The memory of the first fifth is no growth."""
    assert way.pid is not None
    warm = 0.0
    for number in range(count):
        async with connect(way.endpoint) as client:
            await (await client.sender("orders")).send(data_body(b"x"))
        if number == count // 5:
            warm = resident_mb(way.pid)
    return {"count": count, "mb": round(resident_mb(way.pid), 1), "grown_mb": round(resident_mb(way.pid) - warm, 1)}


async def failed_over(way: Way, primary: Endpoint, secondary: Endpoint) -> float:
    """Return the seconds from the end of the primary to the first accepted send."""
    with far_away([primary, secondary], LATENCY_MS):
        async with connect(way.endpoint) as client:
            sender = await client.sender("orders")
            await sender.send(data_body(BODY))
            with faulty(primary, kind="namespace-down"):
                began = time.perf_counter()
                await accepted(client, sender)
                return time.perf_counter() - began


async def accepted(client: AmqpClient, sender: Any) -> None:
    """Send until a message is accepted."""
    while True:
        try:
            return await sender.send(data_body(BODY), seconds=60.0)
        except SbpairError as error:
            log(f"refused: {error.message}")
            sender = await client.sender("orders")


def started_in(environ: dict[str, str]) -> float:
    """Return the seconds from the start of a gateway's process until it listens."""
    began = time.perf_counter()
    with started([sys.executable, "-m", MODULE, "serve"], environ):
        return time.perf_counter() - began


def measured(options: Any, folder: str) -> dict[str, Any]:
    with ExitStack() as stack:
        _, namespaces = stack.enter_context(emulator("contoso", "contoso-dr"))
        primary, secondary = endpoints(namespaces)
        environ = emulated_environment(namespaces, folder)
        asyncio.run(renewed(primary, secondary))
        pid, port = stack.enter_context(started([sys.executable, "-m", MODULE, "serve"], environ))
        relay_pid, relay_port = stack.enter_context(started([sys.executable, "-m", MODULE, "relay", str(primary.port)]))
        by_gateway = replace(primary, port=int(port), credential=SasKey(RULE.key_name, KEY))
        ways = {
            "direct": Way(primary, None),
            "relay": Way(replace(primary, port=int(relay_port)), relay_pid),
            "gateway": Way(by_gateway, pid),
        }
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        latencies: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.rounds):
            for name, way in ways.items():
                asyncio.run(renewed(primary, secondary))
                found = asyncio.run(raw_figures(way, options.messages, latencies[name]))
                found |= asyncio.run(sdk_figures(way, options.messages))
                rounds[name].append(found)
                log(f"round {number + 1} of {options.rounds}: {name}: {found}")
        gateway = ways["gateway"]
        return {
            "ways": {
                name: {key: spread(each[key] for each in found) for key in found[0]} for name, found in rounds.items()
            },
            "latency": {name: percentiles(each) for name, each in latencies.items()},
            "ratios": ratios(rounds) | added(latencies),
            "links": asyncio.run(linked(gateway, options.links)),
            "reconnects": asyncio.run(reconnected(gateway, options.reconnects)),
            "listening_s": spread(started_in(environ) for _ in range(options.rounds)),
            "failover_s": round(asyncio.run(failed_over(gateway, primary, secondary)), 2),
        }


def percentiles(latencies: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=100)
    return {"median_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3)}


def added(latencies: dict[str, list[float]]) -> dict[str, float]:
    """Return how many times the latency that the relay adds the gateway adds. All rounds count as one."""
    direct, between, gateway = (percentiles(latencies[name]) for name in ("direct", "relay", "gateway"))
    return {
        f"added_{name}": round((gateway[name] - each) / max(between[name] - each, 0.01), 2)
        for name, each in direct.items()
    }


def ratios(rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return rates through the gateway as parts of the direct ones, round by round."""
    turns = list(zip(rounds["direct"], rounds["gateway"], strict=True))
    rates = ("raw_single", "raw_batch", "sdk_single", "sdk_batch")
    return {name: spread((gateway[name] / direct[name] for direct, gateway in turns), 2) for name in rates}


def main() -> None:
    made = parser(__doc__, rounds=5)
    made.add_argument("--messages", type=int, default=10_000)
    made.add_argument("--links", type=int, default=1_000)
    made.add_argument("--reconnects", type=int, default=2_000)
    options = made.parse_args()
    with TemporaryDirectory() as folder:
        emit(options, {"gateway": measured(options, folder)})


if __name__ == "__main__":
    if sys.argv[1:2] in (["serve"], ["relay"]):
        asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
    else:
        main()
