"""`sbpair gateway`: runs `sbpair.gateway`, and prints how applications reach it."""

import asyncio
import logging
import shlex
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from sbpair import __version__
from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, STATE, Output, PairSelection, duration, flag, option, option_group
from sbpair.cli.options.values import flags_of, load_profile, selected_profile
from sbpair.cli.progress.reporting import event_line, wall_clock_ms, write_lines
from sbpair.cli.render.screen import Screen, clean, plural
from sbpair.cli.served_ports import open_metrics_port, open_supervision
from sbpair.errors import PortInUse, SbpairError, UsageError
from sbpair.model.document import document
from sbpair.model.pair import MASK
from sbpair.operating_system import signals
from sbpair.operating_system.files import ready_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sbpair.config import Profile
    from sbpair.failover.events import Event
    from sbpair.gateway.gateway import Gateway
    from sbpair.gateway.local_key import LocalKey
    from sbpair.gateway.local_tls import RenewedTls
    from sbpair.metrics.http_port import HttpPort
    from sbpair.service.run_health import RunHealth

SCHEMA, EVENT_SCHEMA = "sbpair/gateway/1", "sbpair/gateway-event/1"
AMQP_PORT = 5672
WITHOUT_TLS = ";UseDevelopmentEmulator=true"
"""Makes the official clients connect without TLS, and to this machine only."""

LIMITS_FILE = "gateway-limits.json"
CLIENTS = {
    "Python azure-servicebus": "7.14.0",
    "JavaScript @azure/service-bus": "7.9.2",
    "Go azservicebus": "1.7.0",
    "Java azure-messaging-servicebus": "7.17.8",
    ".NET Azure.Messaging.ServiceBus": "7.18.0",
}
"""The smallest version of each client that takes such a connection string."""


@option_group
class GatewayTerms:
    """How a gateway listens and sends."""

    port: int = option(
        "--port PORT",
        "Port on 127.0.0.1 and [::1]; 0 is any free one",
        default=AMQP_PORT,
        at_least=0,
        at_most=moves.MAX_PORT,
    )
    tls: bool = flag("--tls", "Also accept TLS, with certificates kept beside the key")
    tls_cert: Path | None = option(
        "--tls-cert FILE", "Also accept TLS, with this certificate", needs="--tls-key", excludes="--tls"
    )
    tls_key: Path | None = option("--tls-key FILE", "Its key, without a password", needs="--tls-cert")
    key_file: Path | None = option(
        "--key-file FILE", "File of the gateway's key, made once [default: in the state directory]"
    )
    allow_user: list[int] | None = option("--allow-user UID", "Another user whose programs may connect; repeatable")
    allow_host: list[str] | None = option(
        "--allow-host NAME", "Another name of this machine, for WebSocket; repeatable"
    )
    on_failure: Literal["backlog-now", "wait", "raise"] = option(
        "--on-failure ACTION", "Until failover: backlog-now: go there now; wait and retry; raise", default="backlog-now"
    )
    failover_on: Literal["default", "article"] = option(
        "--failover-on RULE", "Errors that count: default, or article: those of 2013", default="default"
    )
    retries: int = option("--retries N", "Retries of a failed attempt on the primary", default=3, at_least=0)
    timeout: float = duration("--timeout DURATION", "Time limit of one send", default="40s", at_least=1, at_most=3600)
    outbox: Path | None = option("--outbox FILE", "Store messages here while neither namespace accepts them")
    allow_unpaired_size: bool = flag("--allow-unpaired-size", "Also send what is too large for the backlog")
    syphon: bool = flag("--syphon", "Also move the backlog back to the primary")
    grace: float = duration("--grace DURATION", "After a signal: time for deliveries", default="30s", at_most=3600)
    health_port: tuple[str, int] | None = option(
        "--health-port [HOST:]PORT", "Answer health probes", parse=moves.health_address
    )
    metrics_port: int | None = option(
        "--metrics-port PORT", "Serve metrics; 0 is a free port", at_least=0, at_most=moves.MAX_PORT
    )
    metrics_address: str | None = option(
        "--metrics-address HOST", "Its address [default: 127.0.0.1]", needs="--metrics-port"
    )

    def check(self) -> None:
        """Raise UsageError for wrong values."""
        moves.check_ports(self.health_port, self.metrics_port)
        if wrong := [user for user in self.allow_user or () if user < 0]:
            raise UsageError(f"--allow-user is {wrong[0]}, and must be at least 0", hint="id -u NAME prints it")
        from sbpair.amqp_server.host_names import checked_name

        for name in self.allow_host or ():
            checked_name(name)


@document("sbpair/gateway/1")
class ReadyGateway:
    """How applications reach a gateway, on one line. Its key is masked, except in the ready file."""

    pair: Annotated[str, "Name of the pair"]
    primary: Annotated[str, "Primary namespace"]
    secondary: Annotated[str, "Secondary namespace"]
    port: Annotated[int, "Port"]
    endpoints: Annotated[tuple[Annotated[str, "Endpoint", {"examples": ["sb://127.0.0.1:5672"]}], ...], "Endpoints"]
    key_name: Annotated[str, "Name of the key"]
    key_file: Annotated[str, "File of the key"]
    connection_string: Annotated[str, "Connection string, without TLS"] = field(repr=False)
    tls_endpoint: Annotated[str, "Custom endpoint of clients that use TLS; empty without --tls"]
    tls_connection_string: Annotated[str, "Their connection string; empty without --tls"] = field(repr=False)
    ca_file: Annotated[str, "File of the CA that they trust; empty without --tls"]
    health: Annotated[str, "Address of the readiness; empty without --health-port"]
    metrics: Annotated[str, "Address of the metrics; empty without --metrics-port"]


def command(
    *,
    terms: GatewayTerms,
    ready: Path | None = option("--ready-file FILE", "Write connection details, with the key, here when ready"),
    show_key: bool = flag("--show-key", "Print the key, too; on a terminal only"),
    count: int | None = COUNT,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Fail over for applications in any language, through a local port.

    They connect to it instead of the primary, with its own key, and need no secret of Azure. Programs of this user, of
    root and of --allow-user may connect. Administration clients keep using the real namespace. On both sides, senders
    need Send, receivers and --syphon need Listen. Ctrl-C finishes deliveries; the second one stops at once. SIGHUP
    rereads whether the primary is lost.

    Examples:
      sbpair gateway
      sbpair gateway --tls --outbox outbox.db --health-port 8081
      sbpair gateway --port 0 --ready-file ready.json

    Exit codes: 4 a file of the key is of others; 7 a port is in use

    See also: sbpair help gateway
    """
    terms.check()
    if show_key and not (sys.stdout and sys.stdout.isatty()):
        raise UsageError("--show-key prints to a terminal only", hint="programs read the key from --ready-file")
    profile = selected_profile(connection, screen, count=count, state=state)
    from sbpair.failover.failover_send import SHORT_SECONDS
    from sbpair.gateway.local_key import FILE_NAME, read_key

    key = read_key((terms.key_file or profile.state_directory / FILE_NAME).absolute())
    tls, ca_file = _tls_of(terms, key)
    # It logs the events that are printed here.
    logging.getLogger("sbpair.failover.events").setLevel(logging.ERROR)

    def reread() -> bool | None:
        """Return whether the primary is declared lost; None if the configuration is wrong."""
        try:
            return bool(load_profile(flags_of(connection, count=count, state=state), screen).pair.lost)
        except SbpairError as error:
            screen.warn(f"the configuration is not reread: {error.message}")
            return None

    if terms.timeout <= SHORT_SECONDS:
        screen.warn(f"--timeout is {terms.timeout:g} s: more than {SHORT_SECONDS:g} s leave time for the backlog")
    started = _StartedGateway(screen, terms, profile, key, ready, reread, ca_file, show_key=show_key)
    try:
        run_gracefully(partial(started.run, tls), profile.pair.primary, profile.pair.secondary)
    except PortInUse as error:
        from sbpair.gateway.running_gateways import running_gateways

        for each in running_gateways():
            if each.port == terms.port:
                error.hint = (
                    f"process {each.process} is the gateway of pair {each.pair}: end it, or choose another --port"
                )
        raise
    screen.say("stopped")
    return 0


def _tls_of(terms: GatewayTerms, key: "LocalKey") -> "tuple[RenewedTls | None, str]":
    """Return the TLS that the options ask for, and the file of its CA, if it is the gateway's own."""
    if not terms.tls and terms.tls_cert is None:
        return None, ""
    from sbpair.gateway import local_tls

    if terms.tls_cert is not None and terms.tls_key is not None:
        return local_tls.given_tls(terms.tls_cert, terms.tls_key), ""
    tls, ca_file = local_tls.own_tls(key.path)
    return tls, str(ca_file)


class GatewayEvent(NamedTuple):
    text: Annotated[str, "The event, in words"]
    entity: Annotated[str | None, "Queue or topic that it is about; null for none"]
    message_ids: Annotated[tuple[str, ...], "Messages that it names"]


@dataclass(frozen=True)
class _StartedGateway:
    """One run of the command: the gateway, its ports, its files and its output."""

    screen: Screen
    terms: GatewayTerms
    profile: "Profile"
    key: "LocalKey"
    ready: Path | None
    reread: Callable[[], bool | None]
    ca_file: str
    show_key: bool

    async def run(self, tls: "RenewedTls | None", stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop`, and finish deliveries in time, unless `hurry`."""
        from sbpair.failover.failover_send import ShortTimeout
        from sbpair.gateway.gateway import Gateway, GatewayOptions
        from sbpair.gateway.peer_users import PeerUsers, PeerUserUnknown

        terms, profile = self.terms, self.profile
        peers = PeerUsers(frozenset(terms.allow_user or ()), lambda: self._on_event(PeerUserUnknown()))
        options = GatewayOptions(
            rule=self.key.rule,
            port=terms.port,
            tls=tls,
            admit=peers.admits,
            allow_hosts=tuple(terms.allow_host or ()),
            on_failure=terms.on_failure,
            failover_on=terms.failover_on,
            retries=terms.retries,
            timeout=terms.timeout,
            outbox=terms.outbox,
            allow_unpaired_size=terms.allow_unpaired_size,
            limits_file=profile.state_directory / LIMITS_FILE,
        )
        with warnings.catch_warnings():
            # The command warns by itself: this one names a line of the source.
            warnings.simplefilter("ignore", ShortTimeout)
            gateway = Gateway(profile.pair, options, self._on_event)
        metrics_at = open_metrics_port(
            self.screen, EVENT_SCHEMA, partial(self._open_metrics, gateway), terms.metrics_port, terms.metrics_address
        )
        health_at = open_supervision(self.screen, EVENT_SCHEMA, partial(GatewayHealth, gateway), terms.health_port)
        with health_at as supervision, metrics_at as metrics:
            urls = [each.url if each else "" for each in (supervision and supervision.port, metrics)]
            serving = self._serve(gateway, urls, stop, hurry)
            serving = metrics.serve_during(serving) if metrics else serving
            await (supervision.serve_during(serving, stop) if supervision else serving)

    @contextmanager
    def _open_metrics(self, gateway: "Gateway", address: tuple[str, int] | None) -> "Iterator[HttpPort]":
        from sbpair.metrics.gateway_metrics import GatewayMetrics
        from sbpair.metrics.run_metrics import open_figures

        info = {"command": "gateway", "version": __version__, "pair": self.profile.pair.name}
        with open_figures([GatewayMetrics(gateway, info)], address) as (port, _):
            yield port

    async def _serve(
        self, gateway: "Gateway", urls: "Sequence[str]", stop: asyncio.Event, hurry: asyncio.Event
    ) -> None:
        from sbpair.gateway.running_gateways import recorded

        pair, loop = self.profile.pair, asyncio.get_running_loop()
        with ready_file(self.ready) as write:
            async with gateway:
                with recorded(pair.name, gateway.port, self.key.path):
                    signals.call_when_hung_up(loop, partial(self._reread, gateway), stop.set)
                    if self.terms.syphon:
                        gateway.failover.syphon(state=self.profile.state_directory)
                    write(asdict(self._described(gateway.port, urls, self.key.text)))
                    self._show(self._described(gateway.port, urls, self.key.text if self.show_key else MASK))
                    await stop.wait()
                    await self._finish(gateway, hurry)

    async def _finish(self, gateway: "Gateway", hurry: asyncio.Event) -> None:
        connections = plural(len(gateway.connections), "connection")
        self.screen.say(f"stopping: {connections} to finish; Ctrl-C again stops at once")
        waiting = [
            asyncio.create_task(gateway.stop(self.terms.grace), name="finish deliveries"),
            asyncio.create_task(hurry.wait(), name="wait for a second signal"),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each

    def _reread(self, gateway: "Gateway") -> None:
        lost = self.reread()
        if lost is not None:
            gateway.reread_loss(lost=lost)
            self.screen.say(f"reread: the primary is {'declared' if lost else 'not'} lost")

    def _on_event(self, event: "Event") -> None:
        from sbpair.failover.events import name_and_level

        name, level = name_and_level(type(event))
        if self.screen.eventful:
            item = GatewayEvent(clean(event), getattr(event, "entity", None), tuple(getattr(event, "message_ids", ())))
            write_lines(self.screen, [event_line(EVENT_SCHEMA, name, wall_clock_ms(), item, level=level)])
        elif level == "warning":
            self.screen.warn(str(event))
        else:
            self.screen.say(str(event))

    def _described(self, port: int, urls: "Sequence[str]", key: str) -> ReadyGateway:
        from sbpair.gateway.local_key import KEY_NAME, connection_string

        pair, has_tls = self.profile.pair, bool(self.terms.tls or self.terms.tls_cert)
        return ReadyGateway(
            pair=pair.name,
            primary=pair.primary.name,
            secondary=pair.secondary.name,
            port=port,
            endpoints=(f"sb://127.0.0.1:{port}", f"sb://[::1]:{port}"),
            key_name=KEY_NAME,
            key_file=str(self.key.path),
            connection_string=connection_string(f"localhost:{port}", key, WITHOUT_TLS),
            tls_endpoint=f"sb://localhost:{port}" if has_tls else "",
            tls_connection_string=connection_string(pair.primary.authority, key) if has_tls else "",
            ca_file=self.ca_file,
            health=urls[0],
            metrics=urls[1],
        )

    def _show(self, ready: ReadyGateway) -> None:
        if self.screen.output is not Output.TABLE:
            self.screen.show_line(ready)
            return
        users = ", ".join(map(str, ("this user", "root", *(self.terms.allow_user or ()))))
        lines = [
            f"pair {ready.pair}: {ready.primary}, failing over to {ready.secondary}",
            f"listening on 127.0.0.1:{ready.port} and [::1]:{ready.port}, for programs of {users}",
            f"key file: {ready.key_file}",
            f"needs {', '.join(f'{name} {version}' for name, version in CLIENTS.items())}, or later",
            f"administration clients keep using {self.profile.pair.primary.authority}",
        ]
        if ready.tls_endpoint:
            trust = f", CA file {ready.ca_file}" if ready.ca_file else ""
            lines.append(f"TLS: custom endpoint {ready.tls_endpoint}{trust}, and {ready.tls_connection_string}")
        # A shell reads the key where it is not shown.
        read = f"$(cat {shlex.quote(ready.key_file)})"
        for line in lines:
            self.screen.write(f"# {clean(line).replace(MASK, read)}")
        self.screen.write(f'export SERVICEBUS_CONNECTION_STRING="{clean(ready.connection_string).replace(MASK, read)}"')
        self.screen.say("ready; Ctrl-C stops it")


class GatewayHealth:
    """The health of a gateway: ready while it listens."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def read(self, *, stopping: bool) -> "RunHealth":
        from sbpair.service.run_health import RunHealth

        listens = self.has_begun() and not stopping
        state = "listening" if listens else "stopping" if stopping else "starting"
        return RunHealth(is_live=True, is_ready=listens, state=state)

    def has_begun(self) -> bool:
        return bool(self._gateway.port)

    def counts(self) -> str:
        figures = self._gateway.figures
        connections = plural(len(self._gateway.connections), "connection")
        return f"{connections}, {figures.sent} sent, {figures.received} received"
