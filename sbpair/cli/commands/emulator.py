"""`sbpair emulator`: runs `sbpair.emulator` and prints how to connect."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbpair.cli.background_emulator import BackgroundEmulator
from sbpair.cli.command_loop import run
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import Output, duration, flag, option
from sbpair.cli.render.screen import Screen, clean
from sbpair.errors import MachineLacks, PortInUse, UsageError
from sbpair.model.pair import is_loopback
from sbpair.runs.database import WRITABLE

if TYPE_CHECKING:
    from sbpair.cli.page.page_server import PageServer
    from sbpair.emulator.declared_entities import ConfigFile
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.server import Emulator, Ready, ReadyNamespace, RequestedNamespace

# The emulator accepts every subscription and resource group.
ANY_GROUP = {"AZURE_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000", "AZURE_RESOURCE_GROUP": "emulator"}
DEFAULT = ("contoso=5672", "contoso-dr=5673")
DEFAULT_TEXT = " and ".join(DEFAULT)
AMQP_PORT, HTTP_PORT = 5672, 5300
VENDOR_READY = "Emulator Service is Successfully Up!"
"""The line that the testcontainers modules of the vendor's emulator wait for."""


def command(
    *,
    namespace: list[str] | None = option(
        "--namespace NAME=PORT[,TIER]",
        "Namespace and port; repeatable; port 0 is any free port; TIER is basic, standard, premium, premium,2"
        f" or premium,4 [default: {DEFAULT_TEXT}, standard]",
    ),
    config_file: Path | None = option(
        "--config-file FILE", "Entities to create: Config.json of Azure's own emulator; - is stdin"
    ),
    relay: list[str] | None = option(
        "--relay [NAMESPACE=]PATH", "Hybrid connection of Azure Relay to create, in one namespace or all; repeatable"
    ),
    http_port: int | None = option(
        "--http-port PORT", f"Second port of the first namespace [default: none; {HTTP_PORT} with --config-file]"
    ),
    host: str = option("--host ADDRESS", "Address to listen on", default="127.0.0.1"),
    expose: bool = flag("--expose", "Allow a non-loopback --host; the key is public"),
    allow_host: list[str] | None = option(
        "--allow-host NAME", "Another name of this machine, for HTTP and WebSocket; repeatable"
    ),
    page_acts: bool = flag("--page-acts", "Also let the browser page change things", needs="--expose"),
    ready_file: Path | None = option(
        "--ready-file FILE", "Write connection details here when ready", excludes="--detach"
    ),
    tls: bool = flag("--tls", "Also accept TLS; --data or --ca-file keeps the certificate"),
    ca_file: Path | None = option(
        "--ca-file FILE", "Write the CA here [default: by --data, or temporary]", needs="--tls"
    ),
    identity: bool = flag(
        "--identity", "Act as a managed identity, and for --via arm; with --tls as an OAuth authority"
    ),
    tenants: bool = flag("--tenants", "Accept tokens only of the namespace's own tenant", needs="--identity"),
    token_life: float = duration(
        "--token-life DURATION", "Life of issued tokens", default="24h", at_least=1, at_most=86_400, needs="--identity"
    ),
    role: list[str] | None = option(
        "--role ROLE",
        "Limit bearer tokens by their oid: OID=sender|receiver|owner@NAMESPACE[/ENTITY]; repeatable",
    ),
    accept_any_token: bool = flag("--accept-any-token", "Accept any bearer token that is not expired"),
    credits_a_second: int | None = option(
        "--credits N", "Throttle to N credits a second [default: no limit]", at_least=1
    ),
    data: Path | None = option("--data FILE", "Keep entities and messages here; a kill loses a second at most"),
    durable: bool = flag("--durable", "A kill loses nothing acknowledged; slower", needs="--data"),
    detach: bool = flag(
        "--detach", "Run in the background, and print how to connect once it is ready", excludes="--config-file -"
    ),
    stop: bool = flag("--stop", "Stop the one in the background", excludes="--detach"),
    shell: Literal["sh", "fish", "pwsh"] = option("--shell SHELL", "Print for sh, fish or pwsh", default="sh"),
    screen: Screen,
) -> int:
    """Run Service Bus namespaces on this machine.

    Each namespace has one port for AMQP, Atom and Azure Resource Manager, and for a browser, which shows what it holds
    and sends, resubmits and removes messages. Nothing is kept after it stops, except with
    --data. Paste its output into a shell to point the other commands at it. Ctrl-C stops it.

    Examples:
      eval "$(sbpair emulator --detach)"
      sbpair emulator
      sbpair emulator --data emulator.db
      sbpair emulator --namespace contoso=0,premium --namespace contoso-dr=0 -o json
      sbpair emulator --config-file Config.json

    Exit codes: 0 stopped by a signal; 2 a wrong file; 4 the data file is broken or of other namespaces; 7 a port or
    the data file is in use

    See also: sbpair help emulator
    """
    if stop:
        with _state_of_environment():
            screen.say("stopped" if BackgroundEmulator(os.environ).stop() else "no emulator runs in the background")
        return 0
    _check_places(host, data, {"--ready-file": ready_file, "--ca-file": ca_file}, expose=expose)
    from sbpair.emulator import server

    read = [server.RequestedNamespace(*_parsed(text)) for text in namespace or (() if config_file else DEFAULT)]
    config = None
    if config_file is not None:
        with _all_faults_shown(screen):
            config, read = _configured(config_file, read)
    if http_port is not None or config:
        read[0] = read[0]._replace(http_port=HTTP_PORT if http_port is None else http_port)

    if detach:
        return _in_background(screen, shell)
    names = tuple(allow_host or ())
    options = server.EmulatorOptions(
        *(tls, ca_file, identity, accept_any_token, credits_a_second, data, durable, names, tenants, token_life),
        roles=tuple(role or ()),
    )

    def page(emulator: "Emulator") -> "PageServer":
        from sbpair.cli.page.emulator_page import page_of  # a browser's first request loads it

        return page_of(emulator, may_act=page_acts or not expose)

    try:
        run(
            server.serve(
                read,
                host=host,
                ready_file=ready_file,
                on_ready=lambda ready: _show(screen, ready, shell, vendor=config is not None),
                options=options,
                create_entities=_entities(config, relay or [], read) if config or relay else None,
                page=page,
            )
        )
    except KeyboardInterrupt:
        screen.say("stopped")
    except PortInUse as error:
        anywhere = " --http-port 0" if read[0].http_port else ""
        error.hint = f"stop what uses it, or take any free ports: {_with_any_port(read)}{anywhere}"
        raise
    return 0


def _check_places(host: str, data: Path | None, files: Mapping[str, Path | None], *, expose: bool) -> None:
    if not expose and not is_loopback(host):
        raise UsageError(
            f"other machines can reach {clean(host)}, and the emulator's key is public",
            hint="leave --host out, or pass --expose to let anyone read, write and delete",
        )
    for name, file in files.items():
        if data is not None and file is not None and file.resolve() == data.resolve():
            raise UsageError(f"{name} and --data name the same file", hint="give each a file of its own")


def _in_background(screen: Screen, shell: str) -> int:
    """Start this command line in the background, or show how to connect to the emulator that runs there."""
    emulator = BackgroundEmulator(os.environ)
    with _state_of_environment():
        started = emulator.start(shlex.split(next_command("emulator", without=("detach", "shell")))[1:])
        document = emulator.wait()
    from sbpair.cli.results.emulator import BackgroundProcess, ReadyEmulator
    from sbpair.emulator.server import Ready

    ready = Ready.of_document(document)
    if screen.output is Output.TABLE:
        _export(screen, ready, shell)  # no comments, which an interactive zsh refuses
    else:
        screen.show_line(ReadyEmulator(ready, BackgroundProcess(emulator.process, emulator.log)))
    state = "runs" if started else "already runs, as it was started,"
    screen.say(f"the emulator {state} in the background (process {emulator.process}, log {emulator.log})")
    screen.say("stop it with sbpair emulator --stop")
    return 0


@contextmanager
def _state_of_environment() -> Iterator[None]:
    """Name the variable in the hint for an unusable directory, since the command has no --state."""
    try:
        yield
    except MachineLacks as error:
        error.hint = error.hint.replace(WRITABLE, "set XDG_STATE_HOME to a writable directory")
        raise


def _entities(
    config: "ConfigFile | None", relay: list[str], namespaces: "list[RequestedNamespace]"
) -> "Callable[[Namespace], None]":
    """Return a function that creates the entities of a file, and hybrid connections. Raises UsageError."""
    from sbpair.emulator.declared_entities import DeclaredEntities

    given = [text.rpartition("=")[::2] for text in relay]
    names = [each.name.lower() for each in namespaces]
    if unknown := [name for name, _ in given if name and name.lower() not in names]:
        raise UsageError(f"--relay names no namespace '{clean(unknown[0])}'", hint=f"it is one of {', '.join(names)}")

    def create(namespace: "Namespace") -> None:
        if config is not None:
            config.create_entities(namespace)
        paths = [{"Name": path} for name, path in given if name.lower() in ("", namespace.name.lower())]
        if faults := DeclaredEntities("--relay", {"HybridConnections": paths}).create_in(namespace):
            raise UsageError(f"--relay: {faults[0].text}", hint="write --relay PATH, or --relay NAMESPACE=PATH")

    return create


def _configured(path: Path, given: "list[RequestedNamespace]") -> "tuple[ConfigFile, list[RequestedNamespace]]":
    """Return a file and its namespaces; `given` has the ports and tiers of some. Raises ConfigFileInvalid."""
    from sbpair.emulator.declared_entities import load_config

    config = load_config(path)
    return config, config.requested(given, AMQP_PORT)


@contextmanager
def _all_faults_shown(screen: Screen) -> Iterator[None]:
    """Print every fault of a file as an error of its own, where it has several."""
    try:
        yield
    except UsageError as error:
        faults = error.message.splitlines()
        if len(faults) > 1:
            for fault in faults:
                screen.error(fault)
            error.message = f"--config-file has {len(faults)} faults"
        raise


def _with_any_port(namespaces: "list[RequestedNamespace]") -> str:
    def written(name: str, tier: str, partitions: int) -> str:
        more = f",{tier}" + (f",{partitions}" if partitions > 1 else "") if tier != "standard" else ""
        return f"--namespace {shlex.quote(name)}=0{more}"

    return " ".join(written(name, tier, partitions) for name, _port, tier, partitions, _http in namespaces)


def _parsed(text: str) -> tuple[str, int, str, int]:
    """Return name, port, tier and partitions of a namespace. Raises UsageError."""
    name, equals, rest = text.partition("=")
    port, tier, partitions, *more = *rest.split(","), *("", "standard", "1")[rest.count(",") + 1 :]
    if more or not (name and equals and _is_number(port) and tier and _is_number(partitions)):
        form, example = ("NAME=PORT,TIER", "contoso=5672,premium") if "," in text else ("NAME=PORT", "contoso=5672")
        raise UsageError(f"--namespace {clean(text)!r} is not {form}", hint=f"write --namespace {example}")
    return name, int(port), tier, int(partitions)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _show(screen: Screen, ready: "Ready", shell: str, *, vendor: bool) -> None:
    if vendor:
        screen.say(VENDOR_READY)
    if screen.output is not Output.TABLE:
        from sbpair.cli.results.emulator import ReadyEmulator

        screen.show_line(ReadyEmulator(ready))
        return
    for each in ready.namespaces:
        screen.write(f"# {each.name}: {each.connection_string}")
        if each.tls_connection_string:
            screen.write(f"# {each.name}, by TLS: {each.tls_connection_string}")
        if each.http_connection_string:
            screen.write(f"# {each.name}, administration: {each.http_connection_string}")
        for connection_string in each.hybrid_connections:
            screen.write(f"# {each.name}, relay: {connection_string}")
        if each.tenant_id:
            screen.write(f"# {each.name}, identity: {_client(each, ready.authority)}")
    screen.write(f"# page: http{ready.namespaces[0].endpoint.removeprefix('sb')}/")
    if ready.ca_file:
        screen.write(f"# CA file: {ready.ca_file}")
    _export(screen, ready, shell)
    screen.say("ready; Ctrl-C stops it")


def _export(screen: Screen, ready: "Ready", shell: str) -> None:
    forms = {"sh": "export {0}={1}", "fish": "set -gx {0} {1};", "pwsh": "$env:{0} = {1}"}
    for name, value in _variables(ready).items():
        screen.write(forms[shell].format(name, shlex.quote(value) if shell == "sh" else f"'{value}'"))


def _client(of: "ReadyNamespace", authority: str | None) -> str:
    """Return the variables of azure-identity for the client of a namespace, with its secret where it can be used."""
    ids = f"AZURE_TENANT_ID={of.tenant_id} AZURE_CLIENT_ID={of.client_id}"
    return f"{ids} AZURE_CLIENT_SECRET={of.client_secret} AZURE_AUTHORITY_HOST={authority}" if authority else ids


def _variables(ready: "Ready") -> dict[str, str]:
    """Return the variables by which the other commands use the emulator. Of several relays, they name the first."""
    found = {}
    for side, each in zip(("PRIMARY", "SECONDARY"), ready.namespaces, strict=False):
        found[f"SBPAIR_{side}_NAME"] = each.name
        found[f"SBPAIR_{side}_CONNECTION_STRING"] = each.connection_string
        for connection_string in each.hybrid_connections[:1]:
            found[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = connection_string
    return found | ({**ready.identity.environment, **ANY_GROUP} if ready.identity else {})
