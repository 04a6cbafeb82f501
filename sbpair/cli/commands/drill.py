"""`sbpair drill`: runs `sbpair.drill` and prints its verdict."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import pairs
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import PairSelection, flag, option, option_group
from sbpair.cli.options.values import check_at_least, check_goes_with, seconds_of, selected_pair
from sbpair.cli.render.screen import Screen, clean
from sbpair.cli.render.table import columns, wrapped
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair import drill
    from sbpair.model.pair import Pair

MESSAGES, QUEUES = 1_000, 10


@option_group
class DrillTarget:
    """The user's own pair, if the drill is not to run on the emulator."""

    against: str | None = option("--against PAIR", "Simulate an outage on this configured pair", complete=pairs)
    config: Path | None = option("--config FILE", "Configuration file, with --against [env: SBPAIR_CONFIG]")
    yes: bool = flag("--yes -y", "Create and delete the queues of --against without asking")


def command(
    *,
    messages: int | None = option("--messages N", "Number of stranded messages [default: 1000]"),
    count: int | None = option("--count -n N", "Number of backlog queues [default: 10; 2 with --against]"),
    seed: int = option("--seed N", "Seed of the messages", default=0),
    rate: int = option("--rate N", "Messages or requests a second of the application", min=1, max=1000, default=50),
    failover_interval: str | None = option(
        "--failover-interval DURATION", "Failure time before failover; 0: at once [default: 500ms]"
    ),
    ping_interval: str | None = option("--ping-interval DURATION", "Interval of pings to the primary [default: 1s]"),
    relay: bool = flag("--relay", "Rehearse an outage of relay endpoints instead of one of queues"),
    target: DrillTarget,
    screen: Screen,
) -> int:
    """Rehearse an outage end to end on a local emulator.

    Strands messages, moves them back, and takes the primary away while an application sends. Then it compares every
    message byte for byte. Touches nothing outside this machine.

    --against PAIR runs the sending part on a real pair, with a simulated outage that only this client sees. It creates
    its own queues and deletes them afterwards. Needs Manage, Send and Listen on both sides.

    --relay takes the relay endpoints of a service away, one after the other, while a client sends requests. Each
    request must be answered once, be named as in doubt, or fail on both sides without having been executed.

    Examples:
      sbpair drill
      sbpair drill --messages 5000 --seed 7
      sbpair drill --against orders
      sbpair drill --relay

    Exit codes: 0 no loss, duplicate or change; 3 there was one; 4 not confirmed; 6 timed out waiting for a step
    """
    if relay:
        others: dict[str, object] = {
            "--messages": messages,
            "--count": count,
            "--failover-interval": failover_interval,
            "--ping-interval": ping_interval,
            "--against": target.against,
            "--config": target.config,
            "--yes": target.yes or None,
        }
        for name, given in others.items():
            if given is not None:
                raise UsageError(f"{name} and --relay exclude each other", hint=f"leave {name} out")
        from sbpair.cli.commands.drill_relay import rehearse_relay

        return rehearse_relay(screen, float(rate), seed)
    for name, value in (("--messages", messages), ("--count", count)):
        if value is not None:
            check_at_least(name, value, 1, "leave it out for the default")
    failover = seconds_of("--failover-interval", failover_interval or "500ms", limit=60)
    ping = seconds_of("--ping-interval", ping_interval or "1s", minimum=1, limit=60)
    pair = _pair_of(screen, target, messages)
    from sbpair import drill
    from sbpair.cli.progress.move_progress import EventPrinter
    from sbpair.drill.drill_pair import OWN_QUEUES, DrillPhase
    from sbpair.drill.scenario import Intervals

    # It logs the events that are printed here in other words.
    logging.getLogger("sbpair.failover.events").setLevel(logging.ERROR)
    intervals = Intervals(failover, ping, float(rate))
    printer = EventPrinter(screen)

    def on_event(event: "drill.DrillEvent") -> None:
        match event:
            case DrillPhase(_name, text, seconds):
                screen.say(f"{seconds:6.1f} s  {text}")
            case _:
                printer(event)
                printer.ended_queues()

    if pair is None:
        result = run(
            drill.run_drill(
                messages=messages or MESSAGES, queues=count or QUEUES, seed=seed, intervals=intervals, on_event=on_event
            )
        )
    else:
        tag, queues = uuid.uuid4().hex[:12], count or OWN_QUEUES
        screen.confirm("--against", _plan(pair, tag, queues), next_command("drill", "--yes"), yes=target.yes)
        result = run(drill.drill_against(pair, tag, queues=queues, seed=seed, intervals=intervals, on_event=on_event))
    document = {
        **asdict(result),
        "receipt": result.receipt.document(),
        "sending": {**asdict(result.sending), "receipt": result.sending.receipt.document()},
        "seconds": round(result.seconds, 3),
        "against": pair.name if pair else None,
    }
    screen.result("sbpair/drill/1", document, _table(result, stranded=pair is None))
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
    yield from wrapped(f"live: {sending.primary} to the primary, {sending.backlog} to the backlog, {doubt}")
    for message_id in (*result.lost_ids, *sending.lost_ids):
        yield clean(f"lost: {message_id}")
    for message_id, difference in (*result.alterations, *sending.alterations):
        yield clean(f"altered: {message_id}: {difference}")
    named = ", except for messages named as in doubt" if sending.duplicated else ""
    good = f"no message was lost, altered or duplicated{named}"
    yield f"{good if result.exit_code == 0 else 'the drill failed'}, in {result.seconds:.1f} s"


def _pair_of(screen: Screen, target: DrillTarget, messages: int | None) -> "Pair | None":
    """Return the pair of --against, if given. Raises UsageError for options that exclude each other."""
    if target.against is None:
        hint = "an emulator needs no confirmation"
        check_goes_with("--against", None, {"--yes": target.yes, "--config": target.config}, hint)
        return None
    if messages is not None:
        raise UsageError("--messages and --against exclude each other", hint="--against strands no messages")
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
