"""Commands in a process that lacks what Windows lacks. Untested on Windows itself."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_runs import Pair, open_pair
from tests.kit import command
from tests.kit.waiting import until

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

pytestmark = pytest.mark.timeout_seconds(90)


async def start(pair: Pair, home: Path, *words: str) -> asyncio.subprocess.Process:
    env = {key: value for key, value in pair.environ.items() if not key.startswith("XDG_")}
    program = ("-m", "tests.operating_system.fake_windows")
    return await command.start(*words, env=env | {"LOCALAPPDATA": str(home)}, python=(), program=program)


async def test_commands_run_without_the_modules_of_posix(tmp_path: Path) -> None:
    commands = (
        *("--import", "sbpair.cli", "--", "--help", "--"),
        *("provision", "--count", "1", "--", "audit", "--count", "1", "--"),
        *("syphon", "--once", "--count", "1", "--output", "json", "--", "doctor", "--"),
        *("runs", "list", "--output", "json", "--", "replay", "run", "--archive", str(tmp_path)),
    )
    async with open_pair(tmp_path) as pair:
        pair.emulator.namespaces["contoso"].create_queue("orders")
        code, out, err = await command.finished(await start(pair, tmp_path / "local", *commands))
    assert (code, re.findall(r"exit code (\d+)", err)) == (0, ["0", "0", "0", "0", "0", "0", "0", "7"]), err
    assert "error: a replay that starts Spark on this machine needs Linux or macOS, and this is Windows\nhint:" in err
    assert re.search('"sbpair/syphon/1"(?s:.*)"sbpair/runs/1"(?s:.*)"outcome": "done"', out)
    state = tmp_path / "local" / "sbpair"
    assert {each.name for each in state.iterdir()} == {".leases", "contoso+contoso-dr"}


async def test_ctrl_c_stops_a_watch_in_order(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(2)
        watch = await start(pair, tmp_path / "local", "syphon", "--watch", "--count", "1", "--output", "json")
        await until(lambda: pair.arrived == 2)
        watch.send_signal(signal.SIGINT)
        _, out, err = await command.finished(watch)
    assert "exit code 0" in err, err
    receipt = json.loads(out)
    assert (receipt["stopped"], receipt["sent"], receipt["in_doubt"]) == (True, 2, 0)
