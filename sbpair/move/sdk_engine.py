"""The engine on azure-servicebus: for who must use the official client, and can do without what it does not keep.

What it changes: see `bus.decoded`. Nobody falls back from one engine to the other.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from sbpair.move.sdk_primary import SdkPrimary
from sbpair.move.sdk_source import SdkSource, open_source

if TYPE_CHECKING:
    from sbpair.model import Pair


class SdkEngine:
    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def source(self, queue: str) -> AbstractAsyncContextManager[SdkSource]:
        return open_source(self._pair.secondary, queue)

    def primary(self) -> SdkPrimary:
        return SdkPrimary(self._pair.primary)
