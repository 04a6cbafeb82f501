"""`sbpair receive`: runs `sbpair.message_io.receive` and prints messages as they arrive."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import Display, Output, PairSelection, argument, option, options
from sbpair.cli.options.values import positive_seconds_of, selected_pair
from sbpair.cli.render.screen import Document, Screen, clean, plural
from sbpair.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sbpair.message_io.receive import DedupSettings, ReceiveCounts
    from sbpair.replication.events import ReplicationEvent
    from sbpair.replication.roles import Side

SCHEMA = "sbpair/receive/1"
MEMORY, DAY = "memory", "24h"
BODY_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Deduplication:
    """How copies from both namespaces are recognised."""

    dedup: Annotated[bool, option("--dedup", "Receive from both namespaces; print the first copy, remove all")] = False
    key: Annotated[
        str | None, option("--key KEY", "Key of copies: id, subject or property:NAME, with --dedup [default: id]")
    ] = None
    store: Annotated[
        str | None, option("--store memory|PATH", "Where received keys are remembered, with --dedup [default: memory]")
    ] = None
    window: Annotated[
        str | None, option("--window DURATION", "How long keys are remembered, with --dedup [default: 24h]")
    ] = None


@options
def command(
    *,
    entity: Annotated[str, argument("QUEUE|TOPIC", "Queue or topic to receive from")],
    subscription: Annotated[str | None, option("--subscription NAME", "Subscription of a topic")] = None,
    limit: Annotated[int, option("--max N", "Number of messages at most")] = 10,
    wait: Annotated[str, option("--wait DURATION", "Exit after this time without a message")] = "5s",
    peek: Annotated[bool, option("--peek", "Only peek: remove and lock nothing")] = False,
    deduplication: Deduplication,
    connection: PairSelection,
    display: Display,
) -> int:
    """Receive messages, print them and remove them.

    Each message is printed under lock and then completed; an interruption releases the locked ones. Receives from the
    primary, with --dedup from both namespaces. Sessions are not supported. Needs Listen.

    Examples:
      sbpair receive orders --peek
      sbpair receive events --subscription audit --max 100 -o jsonl

    Exit codes: 3 some were printed but not removed; 4 the file of --store is in use; 130 interrupted

    See also: sbpair help replication
    """
    screen = Screen(display)
    if limit < 1:
        raise UsageError(f"--max is {limit}, and must be at least 1", hint="the default is 10")
    seconds = positive_seconds_of("--wait", wait)
    dedup = _settings(deduplication, peek=peek)
    pair = selected_pair(connection, screen)
    from sbpair.message_io import receive

    counted = receive.ReceiveCounts()
    path = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
    forgets = dedup is not None and dedup.store == MEMORY and not peek
    printer = MessagePrinter(screen, path, counted, peek=peek, forgets=forgets)

    def on_event(event: "ReplicationEvent") -> None:
        for text in _warnings(event):
            screen.warn(text)

    async def main(_stop: object) -> None:
        if peek:
            await receive.peek_messages(
                pair, entity, counts=counted, show=printer.show, subscription=subscription, dedup=dedup, limit=limit
            )
            return
        await receive.receive_messages(
            pair,
            entity,
            counts=counted,
            show=printer.show,
            subscription=subscription,
            dedup=dedup,
            limit=limit,
            wait_seconds=seconds,
            on_event=on_event,
        )

    with printer:
        run(main)
    return ExitCode.PARTIAL_OR_FINDINGS if counted.not_removed else 0


class MessagePrinter:
    """Prints each message as it arrives, so that it can be completed at once."""

    def __init__(self, screen: Screen, entity: str, counted: "ReceiveCounts", *, peek: bool, forgets: bool) -> None:
        self._screen = screen
        self._entity = entity
        self._counted = counted
        self._peek = peek
        self._forgets = forgets
        self._shown = 0

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_details: object) -> None:
        """Print the counts, also after an error."""
        if kind is not None and not self._shown:
            return
        if self._screen.output is Output.JSON:
            if not self._shown:
                self._screen.write(self._head())
            rest = json.dumps({**asdict(self._counted), "removed": not self._peek})
            self._screen.write(f"], {rest[1:]}")
        for text in _summary(self._counted, removed=not self._peek):
            self._screen.say(text)
        missing = self._counted.received - self._counted.duplicates
        if self._forgets and missing > 0:
            self._screen.say(
                f"the next run prints copies of {plural(missing, 'message')} that arrive later, unless both runs use"
                " the same --store file"
            )

    def show(self, side: "Side", message: Document) -> None:
        entry: Document = {"from": side, **message}
        if self._screen.output is Output.JSONL:
            lines = [json.dumps({"schema": SCHEMA, **entry})]
        elif self._screen.output is Output.JSON:
            lines = [f", {json.dumps(entry)}"] if self._shown else [self._head(), f"  {json.dumps(entry)}"]
        else:
            lines = [_line(entry)] if self._shown else [_row("ENQUEUED", "FROM", "ID", "BODY"), _line(entry)]
        for text in lines:
            self._screen.write(text)
        self._shown += 1

    def _head(self) -> str:
        return f'{{"schema": "{SCHEMA}", "entity": {json.dumps(self._entity)}, "messages": ['


def _row(enqueued: str, side: str, message_id: str, body: str) -> str:
    return f"{enqueued:<20}  {side:<9}  {message_id:<36}  {body}".rstrip()


def _line(entry: Document) -> str:
    body = entry["body"]
    if "body_base64" in entry:
        encoded = str(entry["body_base64"])
        text = f"({len(encoded) * 3 // 4 - encoded.count('=')} bytes, not text)"
    else:
        text = clean(body if isinstance(body, str) else json.dumps(body))
    shown = text if len(text) <= BODY_SHOWN else f"{text[: BODY_SHOWN - 1]}…"
    enqueued = str(entry["enqueued_at"] or "")[:19]
    return _row(enqueued, str(entry["from"]), clean(entry["message_id"] or "-"), shown)


def _summary(counted: "ReceiveCounts", *, removed: bool) -> list[str]:
    lines = [f"{plural(counted.received, 'message')} {'removed' if removed else 'peeked'}"]
    if counted.duplicates:
        lines.append(
            f"{counted.duplicates} further {'copy' if counted.duplicates == 1 else 'copies'}"
            f" {'removed' if removed else 'skipped'}"
        )
    if counted.not_removed:
        lines.append(f"{plural(counted.not_removed, 'message')} printed but not removed: they will be delivered again")
    return lines


def _warnings(event: "ReplicationEvent") -> list[str]:
    from sbpair.replication.events import NoKey, Redelivered, SideBack, SideLost

    match event:
        case SideLost(_entity, side, reason):
            return [f"cannot receive from the {side}: {reason}"]
        case SideBack(_entity, side):
            return [f"receiving from the {side} again"]
        case Redelivered(_entity, side, key, _number, reason):
            return [f"{key} from the {side} may be a duplicate: {reason}"]
        case NoKey(_entity, side, number, reason):
            return [f"message {number} of the {side} has no key: {reason}"]
    return []


def _settings(deduplication: Deduplication, *, peek: bool) -> "DedupSettings | None":
    key, store, window = deduplication.key, deduplication.store, deduplication.window
    given = [name for name, value in (("--key", key), ("--store", store), ("--window", window)) if value is not None]
    if given and not deduplication.dedup:
        raise UsageError(f"{given[0]} goes with --dedup only", hint="add --dedup, or leave it out")
    if peek and (wrong := [name for name in given if name != "--key"]):
        raise UsageError(f"{wrong[0]} and --peek exclude each other", hint="peeked messages are not remembered")
    if not deduplication.dedup:
        return None
    from sbpair.message_io.receive import DedupSettings
    from sbpair.replication.key import KeyRule

    seconds = positive_seconds_of("--window", window or DAY)
    try:
        name = KeyRule("id" if key is None else key).name
    except UsageError as error:
        raise UsageError(f"--key: {error.message}", hint="expected id, subject or property:NAME") from None
    return DedupSettings(name, MEMORY if store is None else store, seconds)
