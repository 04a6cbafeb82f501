"""`sbpair emulator`: options into one call of `sbpair.emulator`, and what it is reached by into output."""

import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import Display, Output, options
from sbpair.cli.render.screen import Screen, clean
from sbpair.errors import UsageError
from sbpair.model.pair import is_loopback

if TYPE_CHECKING:
    from sbpair.emulator.server import Ready

SCHEMA = "sbpair/emulator/1"
# It takes every subscription and resource group for its own.
ANY_GROUP = {"AZURE_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000", "AZURE_RESOURCE_GROUP": "emulator"}
DEFAULT = ("contoso=5672", "contoso-dr=5673")


@options
def command(
    *,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="NAME=PORT[,TIER]",
            help="A namespace and its port; may be given several times, and port 0 is any free one. TIER is basic,"
            " standard (by itself) or premium; premium,2 and premium,4 are in as many partitions. Without it:"
            f" {' and '.join(DEFAULT)}",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen: 127.0.0.1 by itself")
    ] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that others reach: the key is known to everybody")
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="FILE", help="Write how to connect into FILE, once every port accepts"),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Speak TLS as well, on the same ports, with a certificate made for this run")
    ] = False,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            help="With --tls: write what clients are to trust into FILE; by itself into a temporary one",
        ),
    ] = None,
    identity: Annotated[
        bool,
        typer.Option(
            "--identity",
            help="Be a managed identity too: print what lets azure-identity sign in here, and --via arm come here",
        ),
    ] = False,
    accept_any_token: Annotated[
        bool, typer.Option("--accept-any-token", help="Let in whoever has a bearer token that has not run out")
    ] = False,
    credits_a_second: Annotated[
        int | None,
        typer.Option(
            "--credits",
            metavar="N",
            min=1,
            help="Throttle each namespace to N credits a second; the service gives Standard 1000. By itself: no limit",
        ),
    ] = None,
    display: Display,
) -> int:
    """Run namespaces on this machine, for trying things out and for tests.

    Each namespace has one port, for AMQP and for management, by Atom and as Azure Resource Manager. Nothing is kept
    when it stops, which it does on SIGINT and SIGTERM. What it prints can be pasted into a shell, so that the
    other commands use it.

    JSON, on one line, once every port accepts; the ready file holds it without the schema:

      {"schema": "sbpair/emulator/1", "namespaces": [{"name": "", "endpoint": "", "connection_string": ""}]}

    With --tls also "ca_file", and a "tls_connection_string" for each namespace; with --identity also
    "identity": {"endpoint": "", "header": ""}, which azure-identity calls IDENTITY_ENDPOINT and IDENTITY_HEADER.

    Exit codes: 0 stopped by a signal; 7 a port is in use.
    """
    screen = Screen(display)
    _check_host(host, expose=expose)
    if ca_file is not None and not tls:
        raise UsageError("--ca-file is for the certificate of --tls", hint="add --tls, or leave --ca-file out")
    read = [_parsed(text) for text in namespace or DEFAULT]
    from sbpair.emulator import server
    from sbpair.emulator.entities.namespace_tiers import RequestedNamespace
    from sbpair.emulator.options import EmulatorOptions

    async def serve(_stop: asyncio.Event) -> None:
        await server.serve(
            [RequestedNamespace(*each) for each in read],
            host=host,
            ready_file=ready_file,
            on_ready=lambda ready: _show(screen, ready),
            options=EmulatorOptions(tls, ca_file, identity, accept_any_token, credits_a_second),
        )

    try:
        run(serve)
    except KeyboardInterrupt:
        screen.say("stopped")
    return 0


def _parsed(text: str) -> tuple[str, int, str, int]:
    """What `sbpair.emulator.entities.namespace_tiers.RequestedNamespace` is made of: name, port, tier, partitions."""
    name, equals, rest = text.partition("=")
    port, tier, partitions, *more = *rest.split(","), *("", "standard", "1")[rest.count(",") + 1 :]
    if more or not (name and equals and _is_number(port) and tier and _is_number(partitions)):
        form, example = ("NAME=PORT,TIER", "contoso=5672,premium") if "," in text else ("NAME=PORT", "contoso=5672")
        raise UsageError(f"--namespace {clean(text)!r} is not {form}", hint=f"write --namespace {example}")
    return name, int(port), tier, int(partitions)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _check_host(host: str, *, expose: bool) -> None:
    if not expose and not is_loopback(host):
        raise UsageError(
            f"{clean(host)} can be reached from other machines, and everybody knows the emulator's key",
            hint="leave --host out, or say --expose if everybody may read, write and delete what is in it",
        )


def _show(screen: Screen, ready: "Ready") -> None:
    if screen.output is not Output.TABLE:
        screen.write(json.dumps({"schema": SCHEMA, **ready.as_document()}))
        return
    for each in ready.namespaces:
        screen.write(f"# {each.name}: {each.connection_string}")
        if each.tls_connection_string:
            screen.write(f"# {each.name}, by TLS: {each.tls_connection_string}")
    if ready.ca_file:
        screen.write(f"# CA file: {ready.ca_file}")
    for side, each in zip(("PRIMARY", "SECONDARY"), ready.namespaces, strict=False):
        screen.write(f"export SBPAIR_{side}_NAME={shlex.quote(each.name)}")
        screen.write(f"export SBPAIR_{side}_CONNECTION_STRING={shlex.quote(each.connection_string)}")
    for name, value in {**ready.identity.environment, **ANY_GROUP}.items() if ready.identity else ():
        screen.write(f"export {name}={shlex.quote(value)}")
    screen.say("ready; Ctrl-C stops it")
