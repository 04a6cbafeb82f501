"""A paired client that sends numbered messages, in a process that may be killed. Each step is a line in a journal.

python -m tests.faults.hostile.sender sync|aio JOURNAL FIRST COUNT [OUTBOX]

It ends when all are sent and the outbox is empty, or with SIGTERM. Invariant: a step is in the journal before the next.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from sbpair import PairedClient, aio, load_pair, outbox_depths
from sbpair.errors import MachineLacks, SbpairError
from sbpair.events import SendInDoubt
from tests.benchmarks.stranded import BODY, CONTENT_TYPE, DAY_MS, DESTINATIONS, QUEUES, destination, session_id
from tests.kit.failover_rig import faced

EMPTY_SECONDS: Final = 120.0
GROUPS: Final = (1, 1, 1, 5)
"""How many messages a call has, in turns."""


class Journal:
    """The file of steps. Lines of several threads do not mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, step: str, names: Iterable[object]) -> None:
        os.write(self._file, "".join(f"{step} {name}\n" for name in names).encode())

    def on_event(self, event: object) -> None:
        if isinstance(event, SendInDoubt):
            self.write("doubt", event.message_ids)


def message(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(
        BODY,
        message_id=f"{number:09d}",
        content_type=CONTENT_TYPE,
        session_id=session_id(number),
        time_to_live=timedelta(milliseconds=DAY_MS),
        application_properties={"customer": "fabrikam", "attempt": 1},
    )


def send(client: Any, journal: Journal, numbers: range, stop: threading.Event) -> None:
    """Send the messages of one destination."""
    left, turn = list(numbers), 0
    with suppress(IndexError):
        sender = client.get_queue_sender(destination(numbers[0]))
    while left and not stop.is_set():
        size = GROUPS[turn % len(GROUPS)]
        group, left, turn = left[:size], left[size:], turn + 1
        journal.write("tried", group)
        try:
            sender.send_messages([message(number) for number in group])
        except (ServiceBusError, SbpairError) as error:
            journal.write(f"failed:{type(error).__name__}", group)
        else:
            journal.write("sent", group)


def main(kind: str, journal: Journal, first: int, count: int, outbox: str | None) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pair = replace(load_pair(), backlog_queues=QUEUES, failover_interval=1, ping_interval=1)
    terms = {"timeout": 20, "retries": 0, "on_event": journal.on_event, "outbox": outbox}
    made = PairedClient(pair, **terms) if kind == "sync" else faced(lambda: aio.PairedClient(pair, **terms))
    with made as client:
        work = [
            threading.Thread(
                target=send, args=(client, journal, range(first + each, first + count, DESTINATIONS), stop)
            )
            for each in range(DESTINATIONS)
        ]
        for each in work:
            each.start()
        for each in work:
            each.join()
        until = time.monotonic() + EMPTY_SECONDS
        while outbox and outbox_depths(outbox) and not stop.is_set() and time.monotonic() < until:
            stop.wait(0.2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # it logs errors that it raises, with their tracebacks
    way, path, start, number, *file = sys.argv[1:]
    try:
        main(way, Journal(Path(path)), int(start), int(number), next(iter(file), None))
    except MachineLacks as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(int(error.exit_code))
