"""`kill -9` of a syphon, a move and a redrive at each step of their journal; then the next run, and a count."""

import asyncio
import json
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Properties,
    Sections,
    data_body,
    encode_map,
)
from sbpair.amqp.types import Map, Timestamp
from sbpair.backlog import ALIASES, queue_path
from sbpair.emulator.entities.description import QueueDescription
from sbpair.move.message.envelope import SCHEDULE
from sbpair.testing import Emulator
from tests.kit.command import environment, start
from tests.kit.moves import World, bury, by_session, defer_all, ids, stored
from tests.kit.stranded import numbered, put

MESSAGES, SESSIONS = 5, ("S0", "S1", "S2")
LARGE = 100_000  # a batch has two of these
STEPS_OF_A_BATCH = 3
LOCK_MS = 61_000
KINDS = (
    *("queue", "session queue", "dead letters", "dead letters of sessions"),
    *("backlog", "all of the backlog", "syphon", "scheduled", "deferred", "deferred session queue", "central queue"),
)
DUE_MS = 32_503_680_000_000


class Course:
    """The messages of one run, the command that moves them, and where they are afterwards."""

    def __init__(self, w: World, kind: str, name: str) -> None:
        sessions = "session" in kind
        _, self.there, _ = w.create("session queue" if sessions else "queue", f"to-{name}", 1)
        if "backlog" in kind or kind == "syphon":
            paths = [queue_path("contoso", 2 * int(name) + odd) for odd in range(1 if kind == "backlog" else 2)]
            self.sources = [w.create("queue", path, 1)[1] for path in paths]
            _, self.there, _ = w.create("queue", f"to-{name}")
            redrive = ["redrive", "--backlog" if "all" in kind else f"secondary:{paths[0]}"]
            self.command = ["syphon", "--once"] if kind == "syphon" else redrive
        elif kind == "central queue":
            path, source, _ = w.create("queue", f"from-{name}")
            self.there = w.namespaces[0].create_queue(
                f"to-{name}", QueueDescription(forward_dead_lettered_messages_to=path)
            )
            self.sources, self.command = [source], ["redrive", path, "--to-source"]
        elif kind.startswith("dead"):
            path, self.there, _ = w.create("session queue" if sessions else "queue", f"from-{name}")
            self.sources, self.command = [self.there], ["redrive", path]
        else:
            path, source, _ = w.create("session queue" if sessions else "queue", f"from-{name}")
            self.sources, self.command = [source], ["move", path, f"secondary:to-{name}"]
            if kind.startswith(("scheduled", "deferred")):
                self.command += ["--messages", kind.split(maxsplit=1)[0]]
        first = [self.there] if kind == "central queue" else self.sources
        for number in range(MESSAGES):
            put(first[number % len(first)], self._message(number, kind, name))
        self.dead = self.command[0] == "redrive" and kind != "central queue"
        if kind.startswith("deferred"):
            defer_all(source)
        stranded = [message for source in first for message in stored(source)]
        self.wanted = by_session([self._restored(each) for each in stranded], dead=True)
        self.ids = Counter(message_id for source in first for message_id in ids(source))
        for each in self.there.messages.receive(MESSAGES) if kind == "central queue" else ():
            self.there.messages.dead_letter(each.lock_token, "Bad", "why")
        for source in self.sources if self.dead else ():
            bury(source)
            for session in (None, *SESSIONS):
                source.messages.delete(MESSAGES, w.namespaces[0].clock.now_ms() + 1, session)
            assert not stored(source)

    def _message(self, number: int, kind: str, name: str) -> bytes:
        if "backlog" in kind or kind == "syphon":
            return numbered(number, f"to-{name}", size=LARGE)
        group = SESSIONS[number % 3] if "session" in kind else None
        properties = Properties(message_id=f"m{number}", group_id=group).encode()
        due = Map([(SCHEDULE, Timestamp(DUE_MS))]) if kind == "scheduled" else Map()
        return Sections(
            message_annotations=encode_map(MESSAGE_ANNOTATIONS, due),
            properties=properties,
            body=data_body(bytes([number]) * LARGE),
        ).join()

    def _restored(self, message: Sections) -> Sections:
        """Return a message as it was before it was stranded."""
        properties = message.read_application_properties()
        own = {key: value for key, value in properties.pairs if key not in ALIASES}
        return replace(message, application_properties=encode_map(APPLICATION_PROPERTIES, own))

    def arrived(self) -> Counter[Any]:
        return Counter(ids(self.there))

    def left(self) -> list[object]:
        return [message_id for source in self.sources for message_id in ids(source, dead=self.dead)]


async def finished(emulator: Emulator, process: Any) -> tuple[bytes, str]:
    """Return what a process prints. As soon as it waits for locks, they run out."""
    lines: list[str] = []

    async def listen() -> None:
        async for line in process.stderr:
            lines.append(line.decode())
            if "waiting (--no-wait-for-locks" in lines[-1]:
                emulator.advance(LOCK_MS)

    _, out = await asyncio.gather(listen(), process.stdout.read())
    await process.wait()
    return out, "".join(lines)


async def run_once(emulator: Emulator, course: Course, directory: Path, *kill: str) -> tuple[int, dict[str, Any]]:
    """Move the messages in a process. Returns its exit code, and its receipt if it lived to write one."""
    words = [*course.command, "--output", "json", "--state", str(directory), "--rate", "1000"]
    program = ("-m", "tests.faults.killed_at_journal" if kill else "sbpair")
    env = environment(emulator, XDG_STATE_HOME=str(directory))
    process = await start(*kill, *words, env=env, program=program)
    out, told = await finished(emulator, process)
    assert process.returncode in (0, -signal.SIGKILL), told
    return process.returncode, json.loads(out) if out else {}


async def kill_at_each_step(kind: str, when: str, directory: Path, steps: int | None = None) -> int:
    """Kill a run at each step, and start the next one. Return how many steps a run has."""
    async with Emulator() as emulator:
        w = World(emulator)
        for nth in count(1):
            course = Course(w, kind, str(nth))
            code, receipt = await run_once(emulator, course, directory / str(nth), when, str(nth))
            if code == 0:
                assert course.arrived() == course.ids
                return nth - 1
            accepted, remaining = course.arrived(), len(course.left())
            code, receipt = await run_once(emulator, course, directory / str(nth))
            check(course, receipt, accepted, remaining, recorded_numbers(directory / str(nth)))
            if nth == steps:
                return nth
    raise AssertionError


def recorded_numbers(directory: Path) -> list[dict[str, Any]]:
    """Return the messages with new numbers that the runs of a state directory have recorded."""
    with closing(sqlite3.connect(next(directory.glob("**/state.db")))) as state:
        receipts = [json.loads(row[0]) for row in state.execute("SELECT receipt FROM runs WHERE receipt IS NOT NULL")]
    return [each for receipt in receipts for each in receipt.get("renumbered", ())]


def check(
    course: Course, receipt: dict[str, Any], accepted: Counter[Any], remaining: int, recorded: list[dict[str, Any]]
) -> None:
    """Check that nothing was lost or altered, and that the receipt names all that may have arrived twice."""
    arrived, doubtful = course.arrived(), {each["message_id"] for each in receipt["doubtful"]}
    assert set(arrived) == set(course.ids), "messages were lost"
    assert not course.left()
    assert receipt["received"] == receipt["sent"] + receipt["already_sent"] == remaining
    if "--messages" in course.command:  # as the receipts of both runs say, also of the killed one
        assert {each["message_id"] for each in [*recorded, *receipt["renumbered"]]} | doubtful == set(arrived)
    twice = {message_id for message_id, times in arrived.items() if times > 1}
    assert twice <= doubtful & set(accepted)
    assert receipt["sent"] + accepted.total() == arrived.total()
    found = by_session(stored(course.there), dead=True)
    assert {group: set(each) for group, each in found.items()} == {
        group: set(each) for group, each in course.wanted.items()
    }


@pytest.mark.timeout_seconds(600)
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_mover_loses_nothing_at_any_step(kind: str, when: str, tmp_path: Path) -> None:
    assert await kill_at_each_step(kind, when, tmp_path) >= STEPS_OF_A_BATCH


@pytest.mark.parametrize("kind", ["session queue", "all of the backlog", "syphon", "scheduled", "central queue"])
async def test_a_mover_killed_in_its_first_batch_loses_nothing(kind: str, tmp_path: Path) -> None:
    assert await kill_at_each_step(kind, "after", tmp_path, STEPS_OF_A_BATCH) == STEPS_OF_A_BATCH
