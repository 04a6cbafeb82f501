"""Removing the duplicates of one side in bulk: received without an SDK, and completed in ranges.

Invariant: a message that is not a duplicate is released at once, which leaves its delivery count as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from azure.servicebus import ServiceBusReceivedMessage

from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED
from sbpair.azure.credentials import token_getter
from sbpair.errors import SbpairError

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp_client.client import AmqpClient
    from sbpair.amqp_client.raw_links import RawReceiver
    from sbpair.model.pair import Endpoint, Pair

log = logging.getLogger(__name__)

BATCH = 250
"""Messages received at once: so many that are not duplicates may be released."""

TURN_SECONDS = 2.0
"""How long duplicates of one side are removed before it is the other's turn."""

WAIT_SECONDS = 0.3
"""How long to wait for a message before the rest counts as removed."""

CLOSE_SECONDS = 5.0

DuplicateKey = Callable[[ServiceBusReceivedMessage], str | None]
"""Returns the key of a message if it is a duplicate, else None."""


class Removed(NamedTuple):
    """Completed duplicates as (key, sequence number). `more`: the turn ended before the duplicates did."""

    duplicates: list[tuple[str, int]]
    more: bool


def remove_duplicates(pair: Pair, endpoint: Endpoint, path: str, duplicate_key: DuplicateKey) -> Removed:
    """Remove duplicates up to the first other message, for a turn. Blocks. Raises nothing but programming errors."""
    removal = _BulkRemoval(pair, endpoint, path, duplicate_key)
    # In a thread of its own: the caller's may have an event loop that is running.
    with ThreadPoolExecutor(1, thread_name_prefix="sbpair") as thread:
        return thread.submit(asyncio.run, removal.run()).result()


class _BulkRemoval:
    def __init__(self, pair: Pair, endpoint: Endpoint, path: str, duplicate_key: DuplicateKey) -> None:
        self._pair, self._endpoint, self._path = pair, endpoint, path
        self._duplicate_key = duplicate_key
        self._removed: list[tuple[str, int]] = []

    async def run(self) -> Removed:
        more = False
        try:
            async with token_getter(self._pair) as get_token, connect(self._endpoint, get_token=get_token) as client:
                more = await self._remove(client)
        except SbpairError as error:
            log.info("duplicates in %s of %s stay for now: %s", self._path, self._endpoint.name, error.message)
        return Removed(self._removed, more)

    async def _remove(self, client: AmqpClient) -> bool:
        """Return whether more duplicates may follow."""
        receiver = await client.receiver(self._path)
        loop, is_last = asyncio.get_running_loop(), False
        until = loop.time() + TURN_SECONDS
        try:
            while not is_last and loop.time() < until:
                receiver.grant(BATCH)
                deliveries = await receiver.take(BATCH, seconds=WAIT_SECONDS)
                is_last = await self._settle(receiver, deliveries)
        finally:
            left = await receiver.stop()
            while left:
                await receiver.settle_each(left, RELEASED)
                left = receiver.take_remaining()
        return not is_last

    async def _settle(self, receiver: RawReceiver, deliveries: list[Delivery]) -> bool:
        """Complete duplicates and release the others. Return whether these were the last duplicates."""
        duplicates: dict[int, tuple[str, int]] = {}
        for delivery in deliveries:
            if found := self._judge(delivery):
                duplicates[delivery.id] = found
        others = [each for each in deliveries if each.id not in duplicates]
        await receiver.settle_each(others, RELEASED)
        failures = await receiver.settle_each([each for each in deliveries if each.id in duplicates], ACCEPTED)
        for delivery, _ in failures:
            del duplicates[delivery.id]  # it is delivered again
        self._removed += duplicates.values()
        return not duplicates or bool(others or failures)

    def _judge(self, delivery: Delivery) -> tuple[str, int] | None:
        try:
            message = ServiceBusReceivedMessage.from_bytes(delivery.payload)
            key = self._duplicate_key(message)
        except Exception as error:  # noqa: BLE001  a user's function, or a message that only the SDK's receiver reports
            log.debug("%s: no key: %s", self._path, type(error).__name__)
            return None
        return None if key is None else (key, message.sequence_number or 0)
