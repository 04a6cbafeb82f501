"""`sbpair ping`: runs `sbpair.failover.pinger.ping_all` and prints the answers."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import Display, PairSelection, argument, option, options
from sbpair.cli.options.values import seconds_of, selected_pair
from sbpair.cli.render.screen import Document, Screen, columns

if TYPE_CHECKING:
    from sbpair.failover.pinger import PingResult

SCHEMA = "sbpair/ping/1"


@options
def command(
    *,
    entities: Annotated[list[str], argument("QUEUE|TOPIC…", "Queues and topics of the primary to ping")],
    timeout: Annotated[str, option("--timeout DURATION", "Time limit of each answer")] = "30s",
    connection: PairSelection,
    display: Display,
) -> int:
    """Check whether queues and topics of the primary accept messages.

    Sends each a message with a time to live of one second, in a session of its own, as a paired client does. Needs Send
    on the primary; each ping is billed. up: accepted; down: a retry may help; broken: it cannot.

    Examples:
      sbpair ping orders
      sbpair ping orders events -o json

    Exit codes: 0 all are up; 6 one is down; 3 one is broken and none down; 5 access denied
    """
    screen = Screen(display)
    seconds = seconds_of("--timeout", timeout, minimum=1, limit=600)
    pair = selected_pair(connection, screen)
    names = list(dict.fromkeys(entities))
    from sbpair.backlog import check_path

    for name in names:
        check_path(name, shorten="give the name of a queue or topic")
    from sbpair.failover.pinger import ping_all, ping_exit_code

    answers = run(
        lambda _stop: ping_all(pair.primary, names, seconds=seconds, on_event=lambda each: _print(screen, each))
    )
    entries = [entry(each) for each in answers]
    document = {"schema": SCHEMA, "namespace": pair.primary.name, "entities": entries}
    screen.result(document, [{"schema": SCHEMA, **each} for each in entries], table(answers))
    return ping_exit_code(answers)


def entry(pinged: "PingResult") -> Document:
    """Return one entity as JSON."""
    error = pinged.error
    return {
        "name": pinged.entity,
        "health": str(pinged.health),
        "seconds": round(pinged.seconds, 3),
        "reason": error.message if error else "",
        "hint": error.hint if error else "",
    }


def table(answers: "Iterable[PingResult]") -> Iterator[str]:
    """Yield the answers as text."""
    rows = [
        (each.entity, each.health, f"{each.seconds:.2f} s", each.error.message if each.error else "")
        for each in answers
    ]
    yield from columns([("ENTITY", "HEALTH", "AFTER", "WHY"), *rows])


def _print(screen: Screen, pinged: "PingResult") -> None:
    screen.detail(f"{pinged.entity} is {pinged.health} after {pinged.seconds:.2f} s")
