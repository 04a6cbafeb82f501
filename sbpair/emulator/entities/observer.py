"""The observer of a namespace's entities. This one does nothing: entities are held in memory only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity


class EntityObserver:
    """An observer that keeps nothing. It is called after a change of an entity, but not for its messages."""

    def created(self, entity: QueueEntity) -> None:
        """React to a new entity, which holds no messages yet."""

    def changed(self, entity: QueueEntity) -> None:
        """React to a new description, or to a change of rules."""

    def transfer_begun(self, entity: QueueEntity, destination: str) -> None:
        """React to an entity's first transfer to this destination, which holds no messages yet."""

    def deleted(self, entity: QueueEntity) -> None:
        """React to a deletion, before the messages and the subscriptions of the entity are gone."""

    def namespace_changed(self, namespace: Namespace) -> None:
        """React to new keys of the namespace, or to a change of its hybrid connections."""
