"""Movers, senders and emulators that are killed at random moments, while the other processes go on.

The messages are counted by content. The emulators keep theirs with `--durable`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sbpair.azure.atom import open_atom
from tests.benchmarks.stranded import DESTINATIONS, PRIMARY, SECONDARY, backlog_queues, destination
from tests.faults.emulated_pair import EmulatedPair
from tests.faults.hostile.sends import play_sends
from tests.faults.hostile.trial import SYPHON, Plain, Trial, strand

COUNT: Final = 16_000
KILLS: Final = 4
FIRST_SECONDS: Final = (0.5, 9.0)
QUICK_SECONDS: Final = (0.5, 3.0)


async def play(trial: Trial) -> None:
    async with trial.pair(durable=True).running() as pair:
        await WAYS[trial.number % len(WAYS)](trial, pair)


async def syphon(trial: Trial, pair: EmulatedPair, how: str) -> None:
    stranded = await strand(trial, pair, COUNT)
    await _syphon_until(pair, trial, how)
    await pair.judge(stranded)


async def replay(trial: Trial, pair: EmulatedPair) -> None:
    stranded = await strand(trial, pair, COUNT)
    await pair.replay(trial.folder / "archive", random=trial.random, kills=2)
    await pair.judge(stranded, ordered=False)


async def redrive(trial: Trial, pair: EmulatedPair) -> None:
    """Dead-letter all, since the destinations are missing, and redrive them once these are there."""
    stranded = await strand(trial, pair, COUNT)
    async with open_atom(pair.endpoint(PRIMARY)) as control:
        for number in range(DESTINATIONS):
            await control.delete(destination(number))
    await _syphon_until(pair, trial, "--once", "--allow-missing")
    await stranded.create(*pair.endpoints)
    words = ("redrive", "--backlog", *SYPHON[2:])
    await pair.repeat(*words, until=pair.is_empty, random=trial.random, kills=KILLS, first=FIRST_SECONDS)
    await pair.judge(stranded, ordered=False)


async def move(trial: Trial, pair: EmulatedPair) -> None:
    plain = Plain(trial.amount(COUNT), 0)
    trial.figures.messages += plain.count
    await plain.create(*pair.endpoints)
    await plain.create_sources(pair.endpoint(SECONDARY))
    await plain.fill_sources(pair.endpoint(SECONDARY))
    for number in range(DESTINATIONS):
        queue = destination(number)

        async def is_done(queue: str = queue) -> bool:
            async with open_atom(pair.endpoint(SECONDARY)) as control:
                return not (await control.counts(queue)).total

        words = ("move", f"secondary:{queue}", f"primary:{queue}", "--credits", "none")
        await pair.repeat(*words, until=is_done, random=trial.random, kills=2, first=QUICK_SECONDS)
    await pair.judge(plain)


async def senders(trial: Trial, pair: EmulatedPair, kind: str) -> None:
    await play_sends(trial, pair, kind, outbox=trial.folder / "outbox.db", kills=KILLS)


async def _syphon_until(pair: EmulatedPair, trial: Trial, how: str, *options: str) -> None:
    """Start syphons until no active message is left."""

    async def is_done() -> bool:
        async with open_atom(pair.endpoint(SECONDARY)) as control:
            return not any([(await control.counts(queue)).active for queue in backlog_queues()])

    words = ("syphon", how, *SYPHON[2:], *options)
    await pair.repeat(*words, until=is_done, random=trial.random, kills=KILLS, first=FIRST_SECONDS)


WAYS: Final = (
    partial(syphon, how="--once"),
    partial(senders, kind="sync"),
    redrive,
    move,
    replay,
    partial(syphon, how="--watch"),
    partial(senders, kind="aio"),
)
