"""`sbpair drill`: options into one call of `sbpair.drill`, and its verdict into output."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.completion import pairs
from sbpair.cli.options.common import Display, PairSelection, options
from sbpair.cli.options.durations import seconds_of
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render.screen import Document, Screen, clean, columns
from sbpair.errors import Unsafe, UsageError

if TYPE_CHECKING:
    from sbpair import drill
    from sbpair.model.pair import Pair

SCHEMA = "sbpair/drill/1"
MESSAGES, QUEUES = 1_000, 10


@options
def command(
    *,
    messages: Annotated[
        int | None, typer.Option("--messages", "-n", metavar="N", help="How many messages are stranded (1000)")
    ] = None,
    queues: Annotated[
        int | None, typer.Option("--queues", metavar="N", help="Over how many backlog queues (10; 2 with --against)")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed makes the same messages (0)")] = 0,
    rate: Annotated[
        int, typer.Option("--rate", metavar="N", min=1, max=1000, help="Messages a second of the application (50)")
    ] = 50,
    failover_interval: Annotated[
        str,
        typer.Option(
            "--failover-interval", metavar="DURATION", help="After how long it fails over; 0 for at once (500ms)"
        ),
    ] = "500ms",
    ping_interval: Annotated[
        str, typer.Option("--ping-interval", metavar="DURATION", help="How often it pings the primary then (1s)")
    ] = "1s",
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="PAIR",
            help="Tell the part that sends on a pair of your own, with a failure that only this client believes in",
            autocompletion=pairs,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="With --against: the configuration file [SBPAIR_CONFIG]"),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --against: make its queues without asking, and delete them")
    ] = False,
    display: Display,
) -> int:
    """Rehearse the whole story on an emulator, and compare every message to the byte.

    It starts an emulator of its own, creates the backlog queues, strands messages there as the old clients did, brings
    them back. Meanwhile an application sends steadily through the paired client: the primary goes away, it fails over
    and sends on to the backlog; its backlog queue goes away too, and it turns to another; all comes back, a ping finds
    the primary, and the backlog is brought back. Every message is compared with what was sent. stderr tells what
    happens when. Nothing outside of this machine is touched.

    --against PAIR tells the part that sends on namespaces of yours, of the configuration file (default: those of the
    environment). Nothing is broken there: the client pretends that the primary is away. It makes a queue in the primary
    and backlog queues of its own in the secondary, asks before, writes to nothing else, and deletes them again. Needs
    Manage, Send and Listen on both sides; costs a few hundred operations.

    JSON; the counts are those of the stranded messages, and "sending" has those of the application:

      {"schema": "sbpair/drill/1", "sent": 0, "received": 0, "lost": 0, "duplicated": 0, "altered": 0,
       "seconds": 0.0, "alterations": [], "lost_ids": [], "receipt": {},
       "sending": {"entity": "", "sent": 0, "primary": 0, "backlog": 0, "refused": 0, "doubtful": 0, "received": 0,
                   "lost": 0, "duplicated": 0, "unexplained": 0, "altered": 0, "receipt": {}, "alterations": [],
                   "lost_ids": []},
       "timeline": [{"name": "", "text": "", "seconds": 0.0}], "against": null}

    Of those that were "duplicated", all but "unexplained" were named as in doubt by the client ("doubtful").

    Exit codes: 0 nothing was lost, doubled without being named, or altered, and no send raised ("refused"); 3 something
    was; 4 nobody agreed; 6 a part of the story did not come about in time.
    """
    screen = Screen(display)
    for name, value in (("--messages", messages), ("--queues", queues)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}, and must be at least 1", hint="leave it out for the default")
    failover = seconds_of("--failover-interval", failover_interval, limit=60)
    ping = seconds_of("--ping-interval", ping_interval, minimum=1, limit=60)
    pair = _against(screen, against, config, messages, yes=yes)
    from sbpair import drill
    from sbpair.cli.progress.move_progress import EventPrinter
    from sbpair.drill import against_pair
    from sbpair.drill.scenario import Intervals

    # It logs the events that are told here in other words.
    logging.getLogger("sbpair.failover.failover_state").setLevel(logging.ERROR)
    intervals = Intervals(failover, ping, float(rate))
    tell = EventPrinter(screen)

    def on_event(event: "drill.DrillEvent") -> None:
        match event:
            case drill.DrillPhase(_name, text, seconds):
                screen.say(f"{seconds:6.1f} s  {text}")
            case drill.Written() | drill.ComparisonProgress():
                pass
            case _:
                tell(event)

    if pair is None:
        counts = {"messages": messages or MESSAGES, "queues": queues or QUEUES}
        result = run(lambda _stop: drill.run_drill(**counts, seed=seed, intervals=intervals, on_event=on_event))
    else:
        tag, own = against_pair.new_drill_tag(), queues or against_pair.OWN_QUEUES
        _agree(screen, pair, tag, own, yes=yes)
        result = run(
            lambda _stop: drill.drill_against(pair, tag, queues=own, seed=seed, intervals=intervals, on_event=on_event)
        )
    told = document(result, pair)
    screen.result(told, [told], table(result, stranded=pair is None))
    return result.exit_code


def document(result: "drill.DrillResult", pair: "Pair | None") -> Document:
    """The JSON contract."""
    told = {**asdict(result), "seconds": round(result.seconds, 3), "against": pair.name if pair else None}
    return {"schema": SCHEMA, **told}


def table(result: "drill.DrillResult", *, stranded: bool = True) -> Iterator[str]:
    """The verdict for people."""
    sending = result.sending
    names = ("sent", "received", "lost", "duplicated", "altered")
    if stranded:
        rows = [(name, getattr(result, name), getattr(sending, name)) for name in names]
        yield from columns([("MESSAGES", "STRANDED", "SENT ON"), *rows])
    else:
        yield from columns([("MESSAGES", "SENT ON"), *((name, getattr(sending, name)) for name in names)])
    yield f"sent on: {sending.primary} to the primary, {sending.backlog} to the backlog, {sending.doubtful} in doubt"
    for message_id in (*result.lost_ids, *sending.lost_ids):
        yield clean(f"lost: {message_id}")
    for message_id, difference in (*result.alterations, *sending.alterations):
        yield clean(f"altered: {message_id}: {difference}")
    doubled = "" if not sending.duplicated else " but for what was named as in doubt"
    good = f"nothing was lost, doubled{doubled} or altered"
    yield f"{good if result.exit_code == 0 else 'the drill failed'}, in {result.seconds:.1f} s"


def _against(
    screen: Screen, name: str | None, config: Path | None, messages: int | None, *, yes: bool
) -> "Pair | None":
    """The user's own pair, where one is meant. Raises UsageError for options that do not go together."""
    if name is None:
        for option, said in (("--yes", yes), ("--config", config is not None)):
            if said:
                raise UsageError(f"{option} goes with --against only", hint="an emulator needs nobody's leave")
        return None
    if messages is not None:
        raise UsageError("--messages and --against exclude each other", hint="nothing is stranded in your namespaces")
    from sbpair.config import DEFAULT_PAIR

    return chosen(PairSelection(pair=None if name == DEFAULT_PAIR else name, config=config), screen)


def _agree(screen: Screen, pair: "Pair", tag: str, queues: int, *, yes: bool) -> None:
    """Say what is about to be made; go on where somebody agrees."""
    from sbpair.drill.against_pair import drill_queue_names

    queue, paths = drill_queue_names(tag, queues)
    there = paths[0] if queues == 1 else f"{paths[0]} to {queues - 1}"
    screen.warn(f"--against makes, uses and deletes in {pair.primary.name}: {queue}; in {pair.secondary.name}: {there}")
    if yes:
        return
    if not all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise UsageError("--against makes queues, and there is nobody to ask", hint="say --yes, where that may be")
    if not screen.asks("Go on?"):
        raise Unsafe("nothing was made: nobody agreed", hint="leave --against out for a drill on this machine")
