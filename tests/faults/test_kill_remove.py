"""`kill -9` of `sbpair remove` and `sbpair receive --remove` at each step; then the next run, and a count."""

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import Properties, Sections, data_body
from sbpair.testing import Emulator
from tests.faults.test_kill_move import LOCK_MS, finished
from tests.kit.command import environment, start
from tests.kit.moves import ids
from tests.kit.stranded import put

MESSAGES = 60
COMMANDS = {
    "remove": ("remove", "orders", "--yes"),
    "receive": ("receive", "orders", "--remove", "--yes", "--max", "999", "--wait", "1s", "-o", "jsonl"),
}
KILLS = [(when, nth) for when in ("torn", "kept", "before", "after") for nth in range(1, 6)]


def bodies(file: Path) -> list[tuple[str, str]]:
    """Return ids and bodies of the whole lines of a file."""
    found = []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with suppress(ValueError):
            document = json.loads(line)
            found.append((document["message_id"], document["body"]))
    return found


async def run(emulator: Emulator, state: Path, *words: str, kill: tuple[str, ...] = ()) -> tuple[int, bytes, str]:
    keep = ("--keep", str(state / "kept.jsonl"))
    program = ("-m", "tests.faults.killed_at_journal" if kill else "sbpair")
    process = await start(*kill, *words, *keep, env=environment(emulator, XDG_STATE_HOME=str(state)), program=program)
    out, err = await finished(emulator, process)
    return process.returncode, out, err


async def kill_and_count(command: str, when: str, nth: int, state: Path) -> None:
    expected = {(f"m{number}", f"body {number} of 60") for number in range(MESSAGES)}
    async with Emulator() as emulator:
        queue: Any = emulator.namespaces["contoso"].create_queue("orders")
        for name, body in sorted(expected):
            put(queue, Sections(properties=Properties(message_id=name).encode(), body=data_body(body.encode())).join())
        code, *_ = await run(emulator, state, *COMMANDS[command], kill=(when, str(nth)))
        assert code == -signal.SIGKILL
        left = set(ids(queue))
        before = bodies(state / "kept.jsonl")
        assert {name for name, _ in before} | left == {name for name, _ in expected}, "messages were lost"
        assert set(before) <= expected
        emulator.advance(LOCK_MS)
        words = (*COMMANDS[command], *(("-o", "json") if command == "remove" else ()))
        code, out, err = await run(emulator, state, *words)
        assert (code, ids(queue)) == (0, [])
        after = bodies(state / "kept.jsonl")
        assert set(after) == expected
        twice = {name for name, _ in before} & left
        assert len(after) == MESSAGES + len(twice)
        if command == "receive":
            assert not twice or "of an earlier run came again" in err
        else:
            receipt = json.loads(out)
            assert receipt["sent"] == len(left)
            assert twice <= {each["message_id"] for each in receipt["doubtful"]}


@pytest.mark.slow
@pytest.mark.parametrize(("when", "nth"), KILLS)
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_killed_removal_loses_nothing(command: str, when: str, nth: int, tmp_path: Path) -> None:
    await kill_and_count(command, when, nth, tmp_path)


@pytest.mark.parametrize(("command", "when"), [("remove", "torn"), ("receive", "kept")])
async def test_a_removal_killed_at_its_file_loses_nothing(command: str, when: str, tmp_path: Path) -> None:
    await kill_and_count(command, when, 2, tmp_path)
