"""Sends of paired clients under faults of both namespaces: each that returned is in one place, or named."""

from __future__ import annotations

import signal
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Final

from sbpair.failover.outbox import outbox_depths
from tests.faults.emulated_pair import EmulatedPair
from tests.faults.hostile.trial import Plain, Trial, bring_back
from tests.faults.measured_command import Command

PROGRAM: Final = ("-m", "tests.faults.hostile.sender")
LIMIT_SECONDS: Final = 400.0
FAULT_SECONDS: Final = 4.0
KILLERS: Final = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
KILL_SECONDS: Final = (2.0, 8.0)
REFUSED: Final = 7
"""The exit code of a sender that cannot open its outbox."""


async def play(trial: Trial) -> None:
    """Let clients of each kind send, with and without an outbox in turns."""
    outbox = trial.folder / "outbox.db" if trial.number // 2 % 2 else None
    async with trial.pair().running() as pair:
        await play_sends(trial, pair, ("sync", "aio")[trial.number % 2], outbox=outbox)


async def play_sends(
    trial: Trial,
    pair: EmulatedPair,
    kind: str,
    *,
    outbox: Path | None = None,
    kills: int = 0,
    during: AbstractAsyncContextManager[None] | None = None,
    **variables: str,
) -> None:
    """Send all, through so many kills of the sender, bring back what went to the backlog, and judge."""
    count = trial.amount(2_400)
    plain = Plain(count * (kills + 1), 0)
    await plain.create(*pair.endpoints)
    journal, file = trial.folder / "journal", [str(outbox)] if outbox else []
    async with during or nullcontext():
        for start in range(kills + 1):
            async with pair.away(trial.random, FAULT_SECONDS, both=outbox is not None):
                words = (kind, str(journal), str(start * count), str(count), *file)
                await _send(pair, words, trial.random if start < kills else None, variables)
    if outbox:
        await _send(pair, (kind, str(journal), "0", "0", *file), None, {})
        if depths := outbox_depths(outbox):
            trial.figures.find("other", f"the outbox still has {depths}")
    await bring_back(pair)
    steps = read_journal(journal)
    pair.named |= steps["doubt"]
    trial.figures.messages += len(steps["tried"])
    await pair.judge(plain, ordered=False, required={int(each) for each in steps["sent"]})


async def _send(pair: EmulatedPair, words: tuple[str, ...], killed: Random | None, variables: dict[str, str]) -> None:
    env = pair.environment | variables
    sender = await Command.start(*words, env=env, figures=pair.figures, program=PROGRAM, python=())
    ending = killed.choice(KILLERS) if killed else None
    if killed and ending:
        await sender.signal_after(killed.uniform(*KILL_SECONDS), ending)
    await sender.end({0, REFUSED, *([-ending] if ending else [])}, limit=LIMIT_SECONDS)


def read_journal(path: Path) -> dict[str, set[str]]:
    """Return the names of each step. The last line of a killed process may be cut."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in path.read_text().splitlines():
        step, _, name = line.partition(" ")
        found[step].add(name)
    return found
