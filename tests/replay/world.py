"""A pair of emulated namespaces with stranded messages, and checks of what a replay made of them."""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.backlog import Aliases, queue_path, write_aliases
from sbpair.emulator.entities.description import INT32_MAX, QueueDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import LOCKED, DeadLetterReason, StoredMessage
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.replay.run_description import ReplayMode, ReplayRequest
from sbpair.testing import Fault
from sbpair.timespan import TICKS_PER_SECOND
from tests.kit.running import NAMESPACE, OTHER, Running

VARIABLES = ("SBPAIR_PRIMARY_CONNECTION_STRING", "SBPAIR_SECONDARY_CONNECTION_STRING")
KEY = "a2V5"
HOUR_TICKS = 36_000_000_000
HASTY = {"spark.sql.codegen.wholeStage": "false"}
"""For a few messages it is not worth it that Spark compiles the plan."""

SENDING = (ReplayMode.ARCHIVE, ReplayMode.DIRECT)
"""The modes of a run that sends."""


def pair_of(environment: Mapping[str, str]) -> Pair:
    """Return the pair of the connection strings in VARIABLES."""
    ends = [
        replace(endpoint_from_connection_string(environment[variable]), name=name, key_source=variable)
        for variable, name in zip(VARIABLES, (NAMESPACE, OTHER), strict=True)
    ]
    return Pair("orders", *ends)


class World:
    """`destinations` are queues of the primary, `queues` how many the backlog has, from index `first` on."""

    def __init__(
        self, running: Running, destinations: Sequence[str], queues: int, first: int = 0, lock_seconds: int = 300
    ) -> None:
        self.running = running
        self.destinations = destinations
        self.queues = [queue_path(NAMESPACE, index) for index in range(first, first + queues)]
        self.sent: dict[str, bytes] = {}
        self.environment = environment(running)
        for name in destinations:
            running.do(lambda name=name: running.namespace.create_queue(name, QueueDescription()))  # type: ignore[misc]
        backlog = QueueDescription(lock_duration=lock_seconds * TICKS_PER_SECOND, max_delivery_count=INT32_MAX)
        for path in self.queues:
            running.do(lambda path=path: running.other.create_queue(path, backlog))  # type: ignore[misc]

    @property
    def pair(self) -> Pair:
        return pair_of(self.environment)

    def port(self, namespace: str) -> int:
        return endpoint_from_connection_string(self.environment[VARIABLES[namespace == OTHER]]).port

    def request(self, directory: Path, **changes: Any) -> ReplayRequest:
        parameters = {"master": "local[2,4]", "state": directory / "state", "settings": HASTY, **changes}
        return ReplayRequest(self.pair, str(directory / "archive"), **parameters)

    def shell(self, directory: Path) -> dict[str, str]:
        return {**shell(self.running, directory), **self.environment}

    def without_manage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Use keys that may only send to the primary and receive from the backlog."""
        sides = (self.running.namespace, AccessRight.SEND), (self.running.other, AccessRight.LISTEN)
        for variable, (namespace, right) in zip(VARIABLES, sides, strict=True):
            namespace.keys = (*namespace.keys, AuthorizationRule(right.value, KEY, KEY, frozenset({right})))
            head = self.environment[variable].partition("SharedAccessKeyName")[0]
            key = f"SharedAccessKeyName={right.value};SharedAccessKey={KEY};UseDevelopmentEmulator=true"
            self.environment[variable] = head + key
            monkeypatch.setenv(variable, head + key)

    def strand(
        self, index: int, message_id: str, aliases: Aliases | None, body: bytes = b"", **sections: bytes
    ) -> None:
        """Put a message into a backlog queue; without aliases, it has no route. `sections` are others of its own."""
        made = self._made(message_id, aliases, body, **sections)
        self.running.do(lambda: self.backlog(index).messages.enqueue([made]))

    def bury(self, index: int, message_id: str, aliases: Aliases | None, reason: str, description: str = "") -> None:
        """Put a message into the dead-letter queue of a backlog queue, as a syphon does."""
        dead = DeadLetterReason(reason, description, self.queues[index])
        made = self._made(message_id, aliases, b"")
        made.sequence_number, made.enqueued_at_ms = 1_000 + len(self.sent), int(time.time() * 1000)
        self.running.do(lambda: self.backlog(index).dead_letters.add_dead_letter(made.as_dead_letter(dead)))

    def _made(self, message_id: str, aliases: Aliases | None, body: bytes, **sections: bytes) -> StoredMessage:
        own = encode_map(APPLICATION_PROPERTIES, write_aliases(aliases)) if aliases else b""
        body = data_body(body or message_id.encode())
        message = Sections(
            properties=Properties(message_id=message_id).encode(), application_properties=own, body=body, **sections
        )
        self.sent[message_id] = body
        return StoredMessage(message, len(message))

    def strand_many(self, count: int, sessions: int = 5, body: bytes = b"") -> None:
        """Strand messages `m0` to …, for the destinations in turn; those of a session go over all queues in turn."""
        for number in range(count):
            where = self.destinations[number % len(self.destinations)]
            aliases = Aliases(where, f"session-{number % sessions}", HOUR_TICKS)
            self.strand(number % len(self.queues), f"m{number}", aliases, body)
            if number % len(self.queues) == len(self.queues) - 1:
                # So that the next ones are younger: the order across queues is that of their time.
                self.running.advance(0.001)

    def arrived(self) -> dict[str, list[Any]]:

        def look() -> dict[str, list[Any]]:
            return {
                name: list(self.running.namespace.queue(name).messages.peek(0, 1_000_000)) for name in self.destinations
            }

        return self.running.do(look)

    def ids(self) -> list[str]:
        return [_id(message) for messages in self.arrived().values() for message in messages]

    def check_arrived(self, doubtful: Iterable[str | None] = (), max_twice: int = 0) -> None:
        """Assert that every message arrived unaltered, and none is left. Those that came twice are among `doubtful`."""
        arrived = Counter(self.ids())
        assert set(arrived) == set(self.sent)
        assert (self.altered(), self.left()) == ([], 0)
        twice = {name for name, count in arrived.items() if count > 1}
        assert len(twice) <= max_twice
        assert twice <= set(doubtful), "what came twice is named"

    def altered(self) -> list[str]:
        messages = [message for each in self.arrived().values() for message in each]
        return [_id(message) for message in messages if message.sections.body != self.sent[_id(message)]]

    def by_session(self) -> dict[tuple[str, str], list[int]]:
        """Return the numbers of messages in order of arrival, by destination and session."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for name, messages in self.arrived().items():
            for message in messages:
                session = message.sections.read_properties().group_id
                if session is not None:
                    found[name, session].append(int(_id(message)[1:]))
        return found

    @contextmanager
    def during(self, kind: str, namespace: str, **wanted: Any) -> Iterator[None]:
        """Keep a fault of the emulator for the block."""
        faults = self.running.emulator.faults
        fault = self.running.do(lambda: faults.begin(Fault(kind, namespace, **wanted)))
        try:
            yield
        finally:
            self.running.do(lambda: faults.end(fault))

    def left(self) -> int:
        return self.running.do(lambda: sum(self.backlog(index).counts().total for index in range(len(self.queues))))

    def lock(self, count: int) -> None:
        """Lock messages of the first queue, as a killed task leaves them."""
        self.running.do(lambda: self.backlog(0).messages.receive(count))

    def locked(self) -> list[str]:
        """Return the ids of messages in the backlog that are locked."""
        return [_id(message) for message in self._stranded() if message.state == LOCKED]

    def delivery_counts(self) -> list[int]:
        """Return how often the messages in the backlog were delivered, not counting locks that are held."""
        return [message.delivery_count for message in self._stranded()]

    def _stranded(self) -> list[StoredMessage]:
        queues = range(len(self.queues))
        return self.running.do(
            lambda: [each for index in queues for each in self.backlog(index).messages.peek(0, 10**6)]
        )

    def backlog(self, index: int) -> QueueEntity:
        return self.running.other.queue(self.queues[index])


def environment(running: Running) -> dict[str, str]:
    ready = running.emulator.ready.namespaces
    return dict(zip(VARIABLES, (each.connection_string for each in ready), strict=True))


def shell(running: Running, directory: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_")}
    names = {"SBPAIR_PRIMARY_NAME": NAMESPACE, "SBPAIR_SECONDARY_NAME": OTHER}
    return {**kept, **environment(running), **names, "XDG_STATE_HOME": str(directory / "home")}


def _id(message: Any) -> str:
    return str(message.sections.read_properties().message_id)


@contextmanager
def world(
    destinations: Sequence[str] = ("orders", "invoices"), queues: int = 2, lock_seconds: int = 60
) -> Iterator[World]:
    with Running(((NAMESPACE, 0), (OTHER, 0))) as running:
        yield World(running, destinations, queues, lock_seconds=lock_seconds)


@contextmanager
def exported(monkeypatch: pytest.MonkeyPatch, *, queues: int, lock_seconds: int = 60) -> Iterator[World]:
    with world(queues=queues, lock_seconds=lock_seconds) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made
