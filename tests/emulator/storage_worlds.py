"""Two emulators side by side: one is restarted from its file, the other keeps running and only loses its locks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.stored_message import ACTIVE, DEFERRED, LOCKED, StoredMessage
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.faults.fault_kinds import Faults
from sbpair.emulator.storage.storage import Storage

PORT = 5672
CONTOSO = {"contoso": (PORT, "standard", 1)}


def copied(data: Path, name: str) -> Path:
    """Copy a data file and its log, as a kill would leave them."""
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{data}{suffix}", data.with_name(f"{name}{suffix}"))
    return data.with_name(name)


class NoTimer:
    """A timer that never runs: tests commit by themselves."""

    def cancel(self) -> None: ...


@dataclass
class World:
    """A namespace with its clock, and a file if it has one. `delays` are those of the timers that never run."""

    namespace: Namespace
    clock: ManualClock
    path: Path | None = None
    storage: Storage | None = None
    down: bool = False
    delays: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forget_faults()

    def forget_faults(self) -> None:
        """End all faults as the end of an emulator does: what waits is not resumed."""
        self.namespace.fault_points.acting.clear()
        self.faults = Faults({"contoso": self.namespace}, self.advance)
        self.down = False

    @classmethod
    def start(cls, clock: ManualClock, path: Path | None = None) -> World:
        world = cls(Namespace("contoso", clock), clock, path)
        if path is not None:
            world.storage = Storage(path, CONTOSO, durable=True)
            world.storage.start({"contoso": world.namespace}, [PORT], clock, world._never)
        return world

    def _never(self, delay: float, _callback: Callable[[], object]) -> Any:
        self.delays.append(delay)
        return NoTimer()

    def close(self) -> None:
        if self.storage is not None:
            self.storage.close()

    def kill(self) -> Path:
        """Close the file; return a copy of what was on disk before."""
        assert self.path is not None
        assert self.namespace.store_changes()
        copy = copied(self.path, self.path.name + "+")
        self.close()
        return copy

    def restart(self, *, kill: bool) -> World:
        """Return the world that a new emulator has: from the file, or after a kill from copies of what was on disk."""
        if kill:
            return World.start(self.clock, self.kill())
        self.close()
        return World.start(self.clock, self.path)

    def unlock_all(self) -> None:
        """End every lock without counting a failed delivery, as a restart does."""
        for entity in self.namespace.all_entities():
            for messages in sub_queues(entity):
                if isinstance(messages, SessionMessages):
                    for held in list(messages._holds.values()):
                        held.close()
                for message in list(messages._store.read_from(0)):
                    if message.state == LOCKED:
                        messages.release(message.lock_token)

    def advance(self, ms: int) -> None:
        """Advance from deadline to deadline, as the timer of an emulator does: the order of what is due is theirs."""
        until = self.clock.now_ms() + ms
        while (due := self.namespace.timers.next_deadline_ms()) is not None and due <= until:
            self.clock.advance(max(0, due - self.clock.now_ms()))
            self.namespace.timers.advance(self.clock.now_ms())
        self.clock.advance(until - self.clock.now_ms())


def sub_queues(entity: QueueEntity) -> tuple[SubQueue, ...]:
    transfers = [messages for _, (messages, _) in sorted(entity._transfers.items())]
    return entity.messages, entity.dead_letters, entity.transfer_dead_letters, *transfers


def state_of(world: World) -> dict[str, Any]:
    """Return all that a file has to keep."""
    return {
        "keys": world.namespace.keys,
        "created": world.namespace.created_at_ms,
        "entities": {entity.path: _entity(entity) for entity in world.namespace.all_entities()},
    }


def _entity(entity: QueueEntity) -> dict[str, Any]:
    duplicates = entity._duplicates
    return {
        "kind": type(entity),
        "description": entity.description,
        "times": (entity.created_at_ms, entity.updated_at_ms),
        "rules": entity.rules if isinstance(entity, SubscriptionEntity) else None,
        "subscriptions": len(entity.subscriptions) if isinstance(entity, TopicEntity) else None,
        "seen": None if duplicates is None else dict(duplicates.seen),
        "counts": entity.counts(),
        "size": entity.size_bytes,
        "stores": [_sub_queue(each) for each in sub_queues(entity)],
    }


def _sub_queue(messages: SubQueue) -> dict[str, Any]:
    sessions = messages._sessions.sessions.values() if isinstance(messages, SessionMessages) else ()
    return {
        "numbers": list(messages.last_numbers),
        "messages": [_message(each) for each in messages._store.read_from(0)],
        "sessions": {each.id: (each.state, each.state_changed_ms) for each in sessions if each.state is not None},
    }


_LOCK = {"content", "lock_token", "locked_until_ms", "state"}
_FIELDS = [each.name for each in fields(StoredMessage) if each.name not in _LOCK]


def _message(message: StoredMessage) -> dict[str, Any]:
    kept = {name: getattr(message, name) for name in [*_FIELDS, "enqueued_sequence_number", "hops"]}
    unlocked = DEFERRED if message.reported_state == DEFERRED else ACTIVE
    state = unlocked if message.state == LOCKED else message.state
    return {"state": state, "content": message.sections.join(), **kept}
