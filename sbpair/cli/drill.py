"""`sbpair drill`: options into one call of `sbpair.drill`, and its verdict into output."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.options import Display, options
from sbpair.cli.output import Screen, clean, columns
from sbpair.cli.running import run
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair import drill

SCHEMA = "sbpair/drill/1"


@options
def command(
    *,
    messages: Annotated[
        int, typer.Option("--messages", "-n", metavar="N", help="How many messages are stranded (1000)")
    ] = 1_000,
    queues: Annotated[int, typer.Option("--queues", metavar="N", help="Over how many backlog queues (10)")] = 10,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed makes the same messages (0)")] = 0,
    display: Display,
) -> int:
    """Rehearse the whole story on an emulator, and compare every message to the byte.

    It starts an emulator of its own, creates the backlog queues, strands messages there as the old clients did, brings
    them back, and compares each with what was sent. Nothing outside of this machine is touched.

    JSON:

      {"schema": "sbpair/drill/1", "sent": 0, "received": 0, "lost": 0, "duplicated": 0, "altered": 0,
       "seconds": 0.0, "alterations": [], "lost_ids": [], "receipt": {}}

    Exit codes: 0 nothing was lost, doubled or altered; 3 something was.
    """
    screen = Screen(display)
    for name, value in (("--messages", messages), ("--queues", queues)):
        if value < 1:
            raise UsageError(f"{name} is {value}, and must be at least 1", hint="leave it out for the default")
    from sbpair import drill
    from sbpair.cli.progress import Teller

    tell = Teller(screen)

    def on_event(event: "drill.DrillEvent") -> None:
        match event:
            case drill.Phase(_name, text):
                screen.say(text)
            case drill.Written() | drill.Compared():
                pass
            case _:
                tell(event)

    result = run(lambda _stop: drill.run(messages=messages, queues=queues, seed=seed, on_event=on_event))
    told = {"schema": SCHEMA, **asdict(result), "seconds": round(result.seconds, 3)}
    screen.result(told, [told], table(result))
    return result.exit_code


def table(result: "drill.Result") -> Iterator[str]:
    """The verdict for people."""
    names = ("sent", "received", "lost", "duplicated", "altered")
    yield from columns([("MESSAGES", "COUNT"), *((name, getattr(result, name)) for name in names)])
    for message_id in result.lost_ids:
        yield clean(f"lost: {message_id}")
    for message_id, difference in result.alterations:
        yield clean(f"altered: {message_id}: {difference}")
    verdict = "nothing was lost, doubled or altered" if result.exit_code == 0 else "the drill failed"
    yield f"{verdict}, in {result.seconds:.1f} s"
