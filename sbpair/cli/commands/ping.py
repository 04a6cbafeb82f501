"""`sbpair ping`: runs `sbpair.failover.pinger.ping_all` and prints the answers."""

from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import PairSelection, argument, duration
from sbpair.cli.options.values import entity_names, selected_pair
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.status import answered
from sbpair.cli.render.table import columns

if TYPE_CHECKING:
    from sbpair.failover.pinger import PingResult


def command(
    *,
    entities: list[str] = argument("QUEUE|TOPIC…", "Queues and topics of the primary to ping"),
    timeout: float = duration(
        "--timeout DURATION", "Time limit of each answer", default="30s", at_least=1, at_most=600
    ),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Check whether queues and topics of the primary accept messages.

    Sends each a message with a time to live of one second, in a session of its own, as a paired client does. Needs Send
    on the primary; each ping is billed. up: accepted; down: a retry may help; broken: it cannot.

    Examples:
      sbpair ping orders
      sbpair ping orders events -o json

    Exit codes: 0 all are up; 6 one is down; 3 one is broken and none down; 5 access denied, also by a proxy; 2 a wrong
    setting
    """
    pair = selected_pair(connection, screen)
    names = entity_names(entities)
    from sbpair.failover import pinger

    def on_event(each: "PingResult") -> None:
        screen.detail(f"{each.entity} is {each.health} after {each.seconds:.2f} s")

    answers = run(pinger.ping_all(pair.primary, names, seconds=timeout, on_event=on_event))
    entries = [
        {"name": each.entity, "health": str(each.health), **answered(each.seconds, each.error)} for each in answers
    ]
    rows = [
        (each.entity, each.health, f"{each.seconds:.2f} s", each.error.message if each.error else "")
        for each in answers
    ]
    table = columns([("ENTITY", "HEALTH", "AFTER", "WHY"), *rows])
    screen.result("sbpair/ping/1", {"namespace": pair.primary.name, "entities": entries}, table, entries)
    screen.hints(each.error for each in answers if each.error)
    return pinger.ping_exit_code(answers)
