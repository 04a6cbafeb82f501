"""The engine: moves raw bytes over sbpair's AMQP client, and decodes only the parts that it must change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.amqp_client.client import connect
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.raw_source import RawSource

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.model.pair import Pair


class RawEngine:
    def __init__(self, pair: Pair, get_token: GetToken | None = None) -> None:
        self._pair = pair
        self._get_token = get_token

    @asynccontextmanager
    async def source(self, queue: str) -> AsyncIterator[RawSource]:
        async with connect(self._pair.secondary, get_token=self._get_token) as wire:
            yield await RawSource.open(wire, queue)

    def primary(self) -> RawPrimary:
        return RawPrimary(self._pair.primary, get_token=self._get_token)
