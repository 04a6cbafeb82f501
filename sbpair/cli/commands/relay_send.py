"""`sbpair relay send`: one request by `sbpair.relay.aio.RelayClient`; its answer to stdout."""

import asyncio
import base64
import codecs
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.completion import relays
from sbpair.cli.options.common import CONFIG, Output, argument, option
from sbpair.cli.options.values import positive_seconds_of, selected_relay
from sbpair.cli.render.screen import Screen
from sbpair.errors import ExitCode, InDoubt, MachineLacks, UsageError
from sbpair.operating_system import end_of_input
from sbpair.operating_system.files import open_bytes

if TYPE_CHECKING:
    from sbpair.relay.relay_client import AsyncRelayResponse

SCHEMA = "sbpair/relay-send/1"
STDIN = "-"
PART = 64 * 1024
MAX_REPEATABLE = 16 * 1024 * 1024
"""A longer body is streamed, and not reissued once it was begun."""


def send(
    *,
    name: str = argument("NAME", "Relay in the configuration file", complete=relays),
    path: str = argument("[PATH]", "What follows the endpoint's path, such as /orders?id=7", default=""),
    method: str | None = option("--request -X METHOD", "Method [default: GET; POST with --data]"),
    header: list[str] | None = option("--header -H HEADER", "Header such as 'Accept: text/plain'; repeatable"),
    data: str | None = option("--data @FILE|-", "Body: a file, or - for stdin"),
    reissue: Literal["safe", "always"] = option(
        "--reissue WHEN", "safe: what cannot run twice; always: any request", default="safe"
    ),
    first: Literal["primary", "secondary"] | None = option("--first SIDE", "Side to try first [default: a random one]"),
    timeout: str = option("--timeout DURATION", "Time until an answer begins, and of each pause in it", default="70s"),
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Send an HTTP request to a relay's service, and print the answer.

    Turns to the other side if one is not available. The body goes to stdout, status and side go to stderr. A request
    that may have run is sent again only if its method is idempotent, or with --reissue always.

    Examples:
      sbpair relay send service /orders?id=7
      sbpair relay send service /orders -X PUT --data @order.json
      echo hello | sbpair relay send service /orders --data -

    Exit codes: 3 the answer's status is 400 or more, or the request is in doubt; 5 access denied; 6 neither side is
    available
    """
    seconds = positive_seconds_of("--timeout", timeout, limit=86_400)
    headers = [_header(each) for each in header or ()]
    if data is not None and data != STDIN and not (data.startswith("@") and len(data) > 1):
        raise UsageError("--data is neither @FILE nor -", hint="write --data @body.json, or --data - for stdin")
    relay = selected_relay(name, config, screen)
    body = None if data is None else _body(data, screen)
    from sbpair.relay.aio import RelayClient

    failed: list[str] = []

    async def main() -> int:
        report = _reporter(screen, failed)
        async with RelayClient(relay.pair, first=first, timeout=seconds, on_event=report) as client:
            default = "GET" if data is None else "POST"
            verb = default if method is None else method
            response = await client.request(verb, path, headers=headers, body=body, reissue=reissue)
            for each in failed:
                screen.warn(each)
            async with response:
                await _print(screen, response)
                return response.status

    try:
        status = run(main())
    except InDoubt as error:
        error.exit_code = ExitCode.PARTIAL_OR_FINDINGS
        error.hint = error.hint.replace('reissue="always"', "--reissue always")
        raise
    return ExitCode.PARTIAL_OR_FINDINGS if status >= 400 else ExitCode.DONE


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError("--header is not NAME: VALUE", hint="write -H 'Accept: text/plain'")
    return name.strip(), value.strip()


def _body(data: str, screen: Screen) -> bytes | AsyncIterator[bytes]:
    """Return the body: whole if it is a file of a moderate size. Raises UsageError, MachineLacks."""
    if data == STDIN:
        if sys.stdin is None:
            raise UsageError("--data -: stdin is closed", hint="name a file: --data @FILE")
        if sys.stdin.isatty():
            screen.say(f"type the body; {end_of_input()} on a line of its own ends it")
        return _parts(sys.stdin.fileno(), "stdin")
    path = Path(data[1:])
    if path.is_dir():
        raise UsageError(f"--data: {path} is a directory", hint="name a file")
    try:
        descriptor = open_bytes(path)
        if os.fstat(descriptor).st_size > MAX_REPEATABLE or not path.is_file():
            return _parts(descriptor, str(path))
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"--data: {path} cannot be read: {error.strerror}", hint="name a file") from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error


async def _parts(descriptor: int, place: str) -> AsyncIterator[bytes]:
    """Iterate over a file. Each read is in a daemon thread: one that waits does not keep the program from ending."""
    loop = asyncio.get_running_loop()

    def read(done: "asyncio.Future[bytes | OSError]") -> None:
        try:
            found: bytes | OSError = os.read(descriptor, PART)
        except OSError as error:
            found = error
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(found))

    while True:
        done: asyncio.Future[bytes | OSError] = loop.create_future()
        threading.Thread(target=read, args=(done,), name="read the body", daemon=True).start()
        part = await done
        if isinstance(part, OSError):
            raise MachineLacks(f"{place} cannot be read: {part.strerror}", hint="check what it is") from part
        if not part:
            return
        yield part


def _reporter(screen: Screen, failed: list[str]) -> Any:
    """Return a function that collects failures of a side: if no other side answers, the error has them."""
    import logging

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
    said = f"{response.status} {response.reason}".rstrip()
    if screen.output is not Output.TABLE:
        body = await response.read()
        try:
            shown: dict[str, object] = {"body": body.decode()}
        except UnicodeDecodeError:
            shown = {"body_base64": base64.b64encode(body).decode()}
        headers = [{"name": name, "value": value} for name, value in response.headers.items()]
        document = {"status": response.status, "reason": response.reason, "side": response.side, "headers": headers}
        screen.result(SCHEMA, document | shown, [])
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
