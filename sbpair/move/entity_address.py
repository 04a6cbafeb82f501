"""The address of an entity: a namespace, and the path of a queue, topic, subscription or dead-letter queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sbpair.model.pair import Ends
from sbpair.move.message.dead_letters import is_dead_letter_path, parent_path

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint


class EntityAddress(NamedTuple):
    """A queue, topic, subscription or dead-letter queue. `side` is as the user named it, or would."""

    side: str
    endpoint: Endpoint
    path: str

    def __str__(self) -> str:
        return f"{self.side}:{self.path}"

    @property
    def alone(self) -> Ends:
        """Its namespace as both ends."""
        return Ends(self.endpoint.name, self.endpoint, self.endpoint)

    @property
    def is_dead_letters(self) -> bool:
        return is_dead_letter_path(self.path)

    @property
    def parent(self) -> str:
        """The path of the entity whose dead-letter queue this is; any other path unchanged."""
        return parent_path(self.path)

    def equals(self, other: EntityAddress) -> bool:
        """Return whether both are one entity: the service ignores the case of paths."""
        return self.same_namespace(other) and self.path.lower() == other.path.lower()

    def same_namespace(self, other: EntityAddress) -> bool:
        return self.endpoint.authority.lower() == other.endpoint.authority.lower()
