"""`sbpair drill --relay`: runs `sbpair.drill.relay_drill` and prints its verdict."""

import logging
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.render.screen import Screen, clean, plural
from sbpair.cli.render.table import columns, wrapped

if TYPE_CHECKING:
    from sbpair.drill.relay_drill import RelayDrillResult

SCHEMA = "sbpair/relay-drill/1"


def rehearse_relay(screen: Screen, rate: float, seed: int) -> int:
    """Run the drill, print its phases and its result, and return the exit code."""
    from sbpair.drill.relay_drill import run_relay_drill

    # It logs the events that are printed here, and one for each request that fails.
    logging.getLogger("sbpair.relay.events").setLevel(logging.CRITICAL)
    result = run(
        run_relay_drill(
            rate=rate, seed=seed, on_event=lambda phase: screen.say(f"{phase.seconds:6.1f} s  {phase.text}")
        )
    )
    document = asdict(result.tally) | {
        "seconds": round(result.seconds, 3),
        "timeline": [asdict(each) for each in result.timeline],
    }
    screen.result(SCHEMA, document, _table(result))
    return result.exit_code


def _table(result: "RelayDrillResult") -> Iterator[str]:
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
