"""`sbpair receive`: printed, removed and remaining messages, and the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from sbpair.amqp.types import Char, Decimal32, Decimal64, Symbol, Timestamp
from sbpair.emulator.entities import service_envelope
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ESCAPE = "\x1b[31mred\x07"


def encoded(name: str, body: bytes = b"body", **properties: Any) -> bytes:
    return Sections(
        properties=Properties(message_id=name, subject="s").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, properties),
        body=data_body(body),
    ).join()


@dataclass
class World:
    """Two namespaces, each with `orders`, and the command line on them."""

    emulator: Emulator
    environ: dict[str, str]

    def put(self, namespace: str, *messages: bytes) -> None:
        for each in messages:
            self.queue(namespace).send(service_envelope.read_delivery(each, 0))

    def queue(self, namespace: str) -> Any:
        return self.emulator.namespaces[namespace].find_queue("orders")

    @property
    def left(self) -> tuple[int, int]:
        here, there = (self.queue(each).counts().active for each in ("contoso", "contoso-dr"))
        return here, there

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await command.start("receive", *words, env=self.environ)

    async def show(self, *words: str) -> tuple[int, str, str]:
        return await command.finished(await self.start("orders", *words))

    async def remove(self, *words: str) -> tuple[int, str, str]:
        return await self.show("--remove", "--yes", "--wait", "1s", *words)


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    async with Emulator() as emulator:
        for namespace in emulator.namespaces.values():
            namespace.create_queue("orders")
        yield World(emulator, environment(emulator, NO_COLOR="1"))


async def test_without_dedup_messages_come_from_the_primary_and_are_removed() -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one", ESCAPE.encode()), encoded("two\x1b", b"\xff\xfe"))
        world.put("contoso-dr", encoded("one"))
        code, out, err = await world.remove()
        assert (code, command.untimed(err)) == (0, "2 messages removed\n")
        assert [line.split()[1] for line in out.splitlines()] == ["FROM", "primary", "primary"]
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "red" in out
        assert "(2 bytes, not text)" in out
        assert world.left == (0, 1)


@pytest.mark.parametrize("words", [(), ("--dedup",)])
async def test_messages_that_another_receiver_has_locked_are_counted(words: tuple[str, ...]) -> None:
    async with open_world() as world:
        world.put("contoso", *(encoded(f"m{number}") for number in range(4)))
        messages = world.emulator.namespaces["contoso"].queue("orders").messages
        taken = messages.receive(3)
        messages.defer(taken[0].lock_token)
        code, out, err = await world.remove("-o", "json", *words)
        assert (code, json.loads(out)["received"], json.loads(out)["locked"]) == (0, 1, 2)
        assert "2 messages are still there: locked by another receiver" in err
        code, out, err = await world.remove("-o", "json", "--max", "1", *words)
        assert json.loads(out)["locked"] == 2


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


async def test_without_remove_messages_are_shown_and_stay_as_they_are() -> None:
    async with open_world() as world:
        world.put("contoso", *(encoded(f"m{number}", ESCAPE.encode()) for number in range(4)))
        world.put("contoso-dr", encoded("m0"), encoded("m4"))
        for words, last in (
            ((), "showed all 4 messages"),
            (("--max", "3"), "showed 3 of about 4 messages"),
            (("--dedup", "--max", "3"), "showed the first 3; there may be more"),
        ):
            code, out, err = await world.show(*words)
            assert (code, command.untimed(err).splitlines()[-1]) == (0, last)
            assert not {"\x1b", "\x07"} & {*out}
            assert "[31mred" in out
        code, out, err = await world.show("--dedup")
        assert (len(out.splitlines()), command.untimed(err)) == (6, "1 further copy skipped\nshowed all 5 messages\n")
        assert world.left == (4, 2)
        _code, out, _err = await world.remove("-o", "jsonl")
        assert {json.loads(line)["delivery_count"] for line in out.splitlines()} == {0}


async def test_remove_without_yes_needs_a_terminal() -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one"))
        code, out, err = await world.show("--remove", "--max", "5")
        assert (code, out, world.left) == (4, "", (1, 0))
        assert err.splitlines() == [
            "error: not confirmed: nothing was received",
            "hint: confirm with sbpair receive orders --yes --max 5 --remove",
        ]


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 4, 1), (b"y\n", 0, 0)])
async def test_remove_asks_on_a_terminal(answer: bytes, code: int, left: int) -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one"))
        ours, theirs = pty.openpty()
        process = await command.start(
            *("receive", "orders", "--remove", "--wait", "1s"),
            env={**world.environ, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        try:
            shown = await asyncio.to_thread(read_until, ours, b"[y/N] ")
            assert shown.endswith(b"Remove up to 10 messages from orders in contoso? [y/N] ")
            assert world.left == (1, 0)
            os.write(ours, answer)
            assert await process.wait() == code
        finally:
            os.close(ours)
        assert world.left == (left, 0)


def read_until(terminal: int, end: bytes) -> bytes:
    shown = b""
    while not shown.endswith(end):
        shown += os.read(terminal, 4096)
    return shown


@pytest.mark.parametrize("words", [(), ("--remove", "--yes")])
async def test_a_topic_without_a_subscription_has_a_hint(words: tuple[str, ...]) -> None:
    async with open_world() as world:
        world.emulator.namespaces["contoso"].create_topic("news")
        code, out, err = await command.finished(await command.start("receive", "news", *words, env=world.environ))
        assert (code != 0, out) == (True, "")
        assert "--subscription NAME" in err.splitlines()[-1]


@pytest.mark.parametrize("words", [(), ("--remove", "--yes")])
@pytest.mark.parametrize("below", ["", "/$DeadLetterQueue"])
async def test_a_backlog_queue_has_a_hint(below: str, words: tuple[str, ...]) -> None:
    async with open_world() as world:
        entity = f"contoso/x-servicebus-transfer/0{below}"
        code, out, err = await command.finished(await command.start("receive", entity, *words, env=world.environ))
        assert (code, out) == (2, "")
        assert err.splitlines()[-1].endswith("sbpair peek reads both, and receive secondary:QUEUE")


@pytest.mark.parametrize("value", [Char("\u20ac"), Decimal32(b"\0" * 4), Decimal64(b"\1" * 8)])
async def test_only_with_dedup_a_message_that_the_sdk_cannot_decode_stays(value: object) -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one", odd=value))
        code, _out, _err = await world.remove()
        assert (code, world.left) == (0, (0, 0))
        world.put("contoso", encoded("two", odd=value))
        code, out, err = await world.remove("--dedup")
        assert (code, out, world.left) == (3, "", (1, 0))
        assert "hint: receive the message with another client, which can decode it\n" in err


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
        world.put("contoso", *(encoded(f"m{number}", body=b"x" * 9000) for number in range(10)))
        process = await world.start("orders", "--remove", "--yes", "-o", "jsonl")
        assert process.stdout is not None
        await process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130
        left = world.emulator.namespaces["contoso"].queue("orders").messages.peek(0, 20)
        assert {each.delivery_count for each in left} <= {0}
        assert 0 < len(left) == world.left[0]


async def test_with_dedup_the_first_copies_of_both_are_shown_and_all_are_removed(tmp_path: Path) -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one", order="7"), encoded("two", order="8"))
        world.put("contoso-dr", encoded("two", order="8"), encoded("three", order="9"))
        code, out, _err = await world.show("--dedup", "-o", "json", "--key", "property:order")
        printed = json.loads(out)
        assert (code, printed["received"], printed["duplicates"], printed["removed"]) == (0, 3, 1, False)
        words = ("--dedup", "-o", "json", "--store", str(tmp_path / "keys.db"))
        code, out, err = await world.remove(*words)
        printed = json.loads(out)
        messages = printed.pop("messages")
        assert printed == {
            "schema": "sbpair/receive/1",
            "entity": "orders",
            "received": 3,
            "not_removed": 0,
            "locked": 0,
            "duplicates": 1,
            "removed": True,
        }
        assert sorted(each["message_id"] for each in messages) == ["one", "three", "two"]
        assert {each["from"] for each in messages} == {"primary", "secondary"}
        assert {each["body"] for each in messages} == {"body"}
        assert (code, command.untimed(err), world.left) == (0, "3 messages removed\n1 further copy removed\n", (0, 0))
        # The next run still knows what this one has shown.
        world.put("contoso", encoded("one"), encoded("four"))
        code, out, err = await world.remove("--dedup", "-o", "jsonl", "--store", str(tmp_path / "keys.db"))
        (line,) = map(json.loads, out.splitlines())
        assert (line["schema"], line["message_id"], line["from"]) == ("sbpair/receive/1", "four", "primary")
        assert (code, world.left) == (0, (0, 0))


async def test_a_signal_ends_it_with_what_was_shown_and_gives_back_the_rest() -> None:
    async with open_world() as world:
        world.put("contoso", encoded("one"))
        process = await world.start("orders", "--remove", "--yes", "--wait", "10m", "-o", "json", "--dedup")
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


async def test_at_most_max_messages_are_printed_and_all_those_without_a_key() -> None:
    async with open_world() as world:
        world.put("contoso", *(encoded(f"m{number}") for number in range(4)))
        code, out, _err = await world.remove("--max", "3", "-o", "jsonl")
        assert (code, len(out.splitlines()), world.left) == (0, 3, (1, 0))
        world.put("contoso-dr", encoded("m3"))
        code, out, err = await world.remove("--dedup", "--key", "property:order")
        assert (code, len(out.splitlines()), world.left) == (0, 3, (0, 0))
        assert err.count("has no key") == 2
        assert (
            "the next run prints copies of 2 messages that arrive later, unless both runs use the same --store file"
            in err
        )


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
        process = await world.start("nowhere", "--remove", "--yes", "--wait", "1s")
        _out, printed = await process.communicate()
        assert process.returncode == 2
        assert b"nowhere" in printed


def test_a_file_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sbpair.__main__ import run

    for side in ("PRIMARY", "SECONDARY"):
        monkeypatch.setenv(f"SBPAIR_{side}_CONNECTION_STRING", _nowhere(side))
    notes = tmp_path / "notes.txt"
    notes.write_text("not a database " * 100)
    assert run(["receive", "orders", "--remove", "--yes", "--dedup", "--store", str(notes)]) == 4
    assert notes.read_text() == "not a database " * 100


def _nowhere(side: str) -> str:
    return f"Endpoint=sb://{side.lower()}.invalid/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0a2V5"
