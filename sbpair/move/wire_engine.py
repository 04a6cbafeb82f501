"""The engine that moves bytes, by our own AMQP client: what it does not have to change, it does not look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.move.wire_primary import WirePrimary
from sbpair.move.wire_source import WireSource
from sbpair.wire.client import connect

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.wire.client import GetToken


class WireEngine:
    def __init__(self, pair: Pair, get_token: GetToken | None = None) -> None:
        self._pair = pair
        self._get_token = get_token

    @asynccontextmanager
    async def source(self, queue: str) -> AsyncIterator[WireSource]:
        async with connect(self._pair.secondary, get_token=self._get_token) as wire:
            yield await WireSource.open(wire, queue)

    def primary(self) -> WirePrimary:
        return WirePrimary(self._pair.primary, get_token=self._get_token)
