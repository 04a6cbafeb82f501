"""`sbpair drill`: runs `sbpair.drill` and prints its verdict."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import pairs
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import PairSelection, duration, flag, option, option_group
from sbpair.cli.options.values import selected_pair
from sbpair.cli.render.screen import Screen, clean, plural
from sbpair.cli.render.table import columns, wrapped
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair import drill
    from sbpair.drill.gateway_drill import GatewayDrillResult
    from sbpair.drill.relay_drill import RelayDrillResult
    from sbpair.model.pair import Pair

MESSAGES, QUEUES = 1_000, 10


@option_group
class DrillTarget:
    """The user's own pair, if the drill is not to run on the emulator."""

    against: str | None = option(
        "--against PAIR",
        "Simulate an outage on this configured pair",
        complete=pairs,
        excludes=("--relay", "--messages", "--as-original", "--lost", "--identity-outage"),
    )
    config: Path | None = option(
        "--config FILE", "Configuration file [env: SBPAIR_CONFIG]", needs="--against", excludes="--relay"
    )
    yes: bool = flag(
        "--yes -y", "Create and delete the queues of --against without asking", needs="--against", excludes="--relay"
    )


def command(
    *,
    messages: int | None = option(
        "--messages N", "Number of stranded messages [default: 1000]", at_least=1, excludes="--relay"
    ),
    count: int | None = option(
        "--count -n N", "Number of backlog queues [default: 10; 2 with --against]", at_least=1, excludes="--relay"
    ),
    as_original: bool = flag(
        "--as-original", "Strand messages as we read the original's clients", excludes=("--relay", "--lost")
    ),
    identity_outage: bool = flag(
        "--identity-outage",
        "Take the identity providers away, not the primary",
        excludes=("--relay", "--lost"),
    ),
    lost: bool = flag("--lost", "Delete the primary for good; all goes to the secondary's own queues"),
    seed: int = option("--seed N", "Seed of the messages", default=0),
    rate: int = option(
        "--rate N", "Messages or requests a second of the application", at_least=1, at_most=1000, default=50
    ),
    failover_interval: float = duration(
        "--failover-interval DURATION",
        "Failure time before failover; 0: at once",
        default="500ms",
        at_least=0,
        at_most=60,
        excludes="--relay",
    ),
    ping_interval: float = duration(
        "--ping-interval DURATION",
        "Interval of pings to the primary",
        default="1s",
        at_least=1,
        at_most=60,
        excludes="--relay",
    ),
    relay: bool = flag("--relay", "Rehearse an outage of relay endpoints instead of one of queues"),
    gateway: bool = flag(
        "--gateway",
        "Rehearse an outage for clients of a gateway",
        excludes=("--relay", "--lost", "--messages", "--count", "--as-original", "--identity-outage", "--against"),
    ),
    target: DrillTarget,
    screen: Screen,
) -> int:
    """Rehearse an outage end to end on a local emulator.

    Strands messages, moves them back, and takes the primary away while an application sends. Then it compares every
    message byte for byte. Touches nothing outside this machine.

    --as-original strands messages as we read the original's clients; no running client was captured. Some expire.

    --lost deletes the primary in the middle of a move. The backlog goes to the secondary's own queues, as do new sends,
    and nothing connects to the primary. Messages that only it had are counted.

    --identity-outage signs in with identities whose tokens last 20 s. The primary's provider goes away, then both;
    sends go to the backlog and to an outbox.

    --against PAIR runs the sending part on a real pair, with a simulated outage that only this client sees. It creates
    its own queues and deletes them afterwards. Needs Manage, Send and Listen on both sides.

    --gateway lets the official clients for Python and, if Node finds it, JavaScript send and receive through a gateway.

    --relay takes the relay endpoints of a service away, one after the other. Each request must be answered once, be
    named as in doubt, or fail on both sides without having been executed. With --lost, the primary is deleted.

    Examples:
      sbpair drill
      sbpair drill --messages 5000 --seed 7
      sbpair drill --identity-outage
      sbpair drill --against orders
      sbpair drill --relay

    Exit codes: 0 no loss, duplicate or change; 3 there was one; 4 not confirmed; 6 timed out waiting for a step
    """
    if relay:
        return _rehearse_relay(screen, float(rate), seed, lost=lost)
    if gateway:
        return _rehearse_gateway(screen, float(rate))
    pair = _pair_of(screen, target)
    from sbpair import drill
    from sbpair.cli.progress.move_progress import EventPrinter
    from sbpair.drill import Intervals
    from sbpair.drill.drill_pair import OWN_QUEUES, DrillPhase

    # It logs the events that are printed here in other words.
    logging.getLogger("sbpair.failover.events").setLevel(logging.ERROR)
    intervals = Intervals(failover_interval, ping_interval, float(rate))
    printer = EventPrinter(screen)

    def on_event(event: "drill.DrillEvent") -> None:
        match event:
            case DrillPhase(_name, text, seconds):
                screen.say(f"{seconds:6.1f} s  {text}")
            case _:
                printer(event)
                printer.ended_queues()

    if pair is None:
        rehearsal = drill.run_drill(
            messages=messages or MESSAGES,
            queues=count or QUEUES,
            seed=seed,
            as_original=as_original,
            lost=lost,
            identity_outage=identity_outage,
            intervals=intervals,
            on_event=on_event,
        )
        result = run(rehearsal)
    else:
        tag, queues = uuid.uuid4().hex[:12], count or OWN_QUEUES
        screen.confirm("--against", _plan(pair, tag, queues), next_command("drill", "--yes"), yes=target.yes)
        result = run(drill.drill_against(pair, tag, queues=queues, seed=seed, intervals=intervals, on_event=on_event))
    result = replace(result, against=pair.name if pair else None)
    screen.show(result, _table(result, stranded=pair is None))
    return result.exit_code


def _table(result: "drill.DrillResult", *, stranded: bool = True) -> Iterator[str]:
    sending = result.sending
    names = ("sent", "received", "lost", "duplicated", "altered")
    if stranded:
        rows = [(name, getattr(result, name), getattr(sending, name)) for name in names]
        yield from columns([("MESSAGES", "STRANDED", "LIVE"), *rows])
    else:
        yield from columns([("MESSAGES", "LIVE"), *((name, getattr(sending, name)) for name in names)])
    doubt = f"{sending.doubtful} in doubt, of which {sending.duplicated or 'none'} arrived twice"
    secondary = f", {sending.secondary} to the secondary" if sending.secondary else ""
    more = f", {sending.outbox} by the outbox{secondary}" if sending.outbox else secondary
    yield from wrapped(f"live: {sending.primary} to the primary, {sending.backlog} to the backlog{more}, {doubt}")
    if lost := result.primary_lost:
        yield from wrapped(
            f"lost inside the primary, and not counted above: {plural(lost.inside, 'message')}; it also had"
            f" {lost.copies} of these, {lost.unnamed or 'none'} unnamed; {plural(lost.connections, 'connection')} to it"
            f" since it was declared lost; {plural(lost.disordered, 'message')} out of order"
        )
    if result.reading:
        expired = plural(result.redriven, "message")
        yield from wrapped(f"stranded: {result.reading}; {expired} expired in the backlog, and came back by a redrive")
    for message_id in (*result.lost_ids, *sending.lost_ids):
        yield clean(f"lost: {message_id}")
    for message_id, difference in (*result.alterations, *sending.alterations):
        yield clean(f"altered: {message_id}: {difference}")
    named = ", except for messages named as in doubt" if sending.duplicated else ""
    good = f"no {'other ' if result.primary_lost else ''}message was lost, altered or duplicated{named}"
    yield f"{good if result.exit_code == 0 else 'the drill failed'}, in {result.seconds:.1f} s"


def _pair_of(screen: Screen, target: DrillTarget) -> "Pair | None":
    """Return the pair of --against, if given. Raises UsageError."""
    if target.against is None:
        return None
    from sbpair.config import DEFAULT_PAIR

    name = None if target.against == DEFAULT_PAIR else target.against
    try:
        return selected_pair(PairSelection(pair=name, config=target.config), screen)
    except UsageError as error:
        raise UsageError(error.message.replace("--pair:", "--against:"), hint=error.hint) from None


def _plan(pair: "Pair", tag: str, queues: int) -> str:
    from sbpair.drill.drill_pair import drill_queue_names

    queue, paths = drill_queue_names(tag, queues)
    backlog = paths[0] if queues == 1 else f"{paths[0]} to {queues - 1}"
    return f"creates, uses and deletes in {pair.primary.name}: {queue}; in {pair.secondary.name}: {backlog}"


def _rehearse_relay(screen: Screen, rate: float, seed: int, *, lost: bool) -> int:
    """Run the drill, print its phases and its result, and return the exit code."""
    from sbpair.drill.relay_drill import run_relay_drill

    # It logs the events that are printed here, and one for each request that fails.
    logging.getLogger("sbpair.relay.events").setLevel(logging.CRITICAL)
    result = run(
        run_relay_drill(
            rate=rate, seed=seed, lost=lost, on_event=lambda phase: screen.say(f"{phase.seconds:6.1f} s  {phase.text}")
        )
    )
    screen.show(result, _relay_table(result))
    return result.exit_code


def _relay_table(result: "RelayDrillResult") -> Iterator[str]:
    tally = result.tally
    names = {"sent": "sent", "answered": "answered", "in_doubt": "in doubt", "failed": "failed", "wrong": "wrong"}
    yield from columns([("REQUESTS", "COUNT"), *((text, getattr(tally, name)) for name, text in names.items())])
    repeated = f"{plural(tally.repeated, 'request')} of an idempotent method executed twice" if tally.repeated else ""
    places = f"answered: {tally.primary} by the primary, {tally.secondary} by the secondary"
    yield from wrapped("; ".join(filter(None, (places, repeated))))
    for each in tally.doubtful:
        executed = "executed once" if each.executions == 1 else f"executed {each.executions} times"
        yield f"in doubt: {each.method} {each.request_id}: {executed if each.executions else 'not executed'}"
    for request_id, problem in tally.problems:
        yield clean(f"wrong: {request_id} {problem}")
    good = "every request was answered once, named as in doubt, or failed without being executed"
    yield from wrapped(f"{good if result.exit_code == 0 else 'the drill failed'}, in {result.seconds:.1f} s")


def _rehearse_gateway(screen: Screen, rate: float) -> int:
    """Run the drill, print its phases and its result, and return the exit code."""
    from sbpair.drill.gateway_drill import run_gateway_drill

    # They log the outage, which is announced here.
    for name in ("sbpair.failover.events", "azure.servicebus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    result = run(
        run_gateway_drill(rate=rate, on_event=lambda phase: screen.say(f"{phase.seconds:6.1f} s  {phase.text}"))
    )
    screen.show(result, _gateway_table(result))
    return result.exit_code


def _gateway_table(result: "GatewayDrillResult") -> Iterator[str]:
    names = ("sent", "in_outage", "failed", "lost", "duplicated", "altered")
    heads = ("CLIENT", "SENT", "IN OUTAGE", "FAILED", "LOST", "DUPLICATED", "ALTERED")
    yield from columns([heads, *((each.client, *(getattr(each, name) for name in names)) for each in result.clients)])
    yield f"the first send of the outage was accepted after {result.first_seconds:.2f} s"
    for message_id in result.lost_ids:
        yield clean(f"lost: {message_id}")
    good = "no message was lost or altered, or arrived twice without being named"
    yield from wrapped(f"{good if result.exit_code == 0 else 'the drill failed'}, in {result.seconds:.1f} s")
