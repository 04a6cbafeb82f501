"""`sbpair receive`: options into one call of `sbpair.message_io.receive`, and messages into output as they come."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import Display, Output, PairSelection, options
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render.screen import Document, Screen, clean
from sbpair.errors import ExitCode, UsageError
from sbpair.model.durations import TICKS_PER_SECOND, ticks

if TYPE_CHECKING:
    from sbpair.message_io.receive import Counted, DedupSettings
    from sbpair.replication.events import ReplicationEvent
    from sbpair.replication.roles import Side

SCHEMA = "sbpair/receive/1"
MEMORY, DAY = "memory", "24h"
BODY_SHOWN = 60


@options
def command(
    *,
    entity: Annotated[str, typer.Argument(metavar="QUEUE|TOPIC", help="What to receive from")],
    subscription: Annotated[
        str | None, typer.Option("--subscription", metavar="NAME", help="The subscription, where it is a topic")
    ] = None,
    limit: Annotated[int, typer.Option("--max", metavar="N", help="At most so many messages (10)")] = 10,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="End when no message has come for so long (5s)")
    ] = "5s",
    peek: Annotated[bool, typer.Option("--peek", help="Only look: remove nothing, lock nothing")] = False,
    dedup: Annotated[
        bool,
        typer.Option(
            "--dedup", help="Receive from both namespaces; of the copies of a message the first, and remove all"
        ),
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="id|subject|property:NAME", help="What copies of a message are known by, with --dedup (id)"
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="memory|PATH",
            help="Where it is remembered what was received, with --dedup: in a file also for the next run (memory)",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="DURATION", help="For how long that is remembered, with --dedup (24h)"),
    ] = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Receive messages of a queue or subscription and show them, which removes them.

    Each is received under lock, shown, and only then completed; --peek shows them and leaves them where they are.
    Without --dedup they are those of the primary alone, as applications of paired namespaces receive. What is in hand
    when it is interrupted is released.

    --dedup is for what was sent to both namespaces (ActiveSender), or to one or the other (PassiveSender). The first
    copy of a message is shown; a further one is removed once the first has been. Where nobody can say whether that was
    done it is shown again, with a warning; a copy that comes once its key is forgotten, without one. Of messages of one
    key that are no copies of each other only the first is shown, and all are removed: look with --peek first.

    It needs Listen, with --dedup on both namespaces; one that is away is told, and the other is received from. Sessions
    are not received from.

    JSON; a body that is no text is in "body_base64" instead; a line of JSON Lines is one message:

      {"schema": "sbpair/receive/1", "entity": "", "messages": [{"from": "primary", "message_id": "",
       "sequence_number": 0, "enqueued_at": "", "delivery_count": 0, "session_id": null, "subject": null,
       "content_type": null, "correlation_id": null, "properties": {}, "body": ""}],
       "received": 0, "kept": 0, "duplicates": 0, "removed": true}

    Exit codes: 0 done, or there was nothing; 2 there is no such entity; 3 some were shown and could not be removed; 4
    the file of --store is in use, or of something else; 5 access; 6 nothing can be received; 130 interrupted.
    """
    screen = Screen(display)
    if limit < 1:
        raise UsageError(f"--max is {limit}, and must be at least 1", hint="10 is the default")
    seconds = _seconds("--wait", wait)
    terms = _dedup(dedup=dedup, peek=peek, key=key, store=store, window=window)
    pair = chosen(connection, screen)
    from sbpair.message_io import receive

    counted = receive.Counted()
    path = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
    forgets = terms is not None and terms.store == MEMORY and not peek
    paper = MessagePrinter(screen, path, counted, peek=peek, forgets=forgets)

    def told(event: "ReplicationEvent") -> None:
        for text in warnings(event):
            screen.warn(text)

    async def main(_stop: object) -> None:
        if peek:
            await receive.peek(
                pair, entity, counted=counted, show=paper.show, subscription=subscription, dedup=terms, limit=limit
            )
            return
        await receive.run(
            pair,
            entity,
            counted=counted,
            show=paper.show,
            subscription=subscription,
            dedup=terms,
            limit=limit,
            wait_seconds=seconds,
            on_event=told,
        )

    with paper:
        run(main)
    return ExitCode.PARTIAL_OR_FINDINGS if counted.kept else 0


class MessagePrinter:
    """Messages as they come: nothing is kept, so that each can be completed once it is shown."""

    def __init__(self, screen: Screen, entity: str, counted: "Counted", *, peek: bool, forgets: bool) -> None:
        self._screen = screen
        self._entity = entity
        self._counted = counted
        self._peek = peek
        self._forgets = forgets
        self._shown = 0

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_details: object) -> None:
        """Say what it came to, however it ended."""
        if kind is not None and not self._shown:
            return
        if self._screen.output is Output.JSON:
            if not self._shown:
                self._screen.write(self._head())
            rest = json.dumps({**asdict(self._counted), "removed": not self._peek})
            self._screen.write(f"], {rest[1:]}")
        for text in summary(self._counted, removed=not self._peek):
            self._screen.say(text)
        missing = self._counted.received - self._counted.duplicates
        if self._forgets and missing > 0:
            self._screen.say(
                f"further copies of {_messages(missing)} have not come so far, if there are any: the next run shows"
                " them, unless both name a file (--store)"
            )

    def show(self, side: "Side", message: Document) -> None:
        told: Document = {"from": side, **message}
        if self._screen.output is Output.JSONL:
            lines = [json.dumps({"schema": SCHEMA, **told})]
        elif self._screen.output is Output.JSON:
            lines = [f", {json.dumps(told)}"] if self._shown else [self._head(), f"  {json.dumps(told)}"]
        else:
            lines = [line(told)] if self._shown else [row("ENQUEUED", "FROM", "ID", "BODY"), line(told)]
        for text in lines:
            self._screen.write(text)
        self._shown += 1

    def _head(self) -> str:
        return f'{{"schema": "{SCHEMA}", "entity": {json.dumps(self._entity)}, "messages": ['


def row(enqueued: str, side: str, message_id: str, body: str) -> str:
    return f"{enqueued:<20}  {side:<9}  {message_id:<36}  {body}".rstrip()


def line(told: Document) -> str:
    """A message for people, with nothing in it that a terminal would obey."""
    body = told["body"]
    if "body_base64" in told:
        encoded = str(told["body_base64"])
        text = f"({len(encoded) * 3 // 4 - encoded.count('=')} bytes that are no text)"
    else:
        text = clean(body if isinstance(body, str) else json.dumps(body))
    shown = text if len(text) <= BODY_SHOWN else f"{text[: BODY_SHOWN - 1]}…"
    enqueued = str(told["enqueued_at"] or "")[:19]
    return row(enqueued, str(told["from"]), clean(told["message_id"] or "-"), shown)


def summary(counted: "Counted", *, removed: bool) -> list[str]:
    """What it came to, in sentences."""
    said = [f"{_messages(counted.received)} {'removed' if removed else 'there, and left there'}"]
    if counted.duplicates:
        said.append(
            f"{counted.duplicates} further {'copy' if counted.duplicates == 1 else 'copies'}"
            f" {'removed' if removed else 'left out'}"
        )
    if counted.kept:
        said.append(f"{_messages(counted.kept)} shown and not removed: they come again")
    return said


def warnings(event: "ReplicationEvent") -> list[str]:
    """What is worth a warning."""
    from sbpair.replication.events import NoKey, Redelivered, SideBack, SideLost

    match event:
        case SideLost(_entity, side, reason):
            return [f"nothing can be received from the {side} now: {reason}"]
        case SideBack(_entity, side):
            return [f"the {side} can be received from again"]
        case Redelivered(_entity, side, key, _number, reason):
            return [f"{key} from the {side} may have been shown before: {reason}"]
        case NoKey(_entity, side, number, reason):
            return [f"message {number} of the {side} cannot be told from others: {reason}"]
    return []


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _dedup(
    *, dedup: bool, peek: bool, key: str | None, store: str | None, window: str | None
) -> "DedupSettings | None":
    said = [name for name, value in (("--key", key), ("--store", store), ("--window", window)) if value is not None]
    if said and not dedup:
        raise UsageError(f"{said[0]} goes with --dedup only", hint="without it every message of the primary is shown")
    if peek and (wrong := [name for name in said if name != "--key"]):
        raise UsageError(f"{wrong[0]} does not go with --peek", hint="what is only looked at is not remembered")
    if not dedup:
        return None
    from sbpair.message_io.receive import DedupSettings
    from sbpair.replication.key import KeyRule

    seconds = _seconds("--window", window or DAY)
    try:
        name = KeyRule("id" if key is None else key).name
    except UsageError as error:
        raise UsageError(f"--key: {error.message}", hint="say id, subject or property:NAME") from None
    return DedupSettings(name, MEMORY if store is None else store, seconds)


def _seconds(option: str, text: str) -> float:
    try:
        seconds = ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
    if not seconds:
        raise UsageError(f"{option} is no time at all", hint="write a duration, as in 30s")
    return seconds
