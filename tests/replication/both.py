"""A queue of the same name in both namespaces, and its senders and receivers of either kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import sbpair
from sbpair import aio
from sbpair.azure.data_plane import SdkKey, sync_client
from tests.kit.failover_rig import EventLog, Rig, a_message, faced, ids
from tests.kit.running import Running


class Both(Rig):
    """A queue `orders` in both namespaces, with locks that outlast each test."""

    def __init__(self, running: Running) -> None:
        super().__init__(running, queues=1)
        self.copy = self.do(lambda: running.other.create_queue("orders"))

    @contextmanager
    def made(self, name: str, kind: str = "sync", entity: str = "orders", **options: Any) -> Iterator[Any]:
        """Open an ActiveSender, PassiveSender or DedupReceiver of either kind, for sync use."""
        log = EventLog()
        options = {"on_event": log, **({} if name == "DedupReceiver" else {"retries": 0}), **options}
        if kind == "sync":
            made = getattr(sbpair, name)(self.pair, entity, **options)
        else:
            made = faced(lambda: getattr(aio, name)(self.pair, entity, **options))
        with made as opened:
            yield opened, log

    active = partialmethod(made, "ActiveSender")
    passive = partialmethod(made, "PassiveSender")
    receiver = partialmethod(made, "DedupReceiver")

    def put(self, side: str, *names: str, **own: Any) -> None:
        """Put messages on one side only."""
        endpoint = getattr(self.pair, side)
        with (
            sync_client(endpoint, SdkKey(endpoint), 10) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages([a_message(name, **own) for name in names])

    @property
    def held(self) -> tuple[list[Any], list[Any]]:
        """Return the ids in the primary, and in the secondary."""
        return ids(self.in_queue(self.orders)), ids(self.in_queue(self.copy))


def drained(both: Both, receiver: Any, limit: int = 1000) -> list[str]:
    """Complete messages until the limit, or until both queues are empty. Returns their ids."""
    found: list[str] = []
    while len(found) < limit and both.held != ([], []):
        for message in receiver.receive_messages(10, max_wait_time=0.6):
            receiver.complete_message(message)
            found.append(message.message_id)
    return found


def twins(both: Both, *names: str) -> None:
    both.put("primary", *names)
    both.put("secondary", *names)
