"""`sbpair send`: runs `sbpair.message_io.send_lines` and prints its receipt."""

import io
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sbpair.backlog import TRANSFER_SEGMENT
from sbpair.cli.command_loop import blame_clock, run_gracefully, suggest_entities
from sbpair.cli.next_command import next_command, with_options
from sbpair.cli.options import moves
from sbpair.cli.options.common import NamespaceSelection, argument, duration, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.values import entity_names
from sbpair.cli.render.screen import Screen, clean, plural, some
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, MachineLacks, ServiceRefused, UsageError
from sbpair.operating_system import end_of_input
from sbpair.operating_system.files import check_stdin

if TYPE_CHECKING:
    import asyncio

    from sbpair.message_io.line_reader import LineReader
    from sbpair.message_io.send_lines import SendResult
    from sbpair.model.pair import Pair

STDIN = "-"
SHORT_SECONDS = 15.0
JSON_ENDINGS = (".jsonl", ".ndjson")


def command(
    *,
    entity: str = argument("QUEUE|TOPIC", "Destination in the primary; SIDE:QUEUE sends to another, without failover"),
    file: str = argument("[FILE]", "File with one message a line; - is stdin", default=STDIN),
    form: Literal["lines", "jsonl"] | None = option(
        "--format FORMAT", "lines: each line is a body; jsonl: an object [default: jsonl for *.jsonl and *.ndjson]"
    ),
    skip: int = option("--skip N", "Skip the first N lines", at_least=0, default=0),
    rate: float | None = moves.RATE,
    on_failure: Literal["wait", "raise", "backlog-now"] | None = option(
        "--on-failure ACTION", "Until failover: wait and retry, raise, or backlog-now: go there now [default: wait]"
    ),
    failover_interval: float | None = duration(
        "--failover-interval DURATION",
        "Failure time before failover; 0: at once [default: the file's, or 1m]",
        at_least=0,
        at_most=3600,
    ),
    timeout: float | None = duration(
        "--timeout DURATION", "Time limit of one send [default: failover interval + 1m]", at_least=1, at_most=3600
    ),
    to_backlog: bool = flag("--to-backlog", "Send everything to the backlog"),
    outbox: Path | None = option("--outbox FILE", "Store messages here while neither namespace accepts them"),
    scheduled: Literal["keep", "now", "drop"] = option(
        "--scheduled ACTION", "Of lines with a schedule time: keep it, send them now, or drop them", default="keep"
    ),
    as_stranded: bool = flag("--as-stranded", "Lines of a backlog queue go to one, with their aliases as they are"),
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Send lines to a queue or topic, failing over to the backlog.

    With --format jsonl a line is an object with a body (text) or body_base64, and perhaps message_id, session_id,
    subject, ttl, scheduled, properties or others: the lines that peek and receive print with -o jsonl. The fields that
    the service sets are not sent. The first line that cannot be sent ends the command; it prints how to continue. Needs
    Send on both namespaces.

    Examples:
      sbpair send orders orders.jsonl
      sbpair send secondary:QUEUE --as-stranded backlog.jsonl
      echo hello | sbpair send orders

    Exit codes: 2 a line of a file is wrong, or some are missing; 3 a later line was wrong or refused;
    6 no namespace accepted a message in time; 130 interrupted

    See also: sbpair help failover, sbpair help message_io
    """
    named = entity
    reach = reach_of(connection, screen)
    address = reach.address(entity, side=None if ":" in entity or connection.namespace is not None else "primary")
    from sbpair.syphon.move_ends import check_accepts

    check_accepts(address)
    is_paired, entity = connection.namespace is None and address.side == "primary", address.path
    if not is_paired:
        _check_backlog(entity, as_stranded=as_stranded)
        _check_alone(on_failure, failover_interval, outbox, to_backlog=to_backlog)
    elif as_stranded:
        raise UsageError("--as-stranded is for a backlog queue", hint="name it: secondary:QUEUE")
    pair = _with_interval(reach.pair, failover_interval) if is_paired else None
    if timeout is not None:
        waits = pair is not None and on_failure in (None, "wait") and not to_backlog
        _warn_of_timeout(screen, timeout, pair.failover_interval if pair is not None and waits else 0.0)
    entity_names([entity])
    from sbpair.cli.progress.reporting import SendProgress
    from sbpair.message_io import line_reader, send_lines

    is_json = file.lower().endswith(JSON_ENDINGS) if form is None else form == "jsonl"
    terms: dict[str, Any] = {"as_json": is_json, "surely_text": form == "lines"}
    form_of = partial(line_reader.LineReader, scheduled=scheduled, as_stranded=as_stranded, **terms)
    reader = form_of()
    place = "stdin" if file == STDIN else file

    with _open(file) as descriptor:
        typed = os.isatty(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            send_lines.check_lines(descriptor, place, form_of(), skip, None if is_json else 1)
        elif typed:
            screen.say(f"type one message a line; {end_of_input()} ends")

        sides = (address.endpoint,) if pair is None else (pair.primary, pair.secondary)

        async def send(stop: "asyncio.Event", hurry: "asyncio.Event") -> "send_lines.SendResult":
            with SendProgress(screen, entity, typing=typed) as shown:
                lines = send_lines.SourceLines(descriptor, place, reader, skip)
                stream = send_lines.LineStream(lines, rate, stop, hurry, shown)
                if pair is None:
                    seconds = send_lines.SEND_SECONDS if timeout is None else timeout
                    return await send_lines.send_lines_to(address.endpoint, entity, stream, seconds=seconds)
                found = await send_lines.send_lines(
                    pair,
                    entity,
                    stream,
                    on_failure=on_failure or "wait",
                    seconds=timeout,
                    to_backlog=to_backlog,
                    outbox=outbox,
                )
            await suggest_entities([found.error], sides)
            return found

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run_gracefully(send, *sides)
        blame_clock(result.error, sides)
    screen.show(result, _table(result, paired=is_paired))
    _say_unsent(screen, reader)
    _print_next_command(screen, result, named, file, reader, typed=typed)
    return ExitCode.INTERRUPTED if result.stopped else result.exit_code


def _with_interval(pair: "Pair", failover_interval: float | None) -> "Pair":
    pair.require_primary()
    return pair if failover_interval is None else replace(pair, failover_interval=failover_interval)


def _check_backlog(entity: str, *, as_stranded: bool) -> None:
    """Raise UsageError unless lines as stranded go to a backlog queue, and no others do."""
    is_backlog = TRANSFER_SEGMENT in entity.lower().split("/")
    if is_backlog and not as_stranded:
        hint = "--to-backlog sends there what is for another entity; --as-stranded, lines of a backlog queue"
        raise UsageError(f"{entity} is a backlog queue", hint=hint)
    if as_stranded and not is_backlog:
        raise UsageError(f"--as-stranded is for a backlog queue, and {entity} is none", hint="leave it out")


def _warn_of_timeout(screen: Screen, timeout: float, failover_interval: float) -> None:
    if timeout <= failover_interval:
        screen.warn(
            f"--timeout {timeout:g}s ends a send before the failover interval of {failover_interval:g}s: none goes to"
            " the backlog; give a shorter --failover-interval, or --on-failure backlog-now"
        )
    elif timeout <= SHORT_SECONDS:
        screen.warn(f"--timeout {timeout:g}s is too short for a partitioned entity to try another partition")


def _check_alone(
    on_failure: str | None, failover_interval: float | None, outbox: Path | None, *, to_backlog: bool
) -> None:
    """Raise UsageError for options of failover, which one namespace alone has not."""
    given: dict[str, object] = {
        "--on-failure": on_failure,
        "--failover-interval": failover_interval,
        "--outbox": outbox,
        "--to-backlog": to_backlog or None,
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is for the primary of a pair", hint="leave it out, or SIDE: and --namespace")


def _say_unsent(screen: Screen, reader: "LineReader") -> None:
    """Print once which parts of the lines are not sent."""
    if reader.dropped:
        screen.say(f"{plural(reader.dropped, 'message')} with a schedule time dropped")
    if named := sorted(reader.ignored - {"schema", "body_text", "from", "size"}):
        screen.say(f"not sent, since the service sets them: {', '.join(named)}")


def _places(result: "SendResult") -> dict[str, int]:
    return {name: count for name, count in asdict(result.delivered).items() if name != "secondary"}


def _table(result: "SendResult", *, paired: bool) -> Iterator[str]:
    places = _places(result) if paired else {"sent": result.delivered.total}
    counted = {**places, "in doubt": result.in_doubt, "failed": result.failed}
    rows = [("all", result.messages), *((name, count) for name, count in counted.items())]
    yield from columns([("MESSAGES", "COUNT"), *rows])
    if result.doubtful:
        yield clean(f"possible duplicates: {len(result.doubtful)} ({some(result.doubtful)})")


def _print_next_command(
    screen: Screen, result: "SendResult", entity: str, file: str, reader: "LineReader", *, typed: bool
) -> None:
    """Print the error, and the command that sends the rest: not accepted lines, unless they were typed."""
    if result.error is not None and not result.stopped:
        where = "" if result.line is None else f"line {result.line}: "
        screen.error(f"{where}{result.error.message}", with_options(result.error.hint))
    if reader.is_refused or (result.error is None and not result.stopped):
        return
    what = [entity] if file == STDIN else [entity, file]
    skipped = ["--skip", result.next_line - 1] if result.next_line > 1 and not typed else []
    again = f"continue with {next_command('send', *what, *skipped)}"
    if not isinstance(result.error, ServiceRefused) or result.line is None:
        screen.say(again)
    elif result.failed > 1:
        lines = f"one of the {result.failed} messages from line {result.line} on"
        screen.say(f"{lines} would be refused again: correct it, and {again}")
    elif typed:
        screen.say(f"line {result.line} would be refused again")
    else:
        after = next_command("send", *what, "--skip", result.line)
        screen.say(f"line {result.line} would be refused again: correct it, or skip it with {after}")


@contextmanager
def _open(file: str) -> Iterator[int]:
    """Yield the descriptor of a file or of stdin. Raises UsageError, or MachineLacks if it is unreadable."""
    if file == STDIN:
        check_stdin()
        yield sys.stdin.fileno()
        return
    try:
        opened = io.FileIO(file)
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist", hint="check the path; - is stdin") from None
    except IsADirectoryError:
        raise UsageError(f"{file} cannot be read: it is a directory", hint="name a file; - is stdin") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineLacks(f"{file} cannot be read: {reason}", hint="check its permissions") from error
    with opened:
        yield opened.fileno()
