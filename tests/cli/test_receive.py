"""`sbpair receive`: printed, removed and remaining messages, and the exit code."""

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    section,
)
from sbpair.amqp.types import Int, Symbol, Timestamp
from sbpair.testing import Emulator
from tests.kit.command import CommandLines, environment
from tests.kit.stranded import put
from tests.kit.terminal import PseudoTerminal


def encoded(name: str, body: bytes = b"body", **properties: Any) -> bytes:
    return Sections(
        properties=Properties(message_id=name, subject="s").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, properties),
        body=data_body(body),
    ).join()


class World(CommandLines):
    """Two namespaces, each with `orders`, and the command line on them."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__(environment(emulator, NO_COLOR="1"))
        self.emulator = emulator

    def put(self, namespace: str, *messages: bytes) -> None:
        for each in messages:
            put(self.queue(namespace), each)

    def queue(self, namespace: str) -> Any:
        return self.emulator.namespaces[namespace].find_queue("orders")

    @property
    def left(self) -> tuple[int, int]:
        here, there = (self.queue(each).counts().active for each in ("contoso", "contoso-dr"))
        return here, there

    async def remove(self, *words: str) -> tuple[int, str, str]:
        return await self.run("receive", "orders", "--remove", "--yes", "--wait", "1s", *words)


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    async with Emulator() as emulator:
        for namespace in emulator.namespaces.values():
            namespace.create_queue("orders")
        yield World(emulator)


async def test_a_due_scheduled_message_that_is_locked_is_counted_alone() -> None:
    async with open_world() as world:
        now_ms = world.emulator.clock.now_ms()
        for name, in_ms in (("due", 1_000), ("later", 3_600_000)):
            sections = Sections.split(encoded(name))
            at = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(now_ms + in_ms)}
            sections.message_annotations = encode_map(MESSAGE_ANNOTATIONS, at)
            world.put("contoso", sections.join())
        world.emulator.advance(1_000)
        assert len(world.emulator.namespaces["contoso"].queue("orders").messages.receive(2)) == 1
        _, out, err = await world.remove("-o", "json")
        assert json.loads(out)["locked"] == 1
        assert "1 message is still there: locked by another receiver" in err


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 4, 1), (b"y\n", 0, 0)])
async def test_remove_asks_on_a_terminal(answer: bytes, code: int, left: int) -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one"))
        with PseudoTerminal() as terminal:
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
            words = ("receive", "orders", "--remove", "--wait", "1s")
            process = await world.start(*words, TERM="xterm", **streams)
            terminal.hand_over()
            shown = await terminal.shown("[y/N] ")
            assert shown.endswith("Remove up to 10 messages from orders in contoso? [y/N] ")
            assert world.left == (1, 0)
            terminal.write(answer)
            assert await process.wait() == code
        assert world.left == (left, 0)


@pytest.mark.odd_messages
async def test_a_message_that_cannot_be_read_is_an_error_and_stays() -> None:
    async with open_world() as world:
        unreadable = Sections.split(encoded("one"))
        unreadable.application_properties = section(APPLICATION_PROPERTIES, b"\xc1\x07\x02\xa1\x01k\xa1\x01\xff")
        world.put("contoso", unreadable.join())
        code, out, err = await world.remove()
        assert (code, out, world.left) == (3, "", (1, 0))
        assert "cannot be read" in err


async def test_interrupted_messages_keep_their_delivery_counts() -> None:
    async with open_world() as world:
        world.put("contoso", *(encoded(f"m{number}", body=b"x" * 9000) for number in range(30)))
        process = await world.start("receive", "orders", "--remove", "--yes", "--max", "30", "-o", "jsonl")
        assert process.stdout is not None
        await process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130
        left = world.emulator.namespaces["contoso"].queue("orders").messages.peek(0, 20)
        assert {each.delivery_count for each in left} <= {0}
        assert 0 < len(left) == world.left[0]


async def test_a_closed_pipe_names_the_line_to_go_on_from(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    async with open_world() as world:
        world.put("contoso", *(encoded(f"m{number}", body=b"x" * 9000) for number in range(60)))
        words = ("receive", "orders", "--remove", "--yes", "--max", "60", "-o", "jsonl", "--keep", str(file))
        process = await world.start(*words)
        assert process.stdout is not None
        assert process.stderr is not None
        read = [json.loads(await process.stdout.readline())["message_id"] for _ in range(12)]
        process.stdout._transport.close()  # type: ignore[attr-defined]
        err = (await process.stderr.read()).decode()
        assert await process.wait() == 141
        found = re.search(rf"go on from line (\d+) of {re.escape(str(file))}; ", err)
        assert found is not None, err
        kept = [json.loads(line)["message_id"] for line in file.read_text().splitlines()]
        assert read == kept[:12]
        assert 12 < int(found[1]) <= len(kept)
        left = world.emulator.namespaces["contoso"].queue("orders").messages.peek(0, 60)
        ids = [each.sections.read_properties().message_id for each in left]
        assert kept + ids == [f"m{number}" for number in range(60)]
        assert {each.delivery_count for each in left} == {0}


async def test_what_a_pipe_takes_arrives_equal_in_another_queue() -> None:
    async with open_world() as world:
        world.put("contoso", *(encoded(f"m{number}", number=Int(number)) for number in range(40)))
        program = f"{sys.executable} -m sbpair"
        receiving = f"{program} receive orders --remove --yes --max 40 --wait 1s -o jsonl"
        line = f"{receiving} | {program} send secondary:orders --format jsonl"
        process = await asyncio.create_subprocess_shell(line, env=world.environ, stdout=PIPE, stderr=PIPE)
        await process.communicate()
        assert (process.returncode, world.left) == (0, (0, 40))
        sent = [each.sections for each in world.queue("contoso-dr").messages.peek(0, 50)]
        found = [(each.properties, each.application_properties, each.body) for each in sent]
        expected = [Sections.split(encoded(f"m{number}", number=Int(number))) for number in range(40)]
        assert found == [(each.properties, each.application_properties, each.body) for each in expected]


async def test_a_signal_ends_it_with_what_was_shown_and_gives_back_the_rest() -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one"))
        process = await world.start("receive", "orders", "--remove", "--yes", "--wait", "10m", "-o", "json", "--dedup")
        assert process.stdout is not None
        head = [await process.stdout.readline(), await process.stdout.readline()]
        # It is being completed now, or will be: what was shown is not shown again.
        process.send_signal(signal.SIGINT)
        out, _err = await process.communicate()
        printed = json.loads(b"".join((*head, out)))
        assert (process.returncode, printed["received"], len(printed["messages"])) == (130, 1, 1)
        assert world.left == (0, 0)
        world.put("contoso", encoded("two"))
        code, out_, _ = await world.remove("-o", "jsonl")
        assert (code, json.loads(out_)["delivery_count"]) == (0, 0)


@pytest.mark.slow
async def test_one_side_down_is_a_warning_and_both_down_are_an_error() -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one"))
        world.emulator.faults.namespace_down("contoso-dr")
        code, out, err = await world.remove("--dedup", "-o", "jsonl")
        assert (code, json.loads(out)["message_id"]) == (0, "one")
        assert "warning: cannot receive from the secondary: " in err
        world.emulator.faults.namespace_down("contoso")
        for words in (("--dedup",), ()):
            code, out, err = await world.remove(*words, "-o", "json")
            assert (code, out) == (6, "")
            assert "error: " in err
        world.emulator.faults.end_all()
        process = await world.start("receive", "nowhere", "--remove", "--yes", "--wait", "1s")
        _out, printed = await process.communicate()
        assert process.returncode == 2
        assert b"nowhere" in printed
