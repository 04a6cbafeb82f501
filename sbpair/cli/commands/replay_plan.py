"""`sbpair replay plan`: one look at the backlog, by the eyes of the syphon's dry run, for what a replay would do."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.commands.syphon import terms_of
from sbpair.cli.options.common import Count, Display, PairSelection, Rate, StateDirectory, TimeToLive, Ttl, options
from sbpair.cli.options.pairs import profile
from sbpair.cli.options.replay import (
    AllowMissing,
    DeadLetters,
    DedupOption,
    Destinations,
    OnlyQueues,
    WhatIsOnce,
    backlog,
)
from sbpair.cli.render.screen import Screen
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair import config
    from sbpair.model.message_key import Key
    from sbpair.replay.plan_preview import PlanPreview
    from sbpair.syphon.forecast import Forecast
    from sbpair.syphon.limits import EffectiveLimits, MoveLimits, PairTiers


@options
def command(
    *,
    queue: OnlyQueues = None,
    deadletters: DeadLetters = False,
    destination: Destinations = None,
    dedup: WhatIsOnce = DedupOption.KEY,
    ttl: TimeToLive = Ttl.ORIGINAL,
    rate: Rate = None,
    allow_missing: AllowMissing = False,
    state: StateDirectory = None,
    count: Count = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Say what a replay would do now, by looking alone: how much, how old, how often, how long, at what cost.

    Nothing is locked, received or settled, no delivery count is raised, and nothing is written; it needs no Java and no
    Spark. Each message is looked at, which takes a while where there are millions.

    A message is counted by what would become of it: sent; already sent, by the syphon's journal; deduplicated (--dedup
    message-id), expired (--ttl remaining) or quarantined, which are kept in the archive; unsent, for none of the
    --destination; deferred or scheduled, which stay in the backlog. "duplicates" are those that repeat the
    message id of another one for the same destination, whatever --dedup says.

    There is no --where here: only Spark can tell what its SQL means. sbpair replay run refuses one that is wrong before
    it receives anything, and leaves in the archive what it does not choose.

    The time is the least that --rate and, but for Premium, 1000 credits a second in each namespace allow for receiving
    everything and then sending it.

    JSON; what would become of the messages adds up to "messages":

      {"schema": "sbpair/replay-plan/1", "messages": 0, "bytes": 0, "sent": 0, "already_sent": 0,
       "deduplicated": 0, "expired": 0, "quarantined": 0, "unsent": 0, "deferred": 0, "scheduled": 0, "duplicates": 0,
       "overdue": 0, "scheduled_in_future": 0, "oldest_seconds": null, "newest_seconds": null, "queues": [],
       "destinations": [], "flows": [], "unroutable": [], "ttl": "original", "tiers": {}, "limits": {},
       "seconds": 0.0, "operations": {}, "cost": {}, "notes": []}

    Exit codes: 0 all of it would be sent; 2 there is no such queue; 3 some would be expired, quarantined or left, or
    the primary lacks a destination; 4 the state is another pair's or broken; 6 one side is gone.
    """
    screen = Screen(display)
    terms = terms_of(rate, None, ttl)
    found = profile(connection, screen, count=count, state=state)
    from sbpair.cli.render import forecast
    from sbpair.replay.plan_preview import PlanPreview, named
    from sbpair.syphon import preview

    outlook = PlanPreview(
        found.pair.secondary.name,
        once=dedup is DedupOption.MESSAGE_ID,
        destinations=named(destination or []),
        accepted=_accepted(found),
    )
    queues = backlog(found.pair, queue, deadletters=deadletters)

    async def look(_stop: asyncio.Event) -> "Forecast":
        with forecast.ForecastProgress(screen) as looking:
            return await preview.make_forecast(
                found.pair,
                terms,
                only=queues,
                aside=outlook,
                effective_limits=_limits,
                in_turn=True,
                on_event=looking,
            )

    result = run(look)
    notes = [*result.notes, *_notes(result, outlook, allow_missing=allow_missing)]
    told = {**forecast.document(result, forecast.REPLAY), "notes": notes}
    screen.result(told, [told], forecast.table(result, forecast.REPLAY))
    for note in notes:
        screen.warn(note)
    return ExitCode.PARTIAL_OR_FINDINGS if result.doomed or any(flow.fates["unsent"] for flow in result.flows) else 0


def _notes(found: "Forecast", outlook: "PlanPreview", *, allow_missing: bool) -> list[str]:
    from sbpair.move.message.route import MISSING

    notes = []
    missing = sum(each.messages for each in found.doomed if each.reason == MISSING)
    if missing and not allow_missing:
        notes.append(
            f"a run would archive everything and send nothing: what {missing} messages are for is not in the primary;"
            " create it, or say --allow-missing to have them quarantined"
        )
    if outlook.forgetful:
        notes.append("there are too many message ids to remember: more messages may repeat others than are counted")
    return notes


def _accepted(found: "config.Profile") -> "list[Key]":
    """What the syphon's journal says the primary has; a state that is not there is not made."""
    from sbpair.runs.database import state_if_any
    from sbpair.runs.journal import accepted_keys

    state = state_if_any(Path(found.state_directory), found.pair)
    if state is None:
        return []
    with state:
        return accepted_keys(state)


def _limits(terms: "MoveLimits", tiers: "PairTiers") -> "EffectiveLimits":
    """All that a namespace gives: a replay takes it, and goes slower where the service says so."""
    from sbpair.move.rate_limit import NAMESPACE_CREDITS
    from sbpair.syphon.limits import EffectiveLimits

    primary, secondary = (
        None if (tier or "").lower() == "premium" else NAMESPACE_CREDITS for tier in (tiers.primary, tiers.secondary)
    )
    return EffectiveLimits(terms.rate, primary, secondary)
