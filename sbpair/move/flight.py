"""One flight: messages on their way to the primary, from the parcel that they leave in to its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.move.engine import Answer, Arrival, Order, Parcel
    from sbpair.move.route import Key


@dataclass(slots=True)
class Flight:
    """Messages that leave together, and the journal's number for them."""

    orders: list[Order]
    parcel: Parcel
    number: int = 0
    answer: Answer | None = None

    @property
    def arrivals(self) -> list[Arrival]:
        return [order.arrival for order in self.orders]

    @property
    def keys(self) -> list[Key]:
        return [order.arrival.key for order in self.orders]
