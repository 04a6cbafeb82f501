"""`sbpair relay`: a reverse proxy on both sides, requests, the listeners of both sides, and the hybrid connections."""

import asyncio
import base64
import codecs
import logging
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.completion import relays
from sbpair.cli.logs import utc
from sbpair.cli.options.common import CONFIG, INTERVAL, TIMEOUT, WATCH, Output, argument, duration, flag, option
from sbpair.cli.options.values import resource_group_of, selected_relay
from sbpair.cli.progress.reporting import watch_readings
from sbpair.cli.render.screen import Screen, clean, plural
from sbpair.cli.render.table import columns, cut, wrapped
from sbpair.errors import AccessError, ExitCode, InDoubt, MachineLacks, SbpairError, Unavailable, UsageError
from sbpair.model.pair import Side
from sbpair.model.queues import Difference
from sbpair.operating_system import end_of_input
from sbpair.operating_system.files import open_bytes
from sbpair.operating_system.read_ahead import ReadAhead, read_chunks

if TYPE_CHECKING:
    from sbpair.cli.results.relay import ProvisionedSide
    from sbpair.model.pair import ResourceGroup
    from sbpair.relay.listener_counts import SideListeners
    from sbpair.relay.relay_client import AsyncRelayResponse
    from sbpair.relay.relay_settings import ConfiguredRelay
    from sbpair.relay.reverse_proxy import ProxiedRequest

REDRAW_SECONDS = 0.5
SHOWN_REQUESTS, SHOWN_WARNINGS = 12, 3
MAX_PATH = 40
STDIN = "-"
MAX_REPEATABLE = 16 * 1024 * 1024
"""A longer body is streamed, and not reissued once it was begun."""

NAME = argument("NAME", "Relay in the configuration file", complete=relays)


def group() -> None:
    """Serve and call a service behind two endpoints of Azure Relay.

    A relay is a hybrid connection in each of two namespaces: [relays.NAME] in the configuration file.

    Examples:
      sbpair relay listen service --to http://localhost:8080
      sbpair relay send service '/orders?id=7'
      sbpair relay status

    See also: sbpair help relay
    """


def listen(
    *,
    name: str = NAME,
    to: str = option("--to URL", "Server that gets the requests, such as http://localhost:8080", default=...),
    max_requests: int = option("--max-requests N", "Requests that are served at once", default=100, at_least=1),
    grace: float = duration(
        "--grace DURATION", "After Ctrl-C: time to finish accepted requests", default="30s", at_most=3600
    ),
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Listen on both sides of a relay, and pass requests and WebSockets on to a server.

    A terminal shows a table of sides and requests. Elsewhere each request is one line when it has ended, of JSON with
    -o json or jsonl. If the server cannot be reached, senders get 502. Ctrl-C finishes accepted requests; the second
    one stops at once.

    Examples:
      sbpair relay listen service --to http://localhost:8080
      sbpair relay listen service --to http://localhost:8080/api -o jsonl

    Exit codes: 0 stopped by a signal; 3 an answer was lost; 2 a wrong setting
    """
    from sbpair.relay.reverse_proxy import checked_target

    target = checked_target(to)
    relay = selected_relay(name, config, screen)
    # It logs the events that are printed here.
    logging.getLogger("sbpair.relay").setLevel(logging.CRITICAL)
    shown = RequestBoard(screen, relay, target)

    async def main(stop: asyncio.Event, hurry: asyncio.Event) -> None:
        shown.on_broken = stop.set
        await _serve(relay, target, max_requests, grace, shown, stop, hurry)

    run_gracefully(main, *relay.endpoints.values())
    shown.finish()
    return ExitCode.PARTIAL_OR_FINDINGS if shown.lost else ExitCode.DONE


async def _serve(
    relay: "ConfiguredRelay",
    target: str,
    max_requests: int,
    grace: float,
    shown: "RequestBoard",
    stop: asyncio.Event,
    hurry: asyncio.Event,
) -> None:
    """Serve until `stop`, and finish accepted requests within `grace`, unless `hurry`."""
    from sbpair.relay.aio import RelayListener
    from sbpair.relay.reverse_proxy import ReverseProxy

    async with ReverseProxy(relay.pair, target, shown.on_change) as proxy:
        listener = RelayListener(
            relay.pair,
            proxy.handle,
            on_websocket=proxy.serve_socket,
            on_event=shown.on_event,
            max_requests=max_requests,
        )
        drawing = asyncio.create_task(shown.redraw(), name="draw the table of requests")
        # A side that does not answer is waited for: a signal ends that, too.
        starting = asyncio.create_task(listener.start(), name="begin to listen")
        try:
            await stop.wait()
            shown.stopping()
            closing = asyncio.create_task(listener.close(grace), name="finish accepted requests")
            hurried = asyncio.create_task(hurry.wait(), name="wait for a second signal")
            await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not closing.done():
                closing.cancel()
            await asyncio.gather(closing, hurried, return_exceptions=True)
        finally:
            drawing.cancel()
            await listener.close(0)
            await asyncio.gather(drawing, starting, return_exceptions=True)


class RequestBoard:
    """The sides and the requests of a listener: a table on a terminal, lines elsewhere."""

    def __init__(self, screen: Screen, relay: "ConfiguredRelay", target: str) -> None:
        self._screen = screen
        self._relay = relay
        self._target = target
        self._sides = dict.fromkeys(("primary", "secondary"), "connecting")
        self._reasons = dict.fromkeys(self._sides, "")
        self._served = dict.fromkeys(self._sides, 0)
        self._open: dict[int, ProxiedRequest] = {}
        self._ended: deque[ProxiedRequest] = deque(maxlen=SHOWN_REQUESTS)
        self._drawing = screen.redrawing()
        self._warnings: deque[str] = deque(maxlen=SHOWN_WARNINGS)
        self._is_stopping = False
        self._failure: Exception | None = None
        self.on_broken: Callable[[], object] = lambda: None
        self.lost = 0

    def on_event(self, event: Any) -> None:
        """Note an event of the listener, and print it unless the table shows it."""
        from sbpair.relay.answer_verdicts import TRACKING
        from sbpair.relay.events import RelayAnswerLost, RelayRequestFailed, RelaySideDown, RelaySideUp

        if isinstance(event, RelaySideUp):
            self._sides[event.side], self._reasons[event.side] = "up", ""
        elif isinstance(event, RelaySideDown):
            self._sides[event.side], self._reasons[event.side] = "down", event.reason.partition(TRACKING)[0].rstrip()
        elif isinstance(event, RelayAnswerLost):
            self.lost += 1
        if self._drawing is not None:
            # A line of its own would be drawn over.
            if not isinstance(event, (RelaySideUp, RelaySideDown, RelayRequestFailed)):
                self._warnings.append(f"{utc(None)} {event}")
        elif isinstance(event, RelaySideUp):
            self._screen.say(str(event))
        else:
            self._screen.warn(str(event))

    def on_change(self, request: "ProxiedRequest") -> None:
        """Note a request that begins, is answered, or ends."""
        if request.seconds is None:
            self._open[request.number] = request
            return
        self._open.pop(request.number, None)
        self._ended.appendleft(request)
        self._served[request.side] += 1
        if self._drawing is None and self._failure is None:
            try:
                self._print(request, request.seconds)
            except (OSError, MachineLacks) as error:
                # The request is answered all the same, and so are other accepted ones.
                self._failure = error
                self.on_broken()

    def _print(self, request: "ProxiedRequest", seconds: float) -> None:
        """Print a request that has ended. Raises BrokenPipeError, MachineLacks."""
        if self._screen.output is Output.TABLE:
            problem = f": {request.problem}" if request.problem else ""
            took = f"{seconds:.3f} s"
            line = f"{utc(None)} {request.side} {request.method} {request.path} {request.status} {took}{problem}"
            self._screen.write(clean(line))
        else:
            from sbpair.cli.results.relay import ServedRequest

            served = (request.side, request.method, request.path, request.status, seconds, request.problem)
            self._screen.show_line(ServedRequest(utc(None), *served))

    def stopping(self) -> None:
        self._is_stopping = True
        if self._drawing is None:
            self._screen.say(f"stopping: {plural(len(self._open), 'request')} to finish; Ctrl-C again stops at once")

    async def redraw(self) -> None:
        """Draw the table at intervals, if there is a terminal for it."""
        while self._drawing is not None:
            self._drawing.draw(self.table(), self._foot())
            await asyncio.sleep(REDRAW_SECONDS)

    def finish(self) -> None:
        """Show the last state. Raises the error of an output that is closed."""
        if self._failure is not None:
            raise self._failure
        if self._drawing is not None:
            self._drawing.draw(self.table(), "stopped")
        served = ", ".join(f"{count} by the {side}" for side, count in self._served.items())
        lost = f"; {plural(self.lost, 'answer')} lost" if self.lost else ""
        self._screen.say(f"stopped: {plural(sum(self._served.values()), 'request')}, {served}{lost}")

    def table(self) -> list[str]:
        """Return the lines of the table: the sides, open requests, the latest ones that ended, and warnings."""
        open_on = {side: sum(each.side == side for each in self._open.values()) for side in self._sides}
        sides = [
            (side, state, open_on[side], self._served[side], self._reasons[side]) for side, state in self._sides.items()
        ]
        lines = columns([("SIDE", "STATE", "OPEN", "SERVED", "WHY"), *sides])
        newest = [*reversed(self._open.values()), *self._ended][:SHOWN_REQUESTS]
        if newest:
            rows = [_request_row(each) for each in newest]
            lines += ["", *columns([("SIDE", "METHOD", "PATH", "STATUS", "TOOK", "WHY"), *rows])]
        return [*lines, *(line for each in self._warnings for line in wrapped(clean(each)))]

    def _foot(self) -> str:
        waits = "finishing accepted requests - Ctrl-C stops at once"
        return waits if self._is_stopping else f"{self._relay.name} to {self._target} - Ctrl-C to stop"


def _request_row(request: "ProxiedRequest") -> tuple[object, ...]:
    took = time.monotonic() - request.started if request.seconds is None else request.seconds
    status = str(request.status) if request.status else "…"
    return request.side, request.method, cut(request.path, MAX_PATH), status, f"{took:.1f} s", request.problem


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError("--header is not NAME: VALUE", hint="write -H 'Accept: text/plain'")
    return name.strip(), value.strip()


def send(
    *,
    name: str = NAME,
    path: str = argument("[PATH]", "What follows the endpoint's path, such as /orders?id=7", default=""),
    method: str | None = option("--request -X METHOD", "Method [default: GET; POST with --data]"),
    header: list[tuple[str, str]] | None = option(
        "--header -H HEADER", "Header such as 'Accept: text/plain'; repeatable", parse=_header
    ),
    data: str | None = option("--data @FILE|-", "Body: a file, or - for stdin"),
    reissue: Literal["safe", "always"] = option(
        "--reissue WHEN", "safe: what cannot run twice; always: any request", default="safe"
    ),
    first: Side | None = option("--first SIDE", "Side to try first [default: a random one]"),
    timeout: float = duration(
        "--timeout DURATION", "Time until an answer begins, and of each pause in it", default="70s", at_most=86_400
    ),
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Send an HTTP request to a relay's service, and print the answer.

    Turns to the other side if one is not available. The body goes to stdout, status and side go to stderr. A request
    that may have run is sent again only if its method is idempotent, or with --reissue always.

    Examples:
      sbpair relay send service '/orders?id=7'
      sbpair relay send service /orders -X PUT --data @order.json
      echo hello | sbpair relay send service /orders --data -

    Exit codes: 3 the answer's status is 400 or more, or the request is in doubt; 5 access denied; 6 neither side is
    available
    """
    if data is not None and data != STDIN and not (data.startswith("@") and len(data) > 1):
        raise UsageError("--data is neither @FILE nor -", hint="write --data @body.json, or --data - for stdin")
    relay = selected_relay(name, config, screen)
    body = None if data is None else _body(data)
    from sbpair.relay.aio import RelayClient

    failed: list[str] = []

    async def main() -> int:
        if data == STDIN and sys.stdin.isatty():
            screen.say(f"type the body; {end_of_input()} on a line of its own ends it")
        report = _reporter(screen, failed)
        async with RelayClient(relay.pair, first=first, timeout=timeout, on_event=report) as client:
            default = "GET" if data is None else "POST"
            verb = default if method is None else method
            response = await client.request(verb, path, headers=header or [], body=body, reissue=reissue)
            for each in failed:
                screen.warn(each)
            async with response:
                await _print(screen, response)
                return response.status

    try:
        status = run(main(), *relay.endpoints.values())
    except InDoubt as error:
        error.exit_code = ExitCode.PARTIAL_OR_FINDINGS
        error.hint = error.hint.replace('reissue="always"', "--reissue always")
        raise
    return ExitCode.PARTIAL_OR_FINDINGS if status >= 400 else ExitCode.DONE


def _body(data: str) -> bytes | AsyncIterator[bytes]:
    """Return the body: whole if it is a file of a moderate size. Raises UsageError, MachineLacks."""
    if data == STDIN:
        if sys.stdin is None:
            raise UsageError("--data -: stdin is closed", hint="name a file: --data @FILE")
        return ReadAhead(read_chunks(sys.stdin.fileno(), "stdin"))
    path = Path(data[1:])
    if path.is_dir():
        raise UsageError(f"--data: {path} is a directory", hint="name a file")
    try:
        descriptor = open_bytes(path)
        if os.fstat(descriptor).st_size > MAX_REPEATABLE or not path.is_file():
            return ReadAhead(read_chunks(descriptor, str(path)))
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"--data: {path} cannot be read: {error.strerror}", hint="name a file") from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error


def _reporter(screen: Screen, failed: list[str]) -> Any:
    """Return a function that collects failures of a side: if no other side answers, the error has them."""
    from sbpair.relay.events import RelayRolesSwapped, RelaySideFailed

    # It logs the events that are printed here.
    logging.getLogger("sbpair.relay.events").setLevel(logging.CRITICAL)

    def report(event: object) -> None:
        if isinstance(event, RelaySideFailed):
            failed.append(str(event))
        elif not isinstance(event, RelayRolesSwapped):
            screen.detail(str(event))

    return report


async def _print(screen: Screen, response: "AsyncRelayResponse") -> None:
    from sbpair.cli.results.relay import AnsweredRequest, HttpHeader

    said = f"{response.status} {response.reason}".rstrip()
    if screen.output is not Output.TABLE:
        body = await response.read()
        try:
            text, encoded = body.decode(), None
        except UnicodeDecodeError:
            text, encoded = None, base64.b64encode(body).decode()
        headers = tuple(HttpHeader(*each) for each in response.headers.items())
        screen.show(AnsweredRequest(response.status, response.reason, response.side, headers, text, encoded))
        return
    # It explains the exit code of a failure.
    screen.say(f"{said} from the {response.side}", always=response.status >= 400)
    is_shown = sys.stdout is not None and sys.stdout.isatty()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for part in response:
        screen.write_bytes(_harmless(decoder.decode(part)).encode() if is_shown else part)


def _harmless(text: str) -> str:
    """Return text for a terminal: without control characters that could change it."""
    return "".join(each if each.isprintable() or each in "\t\n" else "\ufffd" for each in text)


def status(
    *,
    name: str | None = argument("[NAME]", "Relay in the configuration file", default=None, complete=relays),
    timeout: float = TIMEOUT,
    fail_on: Literal["any", "both", "none"] | None = option(
        "--fail-on SIDES", "Exit 6 if any side, both or none have no listeners [default: any]", excludes="--watch"
    ),
    watch: bool = WATCH,
    interval: float = INTERVAL,
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Show how many listeners each side of a relay has.

    Needs Manage on both hybrid connections. --watch refreshes a terminal in place; elsewhere it prints one line for
    each reading, of JSON with -o json or jsonl.

    Examples:
      sbpair relay status service
      sbpair relay status service --watch --interval 30s

    Exit codes: 6 a side has no listeners or cannot be reached; 5 access denied; 2 a hybrid connection does not exist.
    --watch exits 0 after Ctrl-C
    """
    relay = selected_relay(name, config, screen)
    from sbpair.cli.results.relay import RelayStatus
    from sbpair.relay.listener_counts import read_listeners

    async def read() -> "list[SideListeners]":
        return await read_listeners(relay, timeout)

    def shown(found: "list[SideListeners]") -> RelayStatus:
        return RelayStatus(utc(None), relay.name, tuple(found))

    if watch:
        return watch_readings(
            screen,
            interval,
            read,
            table=_status_table,
            show_line=lambda found: screen.write(_status_line(found)),
            result=shown,
        )
    found = run(read())
    screen.show(shown(found), _status_table(found))
    screen.hints(each.error for each in found if each.error)
    return exit_code(found, fail_on or "any")


def exit_code(found: "list[SideListeners]", fail_on: str) -> int:
    """Return the exit code: errors other than an absent namespace come first."""
    for each in found:
        if each.error is not None and not isinstance(each.error, (AccessError, Unavailable)):
            return each.error.exit_code
    if any(isinstance(each.error, AccessError) for each in found):
        return ExitCode.ACCESS
    without = sum(not each.serves for each in found)
    limits = {"any": 1, "both": len(found), "none": len(found) + 1}
    return ExitCode.UNAVAILABLE if without >= limits[fail_on] else ExitCode.DONE


def _status_table(found: "list[SideListeners]") -> list[str]:
    rows = [
        (
            each.side,
            f"{each.path} in {each.namespace}",
            "?" if each.listeners is None else each.listeners,
            each.reason or ("" if each.listeners else "no listeners"),
        )
        for each in found
    ]
    return columns([("SIDE", "ENDPOINT", "LISTENERS", "WHY"), *rows])


def _status_line(found: "list[SideListeners]") -> str:
    sides = ", ".join(f"{each.side} {'?' if each.listeners is None else each.listeners}" for each in found)
    return f"{utc(None)} listeners: {sides}"


def provision(
    *,
    name: str = NAME,
    dry_run: bool = flag("--dry-run", "Only print what would be created"),
    strict: bool = flag("--strict", "Exit 3 if an existing hybrid connection differs"),
    subscription: str | None = option("--subscription ID", "Subscription id [env: AZURE_SUBSCRIPTION_ID]"),
    resource_group: str | None = option("--resource-group NAME", "Resource group [env: AZURE_RESOURCE_GROUP]"),
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Create the missing hybrid connections of a relay in both namespaces.

    Uses Azure Resource Manager, as the identity that is signed in. Senders need a token. Existing hybrid connections
    are compared and never changed. Needs the extra sbpair[relay].

    Examples:
      sbpair relay provision service --dry-run
      sbpair relay provision service --resource-group relays

    Exit codes: 3 one differs, with --strict; 5 access denied; 6 unreachable; 7 azure-mgmt-relay is not installed
    """
    group = resource_group_of("relay provision", subscription, resource_group)
    relay = selected_relay(name, config, screen)
    from sbpair.cli.results.relay import RelayProvisionResult

    found = run(_provision(relay, group, dry_run=dry_run))
    rows = [
        (each.side, f"{each.path} in {each.namespace}", each.outcome.replace("_", " "), _note(each)) for each in found
    ]
    table = columns([("SIDE", "ENDPOINT", "OUTCOME", "NOTE"), *rows])
    screen.show(RelayProvisionResult(relay.name, dry_run, tuple(found)), table)
    screen.hints(each.error for each in found if each.error)
    if errors := [each.error for each in found if each.error]:
        return errors[0].exit_code
    drifted = any(each.outcome == "drifted" for each in found)
    return ExitCode.PARTIAL_OR_FINDINGS if strict and drifted else ExitCode.DONE


def _note(side: "ProvisionedSide") -> str:
    return side.reason or "; ".join(
        f"{each.property} is {each.actual}, expected {each.expected}" for each in side.differences
    )


async def _provision(relay: "ConfiguredRelay", group: "ResourceGroup", *, dry_run: bool) -> "list[ProvisionedSide]":
    """Provision one side after the other: an error of one does not keep the other from being tried."""
    from sbpair.azure.arm import HybridDescription, open_relay_arm
    from sbpair.cli.results.relay import ProvisionedSide

    wanted = HybridDescription()
    done = []
    for side, endpoint in relay.endpoints.items():
        path = relay.pair[side].path
        made = ProvisionedSide(side, endpoint.name, path)
        done.append(made)
        try:
            async with open_relay_arm(endpoint, group) as namespace:
                existing = await namespace.find(path)
                if existing is None and not dry_run:
                    await namespace.create(path, wanted)
        except SbpairError as error:
            made.error = error
            continue
        if existing is None:
            made.outcome = "would_create" if dry_run else "created"
            continue
        actual = asdict(existing)
        names = {"requires_client_authorization": "requiresClientAuthorization", "user_metadata": "userMetadata"}
        made.differences = tuple(
            Difference(names[key], value, actual[key]) for key, value in asdict(wanted).items() if actual[key] != value
        )
        made.outcome = "drifted" if made.differences else "existing"
    return done


SUBCOMMANDS = {"listen": listen, "send": send, "status": status, "provision": provision}
