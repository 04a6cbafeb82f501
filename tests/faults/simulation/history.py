"""Everything that happened to every message of a run, as the namespaces saw it: it hooks into their queues.

The order of the lines is the order of events. What is wrong the moment it happens is noted at once, in `wrong`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sbpair.amqp.types import text_of
from sbpair.amqp_server.refusals import EntityFull, ServiceError
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.errors import ProtocolError
from sbpair.model.message_state import dead_letter_path
from tests.faults.simulation.harness import Record
from tests.faults.simulation.workload import Stranded


@dataclass(eq=False)
class Track:
    """One message: what was put in, and what has become of it. `holder` is (syphon, connection) that has it locked.

    `waited_ms` is how long it was in the backlog before anybody had it.
    """

    stranded: Stranded
    queue: str
    message: StoredMessage
    arrivals: list[bytes] = field(default_factory=list)
    completed: bool = False
    dead: tuple[str | None, str | None] | None = None
    deleted: bool = False
    holder: tuple[str, int] | None = None
    stranded_ms: int = 0
    waited_ms: int = 0
    locked_ms: int = 0
    lock_number: int = 0
    locks_lost: int = 0
    held_by: dict[str, None] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.message.sequence_number

    @property
    def road(self) -> tuple[str, str]:
        return (self.queue, self.stranded.original.destination.lower())

    def __str__(self) -> str:
        return f"{self.queue.rpartition('/')[2]}:{self.number} {self.stranded.id} to {self.road[1]}"


@dataclass(frozen=True)
class Overtaken:
    """`later` has arrived while one connection had both locked. `in_turn` is whether it was given them in order.

    `since_ms` is how long `earlier` had been locked.
    """

    earlier: Track
    later: Track
    in_turn: bool
    since_ms: int


def _one_by_one(complete: Callable[[bytes], None], tokens: Iterable[bytes]) -> dict[bytes, ServiceError]:
    refused: dict[bytes, ServiceError] = {}
    for token in tokens:
        try:
            complete(token)
        except ServiceError as refusal:
            refused[token] = refusal
    return refused


Holder = Callable[[Any], tuple[str, int]]


class History(Record):
    """`now_ms` is the time of its lines; `holder` says who it is that takes messages out, given a queue's consumer.

    `sender` names the syphon that is sending at this moment, where that can be known.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        holder: Holder,
        sender: Callable[[], str | None],
        on_arrival: Callable[[Track], None] = lambda _: None,
    ) -> None:
        super().__init__(lambda: f"{now_ms():>9}")
        self.tracks: dict[str, Track] = {}
        self.first_arrivals: dict[tuple[str, ...], list[Track]] = defaultdict(list)
        self.overtaken: list[Overtaken] = []
        self.completes_archived = False
        self._locks = 0
        self.full: set[str] = set()
        self._awaited: dict[str, Callable[[], object]] = {}
        self._now_ms = now_ms
        self._holder = holder
        self._sender = sender
        self._on_arrival = on_arrival
        self._by_message: dict[int, Track] = {}
        self._roads: dict[tuple[str, ...], list[Track]] = defaultdict(list)
        self._partitioned: set[str] = set()
        self._singly: set[str] = set()  # those that take the message id for the key where there is no other

    def tell(self, text: str) -> None:
        super().tell(text)
        for awaited in [each for each in self._awaited if text.startswith(each)]:
            self._awaited.pop(awaited)()

    @contextmanager
    def awaiting(self, start: str, callback: Callable[[], object]) -> Iterator[None]:
        """Call once, when a line is told that begins so; not any more after the end of the block."""
        self._awaited[start] = callback
        yield
        self._awaited.pop(start, None)

    @property
    def again(self) -> int:
        return sum(max(0, len(track.arrivals) - 1) for track in self.tracks.values())

    # The backlog

    def strand(self, queue: QueueEntity, stranded: Iterable[Stranded], *, dead: bool = False) -> None:
        """Put messages into a queue; `dead`, into its dead-letter queue."""
        for each in stranded:
            message = service_envelope.read_message(each.payload)
            assert message is not None, "that is a ping"
            queue.send([message])
            if dead:
                [message] = queue.messages.receive(1)
                queue.messages.dead_letter(message.lock_token, "Bad", "why")
                [message] = queue.dead_letters.peek(message.sequence_number, 1)
            path = dead_letter_path(queue.path) if dead else queue.path
            track = Track(each, path, message, stranded_ms=self._now_ms())
            self.tracks[each.id] = self._by_message[id(message)] = track
            self._roads[self._line(track)].append(track)
            self.tell(f"stranded {track}")

    def _line(self, track: Track) -> tuple[str, ...]:
        """What messages have in common that keep their order: in a partitioned entity, which has none, the key."""
        if track.road[1] not in self._partitioned:
            return track.road
        key = track.stranded.original.session_id or track.message.partition_key
        if key is None and track.road[1] in self._singly:
            key = track.stranded.id
        return (*track.road, key or "")

    def watch_backlog(self, queue: QueueEntity, *, dead: bool = False) -> None:
        engine: Any = queue.dead_letters if dead else queue.messages
        engine.receive = self._receiving(engine.receive)
        for name in ("complete", "release", "abandon", "defer", "dead_letter"):
            setattr(engine, name, self._settling(name, engine, getattr(engine, name)))
        engine.complete_all = lambda tokens: _one_by_one(engine.complete, tokens)
        dead_letter = engine._on_dead_lettered
        if dead_letter is not None:
            engine._on_dead_lettered = lambda message, reason, text: (
                self._buried(message, reason, text),
                dead_letter(message, reason, text),
            )
        lose = engine._delivery_failed
        engine._delivery_failed = lambda message: (self._let_go(message), lose(message))

    def _receiving(self, receive: Callable[..., list[StoredMessage]]) -> Callable[..., list[StoredMessage]]:
        def watched(limit: int, consumer: Any = None) -> list[StoredMessage]:
            taken = receive(limit, consumer)
            for message in taken:
                track = self._by_message[id(message)]
                track.holder = self._holder(consumer)
                if not track.lock_number:
                    track.waited_ms = self._now_ms() - track.stranded_ms
                self._locks += 1
                track.locked_ms, track.lock_number = self._now_ms(), self._locks
                track.held_by[track.holder[0]] = None
                self.tell(f"locked {track} by {track.holder}")
            return taken

        return watched

    def _settling(self, name: str, engine: Any, settle: Callable[..., None]) -> Callable[..., None]:
        def watched(token: bytes, *reason: Any) -> None:
            message = engine._locks.get(token)
            track = None if message is None else self._by_message.get(id(message))
            settle(token, *reason)
            if track is not None:
                self._settled(name, track)

        return watched

    def _settled(self, name: str, track: Track) -> None:
        track.holder = None
        track.completed = track.completed or name == "complete"
        self.tell(f"{name} {track}")
        if name == "complete" and not (track.arrivals or self.completes_archived):
            self.accuse(f"completed before it was accepted: {track}")
        elif name == "defer":
            self.accuse(f"deferred: {track}")

    def _let_go(self, message: StoredMessage) -> None:
        track = self._by_message.get(id(message))
        if track is not None:
            self.tell(f"lock lost {track}")
            track.holder = None
            track.locks_lost += 1

    def _buried(self, message: StoredMessage, reason: str | None, text: str | None) -> None:
        track = self._by_message.get(id(message))
        if track is not None:
            track.dead = (reason, text)
            self.tell(f"dead-lettered {track}: {reason}: {text}")

    def deleted(self, queue: QueueEntity) -> None:
        for track in self.tracks.values():
            if track.queue == queue.path and not track.completed and track.dead is None:
                track.deleted = True
                track.holder = None
        # Dead letters go with their queue too.
        self.tell(f"deleted {queue.path}")

    # The primary

    def watch_primary(self, queue: QueueEntity) -> None:
        engine: Any = queue.messages
        if queue.partitions is not None:
            self._partitioned.add(queue.path.lower())
            if queue.description.requires_duplicate_detection:
                self._singly.add(queue.path.lower())
        enqueue, send = engine.enqueue, queue.send

        def enqueued(messages: Iterable[StoredMessage]) -> None:
            fresh = [message for message in messages if not message.sequence_number]
            enqueue(messages)
            for message in fresh:
                self._arrived(queue, message)

        def sent(messages: Any) -> None:
            if queue.path in self.full:
                raise EntityFull(f"The maximum entity size of '{queue.path}' has been reached.")
            send(messages)

        engine.enqueue, queue.send = enqueued, sent  # type: ignore[method-assign]
        queue.try_send_each = lambda _messages: False  # type: ignore[method-assign]  # so that each is sent by `send`

    def _arrived(self, queue: QueueEntity, message: StoredMessage) -> None:
        try:
            identity = text_of(message.sections.read_properties().message_id)
        except ProtocolError as error:
            self.accuse(f"what cannot be read arrived in {queue.path}: {error.message}")
            return
        track = self.tracks.get(identity or "")
        if track is None:
            self.accuse(f"nobody's message {identity} arrived in {queue.path}")
            return
        if queue.path.lower() != track.road[1]:
            self.accuse(f"arrived in {queue.path}: {track}")
        track.arrivals.append(message.sections.join())
        self.tell(f"arrived {track}{' again' if len(track.arrivals) > 1 else ''}")
        self._on_arrival(track)
        if len(track.arrivals) == 1:
            self._arrived_first(track)

    def _arrived_first(self, track: Track) -> None:
        self.first_arrivals[self._line(track)].append(track)
        if track.holder is None or track.holder[0] != self._sender():
            return
        for earlier in self._roads[self._line(track)]:
            if earlier.number < track.number and earlier.holder == track.holder and not earlier.arrivals:
                since = self._now_ms() - earlier.locked_ms
                self.overtaken.append(Overtaken(earlier, track, earlier.lock_number < track.lock_number, since))
