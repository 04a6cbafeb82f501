"""Where the messages of a replay go, by which names, and whose acceptances count."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sbpair.move.message.renames import Renames, read_renames


@dataclass(frozen=True)
class ReplayDelivery:
    """Where messages go: `to` is the name of a namespace as in --to, and `namespace` its id; "" is the pair's primary.

    `map` has the lines of --map. With `include_acknowledged`, messages that only another namespace accepted are sent.
    """

    to: str = ""
    namespace: str = ""
    map: tuple[str, ...] = ()
    include_acknowledged: bool = False

    @cached_property
    def renames(self) -> Renames:
        return read_renames(self.map)

    @property
    def only(self) -> str | None:
        """The namespace whose acceptances alone count; None if those of all do."""
        return self.namespace if self.include_acknowledged else None

    def name(self, path: str | None) -> str | None:
        """Return the name that a message's destination has now."""
        return self.renames(path.strip("/")) if path and self.map else path


PRIMARY = ReplayDelivery()
