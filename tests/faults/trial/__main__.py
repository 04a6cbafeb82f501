"""A hostile trial of the product in rounds: real commands, real emulators and hostile peers over real sockets.

python -m tests.faults.trial [--minutes N] [--only KIND …] [--seed S] [--table FILE]

It ends with a table of its kinds of rounds; --table keeps it in a file, from which a later trial goes on. A finding
begins with the arguments that repeat its round. It needs Linux and root (for small disks), Java and libfaketime.
"""

import argparse
import asyncio
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from tests.faults.trial import movers, peers, ports
from tests.faults.trial.figures import Figures, Table

Round: TypeAlias = Callable[[Path, Random, Figures], Awaitable[None]]

KINDS: Final[dict[str, tuple[int, Round]]] = {
    "kills": (6, movers.round_of(movers.kills)),
    "cuts": (4, movers.round_of(movers.cuts)),
    "full-disk": (2, movers.round_of(movers.full_disk)),
    "broken-files": (3, movers.round_of(movers.broken_files)),
    "clock": (1, movers.round_of(movers.clock)),
    "peers": (8, peers.peers),
    "certificates": (2, peers.certificates),
    "ports": (2, ports.attacks),
    "replay": (1, movers.round_of(movers.replay)),
}
"""Each kind with its share of the rounds."""

ROUND_SECONDS: Final = 900.0


async def play(kind: str, seed: int, number: int) -> Figures:
    """Play a round, which its seed and number draw."""
    figures, again = Figures(rounds=1), f"--only {kind} --seed {seed} --round {number}"
    try:
        with TemporaryDirectory(prefix="sbpair-trial-", ignore_cleanup_errors=True) as directory:
            async with asyncio.timeout(ROUND_SECONDS):
                await KINDS[kind][1](Path(directory), Random(f"{seed} {kind} {number}"), figures)
    except Exception:  # noqa: BLE001  # a mistake of the trial ends its round only, and is counted
        figures.find("other", f"the round broke: {traceback.format_exc()[-1_500:]}")
    figures.findings = [f"{again}: {each}" for each in figures.findings]
    return figures


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.trial", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="no round begins later")
    parser.add_argument("--only", nargs="+", choices=sorted(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="play only this round of each kind")
    parser.add_argument("--table", type=Path, help="JSON file of the figures, which is continued")
    return parser.parse_args()


def main() -> int:
    options, end = parsed(), time.monotonic()
    # A shell ignores it for a command in the background, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end += options.minutes * 60
    table = Table(options.table)
    drawing = Random(f"{options.seed} {sum(each.rounds for each in table.kinds.values())}")
    kinds = [kind for kind in options.only for _ in range(1 if options.round is not None else KINDS[kind][0])]
    while time.monotonic() < end:
        drawing.shuffle(kinds)
        for kind in kinds:
            if time.monotonic() > end and options.round is None:
                break
            number = table.of(kind).rounds if options.round is None else options.round
            began = time.monotonic()
            figures = asyncio.run(play(kind, options.seed, number))
            table.add(kind, figures)
            say(f"{time.strftime('%H:%M:%S')} {kind} {number}: {time.monotonic() - began:.0f} s", *figures.findings)
        if options.round is not None:
            break
    say(str(table))
    return 1 if any(each.wrong for each in table.kinds.values()) else 0


def say(*lines: str) -> None:
    sys.stdout.write("\n    ".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
