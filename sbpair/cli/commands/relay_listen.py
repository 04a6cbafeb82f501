"""`sbpair relay listen`: a reverse proxy on both sides of a relay, with its requests as they come."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.completion import relays
from sbpair.cli.logs import utc
from sbpair.cli.options.common import CONFIG, Output, argument, duration, option
from sbpair.cli.options.values import selected_relay
from sbpair.cli.render.screen import Redrawing, Screen, clean, plural, rounded
from sbpair.cli.render.table import columns, cut, wrapped
from sbpair.errors import ExitCode, MachineLacks

if TYPE_CHECKING:
    from sbpair.relay.relay_settings import ConfiguredRelay
    from sbpair.relay.reverse_proxy import ProxiedRequest

SCHEMA = "sbpair/relay-request/1"
REDRAW_SECONDS = 0.5
SHOWN_REQUESTS, SHOWN_WARNINGS = 12, 3
MAX_PATH = 40


def listen(
    *,
    name: str = argument("NAME", "Relay in the configuration file", complete=relays),
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

    run_gracefully(main)
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
        self._drawing = Redrawing(screen) if screen.output is Output.TABLE and screen.redrawable else None
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
            self._screen.json_line(SCHEMA, _document(request))

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
            rows = [_row(each) for each in newest]
            lines += ["", *columns([("SIDE", "METHOD", "PATH", "STATUS", "TOOK", "WHY"), *rows])]
        return [*lines, *(line for each in self._warnings for line in wrapped(clean(each)))]

    def _foot(self) -> str:
        waits = "finishing accepted requests - Ctrl-C stops at once"
        return waits if self._is_stopping else f"{self._relay.name} to {self._target} - Ctrl-C to stop"


def _row(request: "ProxiedRequest") -> tuple[object, ...]:
    took = time.monotonic() - request.started if request.seconds is None else request.seconds
    status = str(request.status) if request.status else "…"
    return request.side, request.method, cut(request.path, MAX_PATH), status, f"{took:.1f} s", request.problem


def _document(request: "ProxiedRequest") -> dict[str, object]:
    return {
        "time": utc(None),
        "side": request.side,
        "method": request.method,
        "path": request.path,
        "status": request.status,
        "seconds": rounded(request.seconds),
        "problem": request.problem,
    }
