"""`sbpair send`: options into one call of `sbpair.message_io.send_lines`, and its account into output."""

import os
import shlex
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.options.common import Display, OutboxFile, PairSelection, Rate, options
from sbpair.cli.options.durations import seconds_of
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render.screen import Document, Screen, clean, columns
from sbpair.errors import ExitCode, MachineLacks, UsageError

if TYPE_CHECKING:
    import asyncio

    from sbpair.message_io.send_lines import SendResult
    from sbpair.model.pair import Pair

SCHEMA = "sbpair/send/1"
STDIN = "-"
SHORT_SECONDS = 15.0
IDS_SHOWN = 3
JSON_ENDINGS = (".jsonl", ".ndjson")


class Format(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"


class OnFailure(StrEnum):
    WAIT = "wait"
    RAISE = "raise"
    BACKLOG_NOW = "backlog-now"


@options
def command(
    *,
    entity: Annotated[str, typer.Argument(metavar="QUEUE|TOPIC", help="Where to, in the primary namespace")],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="What to send, a message a line; - is stdin")] = STDIN,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            metavar="lines|jsonl",
            help="What a line is: the body of a message, or an object with its fields (lines; jsonl for .jsonl and"
            " .ndjson)",
        ),
    ] = None,
    rate: Rate = None,
    skip: Annotated[int, typer.Option("--skip", metavar="N", min=0, help="Leave out the first N lines (0)")] = 0,
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            "--on-failure",
            metavar="wait|raise|backlog-now",
            help="What to do about a failed send until the failover: try on, end, or go to the backlog at once (wait)",
        ),
    ] = OnFailure.WAIT,
    failover_interval: Annotated[
        str | None,
        typer.Option(
            "--failover-interval",
            metavar="DURATION",
            help="How long the primary may fail before its messages go to the backlog; 0 for at once (1m, or what the"
            " file says)",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="How long one send may take (1m and the failover interval)"),
    ] = None,
    to_backlog: Annotated[
        bool, typer.Option("--to-backlog", help="Fail over by command: all of it goes to the backlog")
    ] = False,
    outbox: OutboxFile = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Send lines to a queue or topic, or into the backlog while the primary is away.

    A message a line, in their order, from a file or from stdin as they come; empty lines are left out. Neighbours go
    in batches; those of different sessions or partition keys do not share one. Needs Send on both namespaces. Bring
    the backlog back with sbpair syphon.

    With --format jsonl a line is an object: body is text (or body_base64 bytes), and message_id, session_id,
    partition_key, correlation_id, subject, to, reply_to, reply_to_session_id, content_type, ttl (seconds, or 1h30m),
    scheduled (2026-12-01T10:00:00Z) and properties, an object of text, numbers, true, false and null, are as you like.
    A file is read through first: a line that is wrong is named before anything is sent. On stdin it ends the sending,
    after what came before it.

    The first message that cannot be sent ends it. Everything before line "next_line" has been accepted and need not be
    sent again: go on with --skip. A message has an id before it is first tried; those that were sent again without an
    answer are "doubtful", and may arrive twice. What is "in_doubt" was sent last, and never answered.

    A failure of the primary is waited out for the failover interval; then messages go to the backlog, and back to the
    primary when a ping succeeds. --to-backlog rehearses that with the primary up. With --outbox FILE, messages that
    neither side takes are kept in that file, on the disk before they count as accepted; what is still there at the end
    is delivered by the next command or client that is given the file.

    The first SIGINT or SIGTERM finishes what is in hand, the second gives that up, in doubt; both end with the receipt.

    JSON; the five counts after "messages" add up to it:

      {"schema": "sbpair/send/1", "entity": "", "messages": 0, "primary": 0, "backlog": 0, "outbox": 0, "in_doubt": 0,
       "failed": 0, "next_line": 1, "doubtful": [], "failure": {"line": 1, "reason": "", "hint": ""},
       "seconds": 0.0, "stopped": false}

    "failure" is null where there was none.

    Exit codes: 0 all of it was accepted, by a side or the outbox; 3 some was, and then a line was wrong or a message
    refused; 2 the first line was wrong, or one of a file; 4 the outbox is another pair's, or in use; 5 access; 6
    neither side, or with --on-failure raise not the primary, took a message in time; 7 a file cannot be read or
    written; 130 interrupted.
    """
    screen = Screen(display)
    pair = _pair(connection, screen, failover_interval)
    seconds = None if timeout is None else seconds_of("--timeout", timeout, minimum=1, limit=3600)
    if seconds is not None and seconds <= SHORT_SECONDS:
        screen.warn(f"--timeout {seconds:g}s leaves a partitioned entity no time to turn to another partition")
    from sbpair.backlog import check_path
    from sbpair.move.rate_limit import read_rate

    check_path(entity, shorten="give the name of a queue or topic")
    limit = None if rate is None else read_rate(rate)
    from sbpair.cli.progress.send_progress import SendProgress
    from sbpair.message_io import line_reader, message_json, send_lines

    parse = message_json.of_json if _is_json(form, file) else message_json.of_bytes
    place = "stdin" if file == STDIN else file

    with _opened(file) as descriptor:
        if parse is message_json.of_json and stat.S_ISREG(os.fstat(descriptor).st_mode):
            line_reader.check(descriptor, place, parse, skip)
        elif os.isatty(descriptor):
            screen.say("a message a line; Ctrl-D ends")

        async def send(stop: "asyncio.Event", hurry: "asyncio.Event") -> "send_lines.SendResult":
            with SendProgress(screen, entity, typing=os.isatty(descriptor)) as shown:
                return await send_lines.run(
                    pair,
                    entity,
                    line_reader.LineReader(descriptor, place, parse, skip),
                    rate=limit,
                    on_failure=on_failure.value,
                    seconds=seconds,
                    to_backlog=to_backlog,
                    outbox=outbox,
                    stop=stop,
                    hurry=hurry,
                    on_event=shown,
                )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fed = run_gracefully(send)
    told = document(fed, entity)
    screen.result(told, [told], table(fed))
    _say_where_to_go_on(screen, fed, entity, file)
    return ExitCode.INTERRUPTED if fed.stopped else fed.exit_code


def document(fed: "SendResult", entity: str) -> Document:
    """The account as its JSON contract has it."""
    error = fed.error
    return {
        "schema": SCHEMA,
        "entity": entity,
        "messages": fed.messages,
        **asdict(fed.delivered),
        "in_doubt": fed.in_doubt,
        "failed": fed.failed,
        "next_line": fed.next_line,
        "doubtful": list(fed.doubtful),
        "failure": None if error is None else {"line": fed.line, "reason": error.message, "hint": error.hint},
        "seconds": round(fed.seconds, 3),
        "stopped": fed.stopped,
    }


def table(fed: "SendResult") -> Iterator[str]:
    """The account for people."""
    counted = {**asdict(fed.delivered), "in doubt": fed.in_doubt, "failed": fed.failed}
    rows = [("all", fed.messages), *((name, count) for name, count in counted.items())]
    yield from columns([("MESSAGES", "COUNT"), *rows])
    if fed.doubtful:
        some = ", ".join(fed.doubtful[:IDS_SHOWN]) + (", …" if len(fed.doubtful) > IDS_SHOWN else "")
        yield clean(f"may arrive twice: {len(fed.doubtful)} ({some})")


def _say_where_to_go_on(screen: Screen, fed: "SendResult", entity: str, file: str) -> None:
    if fed.error is not None and not fed.stopped:
        where = "" if fed.line is None else f"line {fed.line}: "
        why = "; ".join(part.rstrip(".") for part in (fed.error.message, fed.error.hint) if part)
        screen.warn(f"{where}{why}")
    if (fed.error is not None or fed.stopped) and fed.next_line > 1:
        what = f" {shlex.quote(file)}" if file != STDIN else ""
        screen.say(f"go on with: sbpair send {shlex.quote(entity)}{what} --skip {fed.next_line - 1}")


def _pair(connection: PairSelection, screen: Screen, failover_interval: str | None) -> "Pair":
    pair = chosen(connection, screen)
    if failover_interval is None:
        return pair
    return replace(pair, failover_interval=seconds_of("--failover-interval", failover_interval, limit=3600))


def _is_json(form: Format | None, file: str) -> bool:
    return file.lower().endswith(JSON_ENDINGS) if form is None else form is Format.JSONL


@contextmanager
def _opened(file: str) -> Iterator[int]:
    """The descriptor of a file, or of stdin. Raises UsageError, and MachineLacks where it may not be read."""
    if file == STDIN:
        if sys.stdin is None:
            raise MachineLacks("there is no stdin to read from", hint="name a file")
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        raise UsageError(f"there is no file {file}", hint="check the path; - is stdin") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineLacks(f"{file} cannot be read: {reason}", hint="check its permissions") from error
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise UsageError(f"{file} cannot be read: it is a directory", hint="name a file; - is stdin")
        yield descriptor
    finally:
        os.close(descriptor)
