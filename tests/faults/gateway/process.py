"""A gateway as a process, which can be killed: python -m tests.faults.gateway.process FOLDER PORT SECONDS

The pair is that of the environment, and SECONDS are the time of a send. The process prints its port, and ends by a
signal. FOLDER keeps the outbox, the limits, a line for each event, and in `taken` the id of each message that it took
from a client, before anything else is done with it.
"""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sbpair.amqp.link import Delivery
from sbpair.amqp.message import BATCH_FORMAT, Sections, batch_members
from sbpair.config import load_pair
from sbpair.gateway.failing_sender import FailingSender
from sbpair.gateway.gateway import Gateway, GatewayOptions
from tests.kit.gateway_key import RULE

PING_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 20.0


def note(file: int, text: str) -> None:
    """Append a line that a kill does not lose."""
    os.write(file, f"{text}\n".encode())


def note_what_is_taken(file: int) -> None:
    receive = FailingSender.receive

    def noted(self: FailingSender, delivery: Delivery) -> None:
        payload = bytes(delivery.payload)
        for each in batch_members(payload) if delivery.format == BATCH_FORMAT else [payload]:
            note(file, str(Sections.split(each).read_properties().message_id))
        receive(self, delivery)

    FailingSender.receive = noted  # type: ignore[method-assign]


async def main(folder: Path, port: int, seconds: float) -> None:
    taken, events = (os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("taken", "events"))
    note_what_is_taken(taken)

    def on_event(event: Any) -> None:
        ids = list(getattr(event, "message_ids", ()))
        note(events, json.dumps({"kind": type(event).__name__, "ids": ids, "text": str(event)[:300]}))

    pair = replace(load_pair(), failover_interval=0, ping_interval=PING_SECONDS)
    options = GatewayOptions(
        rule=RULE, port=port, retries=0, timeout=seconds, outbox=folder / "outbox", limits_file=folder / "limits.json"
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with Gateway(pair, options, on_event) as gateway:
        sys.stdout.write(f"{gateway.port}\n")
        sys.stdout.flush()
        await ended.wait()
        await gateway.stop(GRACE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
