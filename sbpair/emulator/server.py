"""The emulator as a whole: its namespaces, one timer and an orderly stop. Either every port opens or none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

from sbpair.amqp_server.admission import Admission
from sbpair.amqp_server.host_names import HostNames, local_authority
from sbpair.emulator.bearer_tokens import LIFE_SECONDS, AssignedRole, Bearers, IdentityEndpoint, tenant_of
from sbpair.emulator.clock import Clock, SystemClock
from sbpair.emulator.emulator_control import EmulatorControl
from sbpair.emulator.entities.description import STANDARD, TIERS, EmulatedTier
from sbpair.emulator.entities.namespace import Namespace, is_namespace_name
from sbpair.emulator.namespace_port import NamespacePort
from sbpair.errors import MachineLacks, NameInvalid, UsageError
from sbpair.operating_system import files, listen

if TYPE_CHECKING:
    from sbpair.amqp_server.tls import Tls
    from sbpair.emulator.frontends.http.http_connection import HttpServer
    from sbpair.emulator.frontends.http.http_frontend import BrowserPage
    from sbpair.emulator.frontends.http.identity_frontend import IdentityFrontend
    from sbpair.emulator.storage.storage import Storage

LOCALHOST: Final = "127.0.0.1"
WITHOUT_TLS: Final = ";UseDevelopmentEmulator=true"
"""Makes the official clients connect without TLS."""

CreateEntities = Callable[[Namespace], None]
MakePage = Callable[["Emulator"], "BrowserPage"]


class RequestedNamespace(NamedTuple):
    """A namespace to create in an emulator. Port 0 is any free one. `http_port` is a second port."""

    name: str
    port: int
    tier: str = STANDARD.name
    partitions: int = 1
    http_port: int | None = None

    def check(self) -> EmulatedTier:
        """Return the tier. Raises UsageError and NameInvalid."""
        tier = TIERS.get(self.tier.lower())
        if tier is None:
            raise UsageError(
                f"expected basic, standard or premium, got '{self.tier}'", hint="choose the tier of the namespace"
            )
        if self.partitions not in tier.partitions:
            raise UsageError(
                f"a {tier.name} namespace cannot have {self.partitions} partitions",
                hint="use premium with 1, 2 or 4; elsewhere partitioning is chosen for each entity",
            )
        if not is_namespace_name(self.name):
            hint = "use 2 to 50 letters, digits and hyphens, a letter first"
            raise NameInvalid(f"'{self.name}' is not a valid namespace name", hint=hint)
        for port in self.ports:
            if not 0 <= port <= 65535:
                raise UsageError(f"{port} is not a port number", hint="use 1 to 65535, or 0 for any free port")
        return tier

    @property
    def ports(self) -> list[int]:
        """The ports to listen on. Each serves every protocol, so the same port need not be opened twice."""
        return (
            [self.port] if self.http_port is None or self.http_port == self.port != 0 else [self.port, self.http_port]
        )


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Options of an emulator.

    `tls`: serve TLS on every port, beside plain connections, by a certificate that is kept beside `data` or `ca_file`,
    if one is given. `ca_file`: file for the CA certificate [default: beside `data`, or a temporary one]. `identity`:
    offer a managed identity, with TLS also an OAuth authority, and accept the tokens they issue. `accept_any_token`:
    accept any well-formed bearer token that has not expired. `credits`: throttle each namespace to so many credits a
    second. `data`: keep entities and messages in this file [default: in memory only].
    `durable`: store there before it is acknowledged. `allow_hosts`: host names of this machine that HTTP and WebSocket
    clients may use, such as `host.docker.internal`. `tenants`: accept of the issued tokens only those of the
    namespace's own tenant. `token_life`: seconds until an issued token expires. `roles`: the rights of bearer tokens by
    their `oid`, such as `OID=sender@contoso/orders` [default: each token has all].
    """

    tls: bool = False
    ca_file: Path | None = None
    identity: bool = False
    accept_any_token: bool = False
    credits: int | None = None
    data: Path | None = None
    durable: bool = False
    allow_hosts: tuple[str, ...] = ()
    tenants: bool = False
    token_life: float = LIFE_SECONDS
    roles: tuple[str, ...] = ()


DEFAULT_OPTIONS = EmulatorOptions()


_IF_ANY: Final = {"required": False, "omitted": "empty"}
"""The document has such a key only with a value."""


@dataclass(frozen=True, slots=True)
class ReadyNamespace:
    name: Annotated[str, "Its name"]
    endpoint: Annotated[str, "Host and port"]
    connection_string: Annotated[str, "Connection string"]
    tls_connection_string: Annotated[str, "Connection string for TLS, with --tls", _IF_ANY] = ""
    http_connection_string: Annotated[str, "Connection string for the port of --http-port", _IF_ANY] = ""
    hybrid_connections: Annotated[
        tuple[Annotated[str, "Connection string with the path as EntityPath"], ...],
        "Hybrid connections, with --relay",
        _IF_ANY,
    ] = ()
    tenant_id: Annotated[str, "Its tenant, with --identity", _IF_ANY] = ""
    client_id: Annotated[str, "Client of that tenant, and user-assigned identity, with --identity", _IF_ANY] = ""
    client_secret: Annotated[str, "Secret of the client, with --identity and --tls", _IF_ANY] = field(
        default="", repr=False
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """Addresses and credentials of a started emulator."""

    namespaces: Annotated[tuple[ReadyNamespace, ...], "Namespaces"]
    ca_file: Annotated[str | None, "File with the CA, with --tls", _IF_ANY] = None
    identity: Annotated[IdentityEndpoint | None, "Of --identity", _IF_ANY] = None
    authority: Annotated[str | None, "URL of the OAuth authority, with --identity and --tls", _IF_ANY] = None

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return what `as_document` has described. Other keys are ignored."""
        identity = document.get("identity")
        return cls(
            tuple(ReadyNamespace(**each) for each in document["namespaces"]),
            document.get("ca_file"),
            None if identity is None else IdentityEndpoint(**identity),
            document.get("authority"),
        )

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document, without what is empty."""
        found: dict[str, Any] = _filled(asdict(self))
        return found


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each) for name, each in value.items() if each}
    return list(map(_filled, value)) if isinstance(value, tuple) else value


class Emulator(EmulatorControl):
    """Namespaces on ports of their own, for the duration of an `async with`. Port 0 chooses a free port.

    `ready` has the addresses and credentials. `create_entities` is called with each namespace before its port opens.
    `page` makes what is served to browsers, when one comes: it needs 18 MB.

    Raises PortInUse if a port is taken, before any port opens. Raises MachineLacks if a port cannot be opened,
    NameInvalid and UsageError for invalid names and port numbers. Raises StateRefused for a data file that is broken,
    of another kind or version, or of other namespaces, and MachineLacks for one that cannot be used.
    """

    def __init__(
        self,
        namespaces: Iterable[tuple[str, int] | RequestedNamespace] = (("contoso", 0), ("contoso-dr", 0)),
        *,
        host: str = LOCALHOST,
        clock: Clock | None = None,
        options: EmulatorOptions = DEFAULT_OPTIONS,
        create_entities: CreateEntities | None = None,
        page: MakePage | None = None,
    ) -> None:
        self._requested = [RequestedNamespace(*each) for each in namespaces]
        check_requested(self._requested)
        self._roles = read_roles(options.roles, [each.name for each in self._requested])
        names = HostNames(host, [each.name for each in self._requested], options.allow_hosts)
        super().__init__(names, clock or SystemClock())
        self._host = host
        self._options = options
        self._create_entities = create_entities
        self._make_page = page
        self._page: BrowserPage | None = None
        self.identity: IdentityFrontend | None = None
        self.bearers = Bearers(accept_any=options.accept_any_token, life_seconds=max(1, int(options.token_life)))
        self._tls: Tls | None = None
        self._http_authorities: dict[str, str] = {}
        self._admission = Admission()
        self._ports: dict[str, list[NamespacePort]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._options.data is not None:
                self._storage = stack.enter_context(closing(self._open_storage(self._options.data)))
            listening = [[stack.enter_context(each) for each in self._bind(requested)] for requested in self._requested]
            if self._options.tls:
                self._tls = stack.enter_context(self._start_tls())
            self.start_timers()
            stack.callback(self.stop_timers)
            await self._start_ports(listening, stack)
            self._stack = stack.pop_all()
        return self

    def _open_storage(self, path: Path) -> Storage:
        from sbpair.emulator.storage.storage import Storage

        requested = {each.name: (each.port, each.tier.lower(), each.partitions) for each in self._requested}
        return Storage(path, requested, durable=self._options.durable)

    def _bind(self, requested: RequestedNamespace) -> Iterator[socket.socket]:
        """Open the ports of a namespace: where any will do, the one that it had before, if that is free."""
        first, *others = requested.ports
        before = 0 if self._storage is None else self._storage.ports.get(requested.name, 0)
        try:
            yield listen(self._host, first or before)
        except MachineLacks:
            if first:
                raise
            yield listen(self._host, 0)
        for port in others:
            yield listen(self._host, port)

    def _beside(self, listening: socket.socket) -> Iterator[socket.socket]:
        """Open the same port of [::1] beside that of 127.0.0.1, if it is free: `localhost` is either."""
        if self._host == LOCALHOST:
            with suppress(MachineLacks, UsageError):
                yield listen("::1", listening.getsockname()[1])

    def _start_tls(self) -> AbstractContextManager[Tls]:
        from sbpair.amqp_server.tls import tls_for

        options = self._options
        return tls_for("sbpair emulator", self.host_names.for_certificate, options.ca_file, options.data)

    async def _start_ports(self, listening: Sequence[Sequence[socket.socket]], stack: AsyncExitStack) -> None:
        soon = asyncio.get_running_loop().call_soon
        for requested, sockets in zip(self._requested, listening, strict=True):
            namespace = Namespace(
                requested.name,
                self.clock,
                self.timers,
                call_soon=soon,
                tier=requested.check(),
                partitions=requested.partitions,
            )
            authorities = [local_authority(self._host, each.getsockname()[1]) for each in sockets]
            namespace.authority = authorities[0]
            if len(authorities) > 1:
                self._http_authorities[requested.name] = authorities[1]
            if self._options.credits is not None:
                namespace.fault_points.limit_to(self._options.credits, self.clock, self.timers)
            tenant = tenant_of(requested.name) if self._options.tenants else None
            roles = [each for each in self._roles if each.namespace == requested.name.lower()]
            namespace.bearers = self.bearers.limited(tenant, roles if self._roles else None)
            self.namespaces[requested.name] = namespace
        if self._options.identity:
            from sbpair.emulator.frontends.http.identity_frontend import IdentityFrontend

            self.identity = IdentityFrontend(self.bearers, self.clock, self.namespaces)
        if self._storage is not None:
            ports = [first.getsockname()[1] for first, *_ in listening]
            self._storage.start(self.namespaces, ports, self.clock, asyncio.get_running_loop().call_later)
        # All of them before any port answers: each serves Resource Manager and control for all namespaces.
        if self._create_entities is not None:
            for namespace in self.namespaces.values():
                self._create_entities(namespace)
        for namespace, sockets in zip(self.namespaces.values(), listening, strict=True):
            tls = self._tls.context if self._tls else None
            http = partial(self._http_server, namespace)
            beside = [stack.enter_context(more) for each in sockets for more in self._beside(each)]
            for each in (*sockets, *beside):
                port = NamespacePort(namespace, each, http, self.host_names, self._admission, tls)
                self._ports.setdefault(namespace.name, []).append(port)
                stack.push_async_callback(port.stop)
                await port.start()
        stack.push_async_callback(self._close_page)

    def _http_server(self, namespace: Namespace) -> HttpServer:
        from sbpair.emulator.frontends.http.http_frontend import http_server

        page = None if self._make_page is None else partial(self._browser_page, self._make_page)
        return http_server(self, namespace, self.identity, page)

    def _browser_page(self, make: MakePage) -> BrowserPage:
        if self._page is None:
            self._page = make(self)
        return self._page

    async def _close_page(self) -> None:
        if self._page is not None:
            await self._page.close()

    async def __aexit__(self, *_: object) -> None:
        self.faults.end_all()
        await self._stack.aclose()

    async def delete_namespace(self, name: str) -> None:
        """Close the ports of a namespace for good, and delete its entities, also in the data file."""
        for port in self._ports[name]:
            await port.stop()
        namespace = self.namespaces[name]
        for entity in (*namespace.queues(), *namespace.topics()):
            entity.delete()
        for relay in namespace.hybrid_connections.all():
            relay.delete()

    @property
    def ready(self) -> Ready:
        namespaces = tuple(
            ReadyNamespace(
                name,
                each.endpoint,
                each.connection_string,
                each.connection_string.removesuffix(WITHOUT_TLS) if self._tls else "",
                each.connection_string_at(self._http_authorities[name]) if name in self._http_authorities else "",
                tuple(f"{each.connection_string};EntityPath={found.path}" for found in each.hybrid_connections.all()),
                *(self.identity.ready_of(name, with_secret=self._tls is not None) if self.identity else ()),
            )
            for name, each in self.namespaces.items()
        )
        first = next(iter(self.namespaces.values()))
        identity = self.identity.endpoint_at(first.authority) if self.identity else None
        authority = f"https://{first.authority}" if self.identity and self._tls else None
        return Ready(namespaces, str(self._tls.ca_file) if self._tls else None, identity, authority)


def read_roles(texts: Iterable[str], namespaces: Sequence[str]) -> list[AssignedRole]:
    """Return the roles of identities. Raises UsageError, also for a namespace that is none of these."""
    roles = [AssignedRole.parse(text) for text in texts]
    known = [name.lower() for name in namespaces]
    if unknown := [each.namespace for each in roles if each.namespace not in known]:
        raise UsageError(f"a role names no namespace {unknown[0][:100]!r}", hint=f"it is one of {', '.join(known)}")
    return roles


def check_requested(namespaces: Sequence[RequestedNamespace]) -> None:
    if not namespaces:
        raise UsageError("no namespace given", hint="name one, as in --namespace contoso=5672")
    names = [each.name.lower() for each in namespaces]
    for each in namespaces:
        each.check()
        if names.count(each.name.lower()) > 1:
            raise UsageError(f"namespace '{each.name}' is named twice", hint="give every namespace a name of its own")


async def serve(
    namespaces: Sequence[tuple[str, int] | RequestedNamespace],
    *,
    host: str = LOCALHOST,
    ready_file: Path | None = None,
    on_ready: Callable[[Ready], None] | None = None,
    options: EmulatorOptions = DEFAULT_OPTIONS,
    create_entities: CreateEntities | None = None,
    page: MakePage | None = None,
) -> None:
    """Run an emulator until cancelled, then stop it. Raises as Emulator does, and MachineLacks for the ready file."""
    with files.ready_file(ready_file) as write:
        async with Emulator(
            namespaces, host=host, options=options, create_entities=create_entities, page=page
        ) as emulator:
            write(emulator.ready.as_document())
            if on_ready is not None:
                on_ready(emulator.ready)
            await asyncio.Event().wait()
