"""A campaign of faults on a gateway, whose clients are those of Service Bus for three languages.

python -m tests.faults.gateway FOLDER [--faults 200] [--kills 20] [--seed 1] [--languages py js go]

Each client sends to queues of its own, with and without sessions, and receives from one of them, while a seed places
faults of the primary, and kills of the gateway, which starts again at its port. Afterwards the syphon moves the
backlog, and every message whose client was told that it is accepted must be there, as it was sent: its bytes are those
of a message that the same client has sent to the namespace itself. One may be there twice if an event has named it, or
if its client has sent it again. FOLDER keeps the figures, and the outputs of all processes.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

from tests.faults.figures import Table
from tests.faults.gateway.campaign import Campaign, Plan

LANGUAGES: Final = ("py", "js", "go")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.gateway", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=LANGUAGES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(options.seed, options.faults, options.kills, tuple(options.languages))
    campaign = Campaign(options.folder, plan)
    asyncio.run(campaign.play())
    table = Table(options.folder / "figures.json")
    table.add("gateway", campaign.figures)
    sys.stdout.write(
        f"{table}\n{campaign.counts}\n" + "\n".join(each[:500] for each in campaign.figures.findings) + "\n"
    )
    return 1 if campaign.figures.wrong or campaign.figures.late else 0


if __name__ == "__main__":
    sys.exit(main())
