"""`sbpair ping`: options into one call of `sbpair.failover.ping`, and its answers into output."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import Display, PairSelection, options
from sbpair.cli.options.durations import seconds_of
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render.screen import Document, Screen, columns

if TYPE_CHECKING:
    from sbpair.failover.ping import Pinged

SCHEMA = "sbpair/ping/1"


@options
def command(
    *,
    entities: Annotated[
        list[str], typer.Argument(metavar="QUEUE|TOPIC…", help="Which queues and topics of the primary to ask")
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long each may take to answer (30s)")
    ] = "30s",
    connection: PairSelection,
    display: Display,
) -> int:
    """Ask whether queues and topics of the primary accept messages.

    Sends one ping to each, as a paired client does while an entity is failed over: a message of one second to live in a
    session of its own, which no receiver is given, and which is billed as a message. Needs Send on the primary.

    An entity is up where it accepts the ping, down where that may pass by itself (no connection, no answer, a busy
    service, a full queue), and broken where it will not: a paired client would raise that error.

    JSON:

      {"schema": "sbpair/ping/1", "namespace": "", "entities": [{"name": "", "health": "up|down|broken",
       "seconds": 0.0, "reason": "", "hint": ""}]}

    Exit codes: 0 all are up; 6 one is down; 3 one is broken, and none down; 5 where that is for want of access.
    """
    screen = Screen(display)
    seconds = seconds_of("--timeout", timeout, minimum=1, limit=600)
    pair = chosen(connection, screen)
    names = list(dict.fromkeys(entities))
    from sbpair.backlog import check_path

    for name in names:
        check_path(name, shorten="give the name of a queue or topic")
    from sbpair.failover import ping

    answers = run(
        lambda _stop: ping.run(pair.primary, names, seconds=seconds, on_event=lambda each: _tell(screen, each))
    )
    entries = [entry(each) for each in answers]
    told = {"schema": SCHEMA, "namespace": pair.primary.name, "entities": entries}
    screen.result(told, [{"schema": SCHEMA, **each} for each in entries], table(answers))
    return ping.exit_code_of(answers)


def entry(pinged: "Pinged") -> Document:
    """One entity of the JSON contract."""
    error = pinged.error
    return {
        "name": pinged.entity,
        "health": str(pinged.health),
        "seconds": round(pinged.seconds, 3),
        "reason": error.message if error else "",
        "hint": error.hint if error else "",
    }


def table(answers: "Iterable[Pinged]") -> Iterator[str]:
    """The same for people."""
    rows = [
        (each.entity, each.health, f"{each.seconds:.2f} s", each.error.message if each.error else "")
        for each in answers
    ]
    yield from columns([("ENTITY", "HEALTH", "AFTER", "WHY"), *rows])


def _tell(screen: Screen, pinged: "Pinged") -> None:
    screen.detail(f"{pinged.entity} is {pinged.health} after {pinged.seconds:.2f} s")
