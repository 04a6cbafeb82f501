"""`sbpair replay plan`: previews a replay with the scan of the syphon's dry run."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, STATE, PairSelection
from sbpair.cli.options.values import selected_profile
from sbpair.cli.render.screen import Screen
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair import config
    from sbpair.model.message_key import Key
    from sbpair.replay.plan_preview import PlanPreview
    from sbpair.syphon.forecast import Forecast
    from sbpair.syphon.limits import EffectiveLimits, MoveLimits, PairTiers


def command(
    *,
    queue: list[str] | None = moves.QUEUES,
    dead_letters: bool = moves.DEAD_LETTERS,
    destination: list[str] | None = moves.DESTINATIONS,
    count: int | None = COUNT,
    dedup: moves.Dedup = moves.DEDUP,
    ttl: moves.Ttl = moves.TTL,
    rate: str | None = moves.RATE,
    allow_missing: bool = moves.ALLOW_MISSING,
    max_discard: int | None = moves.MAX_DISCARD,
    allow_discard: bool = moves.ALLOW_DISCARD,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Preview a replay: outcomes, age, duplicates, duration and cost.

    Peeks each message: nothing is locked, received or written. Needs no Java. The duration is a lower bound from --rate
    and the 1000 credits a second of each Standard namespace.

    Examples:
      sbpair replay plan
      sbpair replay plan --destination orders --dedup message-id

    Exit codes: 3 some would expire, be quarantined or stay unsent; 4 the state is another pair's

    See also: sbpair help replay
    """
    limits, most = moves.limits_of(rate, None, ttl), moves.discard_limit(max_discard, allow=allow_discard)
    found = selected_profile(connection, screen, count=count, state=state)
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.replay.plan_preview import PlanPreview, normalize_destinations
    from sbpair.syphon import preview

    outlook = PlanPreview(
        found.pair.secondary.name,
        dedup=dedup == "message-id",
        destinations=normalize_destinations(destination or []),
        accepted=_accepted(found),
    )
    queues = moves.backlog_paths(found.pair, queue, dead_letters=dead_letters)

    with PeekProgress(screen) as progress:
        result = run(
            preview.make_forecast(
                found.pair,
                limits,
                only=queues,
                aside=outlook,
                effective_limits=_limits,
                in_turn=True,
                on_event=progress,
            )
        )
    notes = [*result.notes, *_notes(result, outlook, allow_missing=allow_missing)]
    notes += forecast.discard_notes(result, most)
    plan = {**forecast.document(result, forecast.REPLAY), "notes": notes}
    screen.result(forecast.REPLAY.schema, plan, forecast.table(result, forecast.REPLAY))
    for note in notes:
        screen.warn(note)
    unsent = any(flow.outcomes["unsent"] for flow in result.flows)
    return ExitCode.PARTIAL_OR_FINDINGS if unsent else max(result.exit_code, result.discard_code(most))


def _notes(found: "Forecast", outlook: "PlanPreview", *, allow_missing: bool) -> list[str]:
    from sbpair.move.message.route import MISSING

    notes = []
    missing = sum(each.messages for each in found.dead_letters if each.reason == MISSING)
    if missing and not allow_missing:
        notes.append(
            f"a run would archive everything and send nothing: the primary lacks destinations of {missing} messages;"
            " create them, or pass --allow-missing to quarantine these messages"
        )
    if outlook.ids_overflowed:
        notes.append("too many message ids to remember: there may be more duplicates than counted")
    return notes


def _accepted(found: "config.Profile") -> "list[Key]":
    """Return the messages that the syphon's journal records as accepted, without creating a state directory."""
    from sbpair.runs.database import state_if_any
    from sbpair.runs.journal import accepted_keys

    with state_if_any(found.state_directory, found.pair) or nullcontext() as state:
        return accepted_keys(state) if state else []


def _limits(terms: "MoveLimits", tiers: "PairTiers") -> "EffectiveLimits":
    """Return the full credits of the namespaces, which a replay uses until the service throttles it."""
    from sbpair.move.rate_limit import NAMESPACE_CREDITS
    from sbpair.syphon.limits import EffectiveLimits

    primary, secondary = (
        None if (tier or "").lower() == "premium" else NAMESPACE_CREDITS for tier in (tiers.primary, tiers.secondary)
    )
    return EffectiveLimits(terms.rate, primary, secondary)
