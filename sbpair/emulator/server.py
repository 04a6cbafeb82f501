"""The emulator as a whole: one port per namespace, one timer, and an orderly stop. Either every port opens or none.

Only this module creates listening sockets. The frontends serve the connections.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import re
import socket
import weakref
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from sbpair.emulator.access.bearer import Bearers
from sbpair.emulator.clock import AdjustableClock, SystemClock
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.namespace_tiers import RequestedNamespace
from sbpair.emulator.faults.active import Faults
from sbpair.emulator.faults.credit_budget import CreditBudget
from sbpair.emulator.options import DEFAULT_OPTIONS, EmulatorOptions
from sbpair.emulator.protocol_sniffer import ProtocolSniffer, WireProtocol
from sbpair.emulator.timers import Timers
from sbpair.errors import MachineLacks, NameInvalid, PortInUse, UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from aiohttp import web

    from sbpair.emulator.frontends.http.identity_frontend import IdentityEndpoint, IdentityFrontend
    from sbpair.emulator.tls import Tls

    AmqpFactory = Callable[[Namespace], asyncio.Protocol]

STOP_SECONDS: Final = 1.0
WITHOUT_TLS: Final = ";UseDevelopmentEmulator=true"
"""Makes the official clients connect without TLS."""

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not listened on
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class ReadyNamespace:
    name: str
    endpoint: str
    connection_string: str
    tls_connection_string: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Addresses and credentials of a started emulator. `ca_file` is set with TLS, `identity` with an identity."""

    namespaces: tuple[ReadyNamespace, ...]
    ca_file: str | None = None
    identity: IdentityEndpoint | None = None

    def as_json(self) -> str:
        return json.dumps(self.as_document())

    def as_document(self) -> dict[str, object]:
        """Return the JSON document: namespaces, then `ca_file` and `identity` where they are set."""
        described = [{name: value for name, value in asdict(each).items() if value} for each in self.namespaces]
        document: dict[str, object] = {"namespaces": described}
        if self.ca_file is not None:
            document["ca_file"] = self.ca_file
        if self.identity is not None:
            document["identity"] = asdict(self.identity)
        return document


class LoopTimer:
    """The event loop's timer that runs `timers` when the next deadline is due, without polling."""

    def __init__(self, clock: AdjustableClock, timers: Timers) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._timers = timers
        self._handle: asyncio.TimerHandle | None = None
        timers.on_earlier = self.arm

    def arm(self) -> None:
        self.stop()
        due = self._timers.next_deadline_ms()
        if due is not None:
            self._handle = self._loop.call_later(max(0, due - self._clock.now_ms()) / 1000, self.run)

    def run(self) -> None:
        self._timers.advance(self._clock.now_ms())
        self.arm()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Port:
    """The port of one namespace: its listening socket and its connections."""

    def __init__(
        self,
        namespace: Namespace,
        listening: socket.socket,
        amqp: AmqpFactory,
        http: web.Server,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._namespace = namespace
        self._tls = tls
        self._socket = listening
        self._amqp = amqp
        self._http = http
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        make = functools.partial(ProtocolSniffer, self._make_outer_frontend, self._connections.add)
        self._server = await asyncio.get_running_loop().create_server(make, sock=self._socket)
        self._namespace.on_outage.add(self.break_connections)

    def _make_outer_frontend(self, protocol: WireProtocol) -> asyncio.Protocol | None:
        if protocol == "tls" and self._tls is not None:
            from sbpair.emulator.tls import TlsFrontend

            # The connection below was already added to `_connections`.
            return TlsFrontend(self._tls, ProtocolSniffer(self._make_frontend, lambda _: None))
        return self._make_frontend(protocol)

    def _make_frontend(self, protocol: WireProtocol) -> asyncio.Protocol | None:
        if protocol == "tls":
            return None
        # HTTP is served even while the namespace is down: the control API uses it.
        if protocol == "http":
            return self._http()
        return None if self._namespace.is_down else self._amqp(self._namespace)

    def break_connections(self) -> None:
        """Abort all connections but those with an HTTP request in progress: one of them may have begun the outage."""
        in_progress = [each.transport for each in self._http.connections if each.transport is not None]
        kept = {socket_id(transport) for transport in in_progress if not transport.is_closing()}
        for transport in list(self._connections):
            if socket_id(transport) not in kept:
                transport.abort()

    async def stop(self) -> None:
        self._namespace.on_outage.discard(self.break_connections)
        if self._server is not None:
            self._server.close()
        self.break_connections()
        # Closes idle connections, so that shutdown() waits only for requests in progress.
        self._http.pre_shutdown()
        await self._http.shutdown(STOP_SECONDS)
        for transport in list(self._connections):
            transport.abort()
        if self._server is not None:
            await self._server.wait_closed()


def socket_id(transport: asyncio.BaseTransport) -> int:
    """Identify the socket below a transport, also through TLS."""
    return id(transport.get_extra_info("socket"))


class Emulator:
    """Namespaces on ports of their own, for the duration of an `async with`. Port 0 chooses a free port.

    `ready` has the addresses and credentials. `advance` moves the clock; `faults` injects faults.

    Raises PortInUse if a port is taken, before any port opens. Raises MachineLacks if a port cannot be opened,
    NameInvalid and UsageError for invalid names and port numbers.
    """

    def __init__(
        self,
        namespaces: Iterable[tuple[str, int] | RequestedNamespace] = (("contoso", 0), ("contoso-dr", 0)),
        *,
        host: str = "127.0.0.1",
        clock: AdjustableClock | None = None,
        amqp_factory: AmqpFactory | None = None,
        options: EmulatorOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._options = options
        self._identity: IdentityFrontend | None = None
        self._tls: Tls | None = None
        self._requested = [RequestedNamespace(*each) for each in namespaces]
        self._host = host
        self._amqp = amqp_factory
        self.clock = clock or SystemClock()
        self.timers = Timers()
        self.namespaces: dict[str, Namespace] = {}
        self.faults = Faults(self.namespaces, self.advance)
        self._timer: LoopTimer | None = None
        self._stack = AsyncExitStack()
        check_requested(self._requested)

    async def __aenter__(self) -> Self:
        listening = bind_ports(self._host, [each.port for each in self._requested])
        async with AsyncExitStack() as stack:
            for each in listening:
                stack.callback(each.close)
            if self._options.tls:
                self._tls = stack.enter_context(self._start_tls())
            self._timer = LoopTimer(self.clock, self.timers)
            stack.callback(self._timer.stop)
            await self._start_ports(listening, stack)
            self._stack = stack.pop_all()
        return self

    def _start_tls(self) -> AbstractContextManager[Tls]:
        from sbpair.emulator.tls import tls_for

        hosts = [] if self._host in _EVERYWHERE else [self._host]
        names = [f"{name.lower()}.servicebus.windows.net" for name, *_ in self._requested]
        return tls_for([*hosts, *names], self._options.ca_file)

    async def _start_ports(self, listening: Sequence[socket.socket], stack: AsyncExitStack) -> None:
        from sbpair.emulator.frontends.arm.arm_frontend import ArmFrontend
        from sbpair.emulator.frontends.http.control_frontend import ControlFrontend
        from sbpair.emulator.frontends.http.http_frontend import http_server

        soon = asyncio.get_running_loop().call_soon
        control = ControlFrontend(self.namespaces, self.faults, self.clock, self.advance)
        arm = ArmFrontend(self.namespaces)
        if self._options.identity:
            from sbpair.emulator.frontends.http.identity_frontend import IdentityFrontend

            self._identity = IdentityFrontend(self.clock)
        issuer = self._identity.issuer if self._identity else None
        for requested, each in zip(self._requested, listening, strict=True):
            namespace = Namespace(
                requested.name,
                self.clock,
                self.timers,
                call_soon=soon,
                tier=requested.check(),
                partitions=requested.partitions,
            )
            namespace.authority = local_authority(self._host, each.getsockname()[1])
            if self._options.credits is not None:
                points = namespace.fault_points
                points.add_meter(CreditBudget(self._options.credits, self.clock, self.timers, points.resume))
            namespace.bearers = Bearers(issuer, accept_any=self._options.accept_any_token)
            self.namespaces[requested.name] = namespace
            tls = self._tls.context if self._tls else None
            http = http_server(namespace, control, arm, self._identity)
            port = Port(namespace, each, self._amqp or default_amqp_factory(), http, tls)
            await port.start()
            stack.push_async_callback(port.stop)

    async def __aexit__(self, *_: object) -> None:
        self.faults.end_all()
        await self._stack.aclose()

    def advance(self, ms: int) -> None:
        """Advance the clock and run at once all timers that become due."""
        self.clock.advance(ms)
        if self._timer is not None:
            self._timer.run()

    @property
    def ready(self) -> Ready:
        namespaces = tuple(
            ReadyNamespace(
                name,
                each.endpoint,
                each.connection_string,
                each.connection_string.removesuffix(WITHOUT_TLS) if self._tls else "",
            )
            for name, each in self.namespaces.items()
        )
        first = next(iter(self.namespaces.values()))
        identity = self._identity.endpoint_at(first.authority) if self._identity else None
        return Ready(namespaces, str(self._tls.ca_file) if self._tls else None, identity)


def check_requested(namespaces: Sequence[RequestedNamespace]) -> None:
    if not namespaces:
        raise UsageError("no namespace given", hint="name one, as in --namespace contoso=5672")
    names = [each.name.lower() for each in namespaces]
    for each in namespaces:
        name, port = each.name, each.port
        each.check()
        if _NAME.fullmatch(name) is None:
            raise NameInvalid(
                f"'{name}' is not a valid namespace name",
                hint="use 2 to 50 letters, digits and hyphens, a letter first",
            )
        if not 0 <= port <= 65535:
            raise UsageError(f"{port} is not a port number", hint="use 1 to 65535, or 0 for any free port")
        if names.count(name.lower()) > 1:
            raise UsageError(f"namespace '{name}' is named twice", hint="give every namespace a name of its own")


def bind_ports(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """Return a listening socket for each port. On an error, close those already open."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(bind_port(host, port)) for port in ports]
        stack.pop_all()
    return sockets


def bind_port(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"cannot listen on '{host}'", hint="use an address of this machine") from error
    listening = socket.socket(family, kind, protocol)
    try:
        # Lets a restarted emulator reuse the port at once.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise bind_error(host, port, error) from error
    listening.setblocking(False)
    return listening


def bind_error(host: str, port: int, error: OSError) -> MachineLacks:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"port {port} on {host} is in use", hint="stop what uses it, or choose another port; 0 is any")
    return MachineLacks(
        f"port {port} on {host} cannot be opened: {error.strerror}", hint="choose a port above 1023 and a local address"
    )


def local_authority(host: str, port: int) -> str:
    """Return the `host:port` by which a client on this machine reaches a port."""
    if host in _EVERYWHERE:
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def default_amqp_factory() -> AmqpFactory:
    """Return the AMQP frontend's factory, imported only when an emulator starts."""
    from sbpair.emulator.frontends.amqp import amqp_connection as module

    factory: AmqpFactory = module.amqp_factory
    return factory


def write_ready_file(path: Path, ready: Ready) -> None:
    """Write the ready file atomically: a reader sees all of it or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(ready.as_json() + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise MachineLacks(
            f"cannot write the ready file {path}: {error.strerror}", hint="name a file in a directory that exists"
        ) from error


def remove_ready_file(path: Path) -> None:
    """Remove the ready file: an old one would announce the next emulator too soon."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineLacks(
            f"cannot remove the old ready file {path}: {error.strerror}", hint="remove it, or name another"
        ) from error


async def serve(
    namespaces: Sequence[tuple[str, int] | RequestedNamespace],
    *,
    host: str = "127.0.0.1",
    ready_file: Path | None = None,
    on_ready: Callable[[Ready], None] | None = None,
    clock: AdjustableClock | None = None,
    options: EmulatorOptions = DEFAULT_OPTIONS,
) -> None:
    """Run an emulator until cancelled, then stop it. Raises as Emulator does, and MachineLacks for the ready file."""
    if ready_file is not None:
        remove_ready_file(ready_file)
    async with Emulator(namespaces, host=host, clock=clock, options=options) as emulator:
        if ready_file is not None:
            write_ready_file(ready_file, emulator.ready)
        if on_ready is not None:
            on_ready(emulator.ready)
        try:
            await asyncio.Event().wait()
        finally:
            if ready_file is not None:
                remove_ready_file(ready_file)
