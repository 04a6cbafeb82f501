"""All that the connections of a gateway share: options, the failover of the pair, figures, work in the background.

Invariant: a bug in the work of one connection is logged, and ends nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbpair.errors import SbpairError
from sbpair.failover.raw_send import RawFailoverClient
from sbpair.gateway.stated_sizes import StatedSizes
from sbpair.model.tiers import SMALLEST_TIER_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.amqp_server.shared_access import AuthorizationRule
    from sbpair.failover.events import SenderEvent
    from sbpair.failover.shared_state import SendSide
    from sbpair.model.pair import Endpoint, Pair

logger = logging.getLogger(__name__)

ATTACH_SECONDS: Final = 15.0
"""How long a client's attach waits for the primary before the gateway accepts it alone."""

LIMIT_SECONDS: Final = 2.0
"""How long the first links wait for the limit of the backlog."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayOptions:
    """How a gateway listens and sends. `rule` is its key; `timeout` is that of a send, in seconds.

    `admit` returns whether a connection that was just accepted may stay. `tls` returns the context of new connections.
    """

    rule: AuthorizationRule
    port: int = 5672
    tls: Callable[[], ssl.SSLContext] | None = None
    admit: Callable[[socket.socket], bool] = lambda _: True
    allow_hosts: tuple[str, ...] = ()
    on_failure: Any = "backlog-now"
    failover_on: Any = "default"
    retries: int = 3
    timeout: float = 40.0
    outbox: Path | None = None
    allow_unpaired_size: bool = False
    limits_file: Path | None = None


@dataclass(slots=True)
class GatewayFigures:
    """Messages since the start: `sent` by clients and answered, `received` by them, `retried` on their behalf."""

    sent: int = 0
    received: int = 0
    retried: int = 0


class GatewayCore:
    """Shared by connections. `changed` is set when a message is accepted or settled, and when a connection ends."""

    def __init__(self, pair: Pair, options: GatewayOptions, on_event: Callable[[SenderEvent], None] | None) -> None:
        self.pair, self.options = pair, options
        self.failover = RawFailoverClient(
            pair,
            on_failure=options.on_failure,
            failover_on=options.failover_on,
            retries=options.retries,
            timeout=options.timeout,
            outbox=options.outbox,
            on_event=on_event,
        )
        self.figures, self.limits = GatewayFigures(), StatedSizes(options.limits_file)
        self.failover.failover_state.backlog_bytes = self.limits.backlog_bytes
        self.is_stopping = False
        self.attach_seconds = min(ATTACH_SECONDS, options.timeout / 2)
        self.changed = asyncio.Event()
        self.tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._asked_limit = asyncio.Event()

    def endpoint(self) -> Endpoint:
        """Return the namespace that clients reach: the secondary once the primary is lost."""
        return self.pair.secondary if self.failover.failover_state.lost else self.pair.primary

    def side_for(self, entity: str) -> SendSide:
        """Return where messages of an entity go; of one whose pings are refused, to the primary, which says why."""
        state = self.failover.failover_state
        state.register(entity)
        try:
            return state.side_for(entity, self.failover.now())
        except Exception:  # noqa: BLE001  # the lasting refusal of a broken entity
            return "primary"

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work of one connection, unless the gateway is over. A bug in it is logged, and ends nothing else."""
        if self._is_over:
            work.close()
            work = asyncio.sleep(0)
        task = self.tasks.create_task(_guarded(work, name), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def next_tag(self) -> bytes:
        """Return the tag of a delivery that is sent again on behalf of a client."""
        self.figures.retried += 1
        return b"sbpair-%d" % self.figures.retried

    def cancel_all(self) -> None:
        """Cancel all work, and start no more."""
        self._is_over = True
        for task in self._running:
            task.cancel()

    async def ask_backlog_limit(self) -> None:
        """Learn the largest message of the backlog, once: links state it, and larger messages are refused."""
        state = self.failover.failover_state
        try:
            if state.backlog_bytes is None:
                queue, _ = state.pick_queue(None)
                limit = await self.failover.max_message_size(queue, self.attach_seconds)
                state.backlog_bytes = limit or SMALLEST_TIER_BYTES
        finally:
            self._asked_limit.set()

    async def backlog_limit_known(self) -> None:
        """Wait a little for the limit of the backlog."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._asked_limit.wait()


async def _guarded(work: Coroutine[Any, Any, None], name: str) -> None:
    try:
        await work
    except SbpairError as error:
        logger.warning("%s: %s%s", name, error.message, f"; {error.hint}" if error.hint else "")
    except Exception:
        logger.exception("%s failed because of a bug", name)
