"""`sbpair runs`, the lease and the journal, in processes of their own against an emulator."""

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp_client.client import connect
from sbpair.backlog import queue_path
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator
from tests.kit.command import CommandLines, environment
from tests.kit.disks import read_only
from tests.kit.stranded import stranded
from tests.kit.waiting import until

BACKLOG = queue_path("contoso", 0)


class Pair(CommandLines):
    """A pair on an emulator, and commands on it."""

    def __init__(self, emulator: Emulator, state: Path) -> None:
        super().__init__(environment(emulator))
        self.emulator, self.state = emulator, state

    async def start(self, *words: str, **more: Any) -> asyncio.subprocess.Process:
        return await super().start(*words, "--state", str(self.state), **more)

    async def runs(self) -> list[dict[str, Any]]:
        code, out, err = await self.run("runs", "list", "--quiet", "--output", "json")
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["schema"] == "sbpair/runs/1"
        return document["runs"]

    async def shown(self, run: str) -> dict[str, Any]:
        code, out, err = await self.run("runs", "show", run, "--output", "json")
        assert (code, err) == (0, "")
        [found] = json.loads(out)["runs"]
        return found

    async def strand(self, count: int) -> None:
        self.emulator.namespaces["contoso"].create_queue("orders")
        self.emulator.namespaces["contoso-dr"].create_queue(BACKLOG)
        await self.strand_more(count)

    async def strand_more(self, count: int = 1, destination: str = "orders") -> None:
        secondary = endpoint_from_connection_string(self.emulator.ready.namespaces[1].connection_string)
        async with connect(secondary) as wire:
            sender = await wire.sender(BACKLOG)
            for number in range(count):
                await sender.send(stranded(f"m{number}", destination, b"x"))

    @property
    def arrived(self) -> int:
        return self.emulator.namespaces["contoso"].queue("orders").counts().active


@asynccontextmanager
async def open_pair(state: Path) -> AsyncIterator[Pair]:
    async with Emulator() as emulator:
        yield Pair(emulator, state)


async def first_send(pair: Pair) -> asyncio.Event:
    """Return an event that is set once the primary has accepted a message; its sender gets no answer."""
    taken = asyncio.Event()
    messages = pair.emulator.namespaces["contoso"].queue("orders").messages
    enqueue = messages.enqueue

    def watched(*arguments: Any, **keywords: Any) -> Any:
        taken.set()
        return enqueue(*arguments, **keywords)

    messages.enqueue = watched
    return taken


async def test_a_crashed_run_lists_messages_in_doubt_and_the_next_resends_them(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        taken = await first_send(pair)
        with pair.emulator.faults.during("swallow-acks", "contoso"):
            process = await pair.start("syphon", "--watch")
            await taken.wait()
            [going_on] = await pair.runs()
            assert going_on["outcome"] == "running"
            process.kill()
            await process.communicate()
        pair.emulator.advance(120_000)  # its locks run out

        [crashed] = await pair.runs()
        assert (crashed["outcome"], crashed["ended"], crashed["exit_code"]) == ("crashed", None, None)
        assert crashed["in_doubt"] == 1
        shown = await pair.shown(crashed["id"])
        [doubt] = shown["doubtful"]
        assert (doubt["queue"], doubt["message_id"], doubt["destination"]) == (BACKLOG, "m0", "orders")
        _, out, _ = await pair.run("runs", "show", crashed["id"])
        assert out.splitlines()[-1] == f"in doubt: m0 of {BACKLOG} to orders"
        assert "do not add up" not in out

        code, out, _ = await pair.run("syphon", "--once", "--output", "json")
        receipt = json.loads(out)
        assert (code, receipt["sent"], pair.arrived) == (0, 1, 2)
        [named] = receipt["doubtful"]
        assert named["message_id"] == "m0"
        assert crashed["id"] in named["reason"]
        later, earlier = await pair.runs()
        assert [(each["in_doubt"], each["doubtful_total"]) for each in (later, earlier)] == [(0, 1), (0, 1)]
        assert "in doubt: " not in (await pair.run("runs", "show", crashed["id"]))[1]


async def test_a_second_syphon_of_a_pair_is_refused_without_no_lease(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        taken = await first_send(pair)
        first = await pair.start("syphon", "--watch")
        await taken.wait()
        [run] = await pair.runs()

        code, out, err = await pair.run("syphon", "--once")
        what, to_do = err.splitlines()
        assert (code, out) == (4, "")
        assert what.startswith(f"error: process {first.pid} (run {run['id']}, since ")
        assert what.endswith(") is moving messages of this pair")
        assert to_do.startswith("hint: wait until it ends, or stop it: sbpair runs cancel ")
        assert [each["id"] for each in await pair.runs()] == [run["id"]]

        code, _, _ = await pair.run("syphon", "--once", "--no-lease")
        assert code == 0
        first.send_signal(signal.SIGTERM)
        await first.communicate()
        assert first.returncode == 0
        assert [each["outcome"] for each in await pair.runs()] == ["done", "stopped"]


async def test_a_lost_lease_ends_the_run_before_anything_more_is_sent(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        taken = await first_send(pair)
        with pair.emulator.faults.during("entity-down", "contoso", entity="orders"):
            process = await pair.start("syphon", "--once")
            assert process.stderr
            await process.stderr.readline()  # it found its queues, and holds the lease
            (tmp_path / "lease").unlink()
        _, err = await process.communicate()
        assert (process.returncode, taken.is_set(), pair.arrived) == (4, False, 0)
        assert b"was deleted or replaced" in err


@pytest.mark.parametrize("killed", [False, True])
async def test_runs_of_a_directory_that_cannot_be_written_are_shown(own_disk: Path, killed: bool) -> None:
    async with open_pair(own_disk) as pair:
        await pair.strand(1)
        process = await pair.start("syphon", "--watch")
        await until(lambda: pair.arrived == 1)
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        await process.communicate()
        with read_only(own_disk):
            [run] = await pair.runs()
            assert run["outcome"] == ("crashed" if killed else "stopped")
            assert (await pair.shown(run["id"])).items() >= run.items()
            code, out, _ = await pair.run("runs", "report", run["id"], "--markdown", "-")
            assert (code, run["id"] in out) == (0, True)
            code, _, err = await pair.run("syphon", "--once")
            assert (code, str(own_disk) in err.splitlines()[-2]) == (7, True)
        # What it had locked when it was killed is not waited for.
        assert (await pair.run("syphon", "--once", "--no-wait-for-locks"))[0] in ((0, 3) if killed else (0,))


async def test_a_state_that_may_not_grow_leaves_every_message_where_it_is(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        code, out, err = await pair.run("syphon", "--once", prepare=no_room)
        what, to_do = err.splitlines()
        assert (code, out, pair.arrived) == (7, "", 0)
        assert what.startswith(f"error: {tmp_path / 'state.db'} cannot be used: ")
        assert to_do.startswith("hint: check its permissions and the free space")
