"""The emulator as a process: a port for each namespace, all of them or none, one timer, and a clean end.

Only this module knows of the event loop's servers. What speaks on a connection is a door's business.
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
from sbpair.emulator.entities.namespace_tiers import RequestedEntity
from sbpair.emulator.faults.active import Faults
from sbpair.emulator.faults.credit_budget import CreditBudget
from sbpair.emulator.options import PLAIN, EmulatorOptions
from sbpair.emulator.protocol_sniffer import Door, ProtocolSniffer
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
"""What tells the official clients not to speak TLS."""

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
    """What a started emulator is reached by. `ca_file` is there with TLS, `sign_in` with an identity."""

    namespaces: tuple[ReadyNamespace, ...]
    ca_file: str | None = None
    sign_in: IdentityEndpoint | None = None

    def as_json(self) -> str:
        return json.dumps(self.as_document())

    def as_document(self) -> dict[str, object]:
        """What is always there, and then what was asked for."""
        described = [{name: value for name, value in asdict(each).items() if value} for each in self.namespaces]
        document: dict[str, object] = {"namespaces": described}
        if self.ca_file is not None:
            document["ca_file"] = self.ca_file
        if self.sign_in is not None:
            document["identity"] = asdict(self.sign_in)
        return document


class Timer:
    """Runs the agenda when something is due, and not before: no polling."""

    def __init__(self, clock: AdjustableClock, agenda: Timers) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._agenda = agenda
        self._handle: asyncio.TimerHandle | None = None
        agenda.on_earlier = self.set

    def set(self) -> None:
        self.stop()
        due = self._agenda.next_deadline_ms()
        if due is not None:
            self._handle = self._loop.call_later(max(0, due - self._clock.now_ms()) / 1000, self.run)

    def run(self) -> None:
        self._agenda.advance(self._clock.now_ms())
        self.set()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Port:
    """One namespace's port: its listening socket, its connections and its two doors."""

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
        self._listening = listening
        self._amqp = amqp
        self._http = http
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        make = functools.partial(ProtocolSniffer, self._open_outer_door, self._connections.add)
        self._server = await asyncio.get_running_loop().create_server(make, sock=self._listening)
        self._namespace.on_outage.add(self.break_connections)

    def _open_outer_door(self, door: Door) -> asyncio.Protocol | None:
        if door == "tls" and self._tls is not None:
            from sbpair.emulator.tls import TlsFrontend

            # Below it is a connection that is known already.
            return TlsFrontend(self._tls, ProtocolSniffer(self._open_door, lambda _: None))
        return self._open_door(door)

    def _open_door(self, door: Door) -> asyncio.Protocol | None:
        if door == "tls":
            return None
        # HTTP is let in even when the namespace is down: the control door is behind it.
        if door == "http":
            return self._http()
        return None if self._namespace.down else self._amqp(self._namespace)

    def break_connections(self) -> None:
        """As an outage does: no goodbye. The request that began the outage may still be answered."""
        asking = [handler.transport for handler in self._http.connections]
        kept = {socket_of(transport) for transport in asking if transport is not None and not transport.is_closing()}
        for transport in list(self._connections):
            if socket_of(transport) not in kept:
                transport.abort()

    async def stop(self) -> None:
        self._namespace.on_outage.discard(self.break_connections)
        if self._server is not None:
            self._server.close()
        self.break_connections()
        # Idle connections end here; only requests under way are waited for.
        self._http.pre_shutdown()
        await self._http.shutdown(STOP_SECONDS)
        for transport in list(self._connections):
            transport.abort()
        if self._server is not None:
            await self._server.wait_closed()


def socket_of(transport: asyncio.BaseTransport) -> int:
    """Which socket is below, also where TLS lies between."""
    return id(transport.get_extra_info("socket"))


class Emulator:
    """Namespaces on ports of their own, from `async with` to its end. Port 0 is any free one.

    `ready` says how it is reached, and what came of the `setup` that was asked for.

    Raises PortInUse, before anything is started, where a port is taken; MachineLacks, where it may not be opened;
    NameInvalid and UsageError for names and ports that cannot be.
    """

    def __init__(
        self,
        namespaces: Iterable[tuple[str, int] | RequestedEntity] = (("contoso", 0), ("contoso-dr", 0)),
        *,
        host: str = "127.0.0.1",
        clock: AdjustableClock | None = None,
        amqp_factory: AmqpFactory | None = None,
        setup: EmulatorOptions = PLAIN,
    ) -> None:
        self._setup = setup
        self._identity: IdentityFrontend | None = None
        self._tls: Tls | None = None
        self._wanted = [RequestedEntity(*each) for each in namespaces]
        self._host = host
        self._amqp = amqp_factory
        self.clock = clock or SystemClock()
        self.agenda = Timers()
        self.namespaces: dict[str, Namespace] = {}
        self.faults = Faults(self.namespaces, self.advance)
        self._timer: Timer | None = None
        self._stack = AsyncExitStack()
        check_wanted(self._wanted)

    async def __aenter__(self) -> Self:
        listening = bind_all(self._host, [each.port for each in self._wanted])
        async with AsyncExitStack() as stack:
            for each in listening:
                stack.callback(each.close)
            if self._setup.tls:
                self._tls = stack.enter_context(self._certified())
            self._timer = Timer(self.clock, self.agenda)
            stack.callback(self._timer.stop)
            await self._start_ports(listening, stack)
            self._stack = stack.pop_all()
        return self

    def _certified(self) -> AbstractContextManager[Tls]:
        from sbpair.emulator.tls import tls_for

        hosts = [] if self._host in _EVERYWHERE else [self._host]
        names = [f"{name.lower()}.servicebus.windows.net" for name, *_ in self._wanted]
        return tls_for([*hosts, *names], self._setup.ca_file)

    async def _start_ports(self, listening: Sequence[socket.socket], stack: AsyncExitStack) -> None:
        from sbpair.emulator.frontends.arm.arm_frontend import ArmFrontend
        from sbpair.emulator.frontends.http.control_frontend import ControlFrontend
        from sbpair.emulator.frontends.http.http_frontend import http_door

        soon = asyncio.get_running_loop().call_soon
        control = ControlFrontend(self.namespaces, self.faults, self.clock, self.advance)
        arm = ArmFrontend(self.namespaces)
        if self._setup.identity:
            from sbpair.emulator.frontends.http.identity_frontend import IdentityFrontend

            self._identity = IdentityFrontend(self.clock)
        issuer = self._identity.issuer if self._identity else None
        for wanted, each in zip(self._wanted, listening, strict=True):
            namespace = Namespace(
                wanted.name,
                self.clock,
                self.agenda,
                call_soon=soon,
                tier=wanted.check(),
                partitions=wanted.partitions,
            )
            namespace.authority = authority_of(self._host, each.getsockname()[1])
            if self._setup.credits is not None:
                points = namespace.points
                points.put_meter(CreditBudget(self._setup.credits, self.clock, self.agenda, points.resume))
            namespace.bearers = Bearers(issuer, accept_any=self._setup.accept_any_token)
            self.namespaces[wanted.name] = namespace
            tls = self._tls.context if self._tls else None
            http = http_door(namespace, control, arm, self._identity)
            port = Port(namespace, each, self._amqp or amqp_door(), http, tls)
            await port.start()
            stack.push_async_callback(port.stop)

    async def __aexit__(self, *_: object) -> None:
        self.faults.end_all()
        await self._stack.aclose()

    def advance(self, ms: int) -> None:
        """Puts the clock forward and does at once what has become due."""
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
        sign_in = self._identity.sign_in(first.authority) if self._identity else None
        return Ready(namespaces, str(self._tls.ca_file) if self._tls else None, sign_in)


def check_wanted(namespaces: Sequence[RequestedEntity]) -> None:
    if not namespaces:
        raise UsageError("no namespace was named", hint="name one, as in --namespace contoso=5672")
    names = [each.name.lower() for each in namespaces]
    for each in namespaces:
        name, port = each.name, each.port
        each.check()
        if _NAME.fullmatch(name) is None:
            raise NameInvalid(
                f"'{name}' is no name for a namespace", hint="use 2 to 50 letters, digits and hyphens, a letter first"
            )
        if not 0 <= port <= 65535:
            raise UsageError(f"{port} is no port number", hint="use 1 to 65535, or 0 for any free port")
        if names.count(name.lower()) > 1:
            raise UsageError(f"namespace '{name}' is named twice", hint="give every namespace a name of its own")


def bind_all(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """A listening socket for every port, or an error and none at all."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(bind(host, port)) for port in ports]
        stack.pop_all()
    return sockets


def bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"'{host}' is no address to listen on", hint="use an address of this machine") from error
    listening = socket.socket(family, kind, protocol)
    try:
        # A port can be taken again at once after a stop.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise unbindable(host, port, error) from error
    listening.setblocking(False)
    return listening


def unbindable(host: str, port: int, error: OSError) -> MachineLacks:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"port {port} on {host} is in use", hint="stop what uses it, or choose another port; 0 is any")
    return MachineLacks(
        f"port {port} on {host} cannot be opened: {error.strerror}", hint="choose a port above 1023 and a local address"
    )


def authority_of(host: str, port: int) -> str:
    """How a client on this machine calls that port."""
    if host in _EVERYWHERE:
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def amqp_door() -> AmqpFactory:
    """The AMQP door, imported when an emulator starts and not before."""
    from sbpair.emulator.frontends.amqp import amqp_connection as module

    factory: AmqpFactory = module.amqp_factory
    return factory


def write_ready(path: Path, ready: Ready) -> None:
    """Whoever waits for the file sees all of it or nothing."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(ready.as_json() + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise MachineLacks(
            f"the ready file {path} cannot be written: {error.strerror}", hint="name a file in a directory that exists"
        ) from error


def forget_ready(path: Path) -> None:
    """A file that a run leaves behind would say "ready" to the next one's users too soon."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineLacks(
            f"the old ready file {path} cannot be removed: {error.strerror}", hint="remove it, or name another"
        ) from error


async def run(
    namespaces: Sequence[tuple[str, int] | RequestedEntity],
    *,
    host: str = "127.0.0.1",
    ready_file: Path | None = None,
    on_ready: Callable[[Ready], None] | None = None,
    clock: AdjustableClock | None = None,
    setup: EmulatorOptions = PLAIN,
) -> None:
    """Serves until it is cancelled, then stops cleanly. Raises what Emulator raises, and MachineLacks for the file."""
    if ready_file is not None:
        forget_ready(ready_file)
    async with Emulator(namespaces, host=host, clock=clock, setup=setup) as emulator:
        if ready_file is not None:
            write_ready(ready_file, emulator.ready)
        if on_ready is not None:
            on_ready(emulator.ready)
        try:
            await asyncio.Event().wait()
        finally:
            if ready_file is not None:
                forget_ready(ready_file)
