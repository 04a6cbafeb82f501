"""README against the tool: what it names is there, and what is there it names."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.cli.app import COMMANDS
from sbpair.emulator.testing import Emulator
from tests.kit.command import environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GOLDEN = ROOT / "tests" / "cli" / "golden"


def commands_in_code() -> list[list[str]]:
    """Every line of a code block that begins with the tool's name, as words without its comment."""
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.split("#")[0].split()[1:] for line in lines if line.startswith("sbpair ")]


def test_every_command_is_in_the_table_of_commands() -> None:
    assert set(re.findall(r"^\| `sbpair (\w+)", README, flags=re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("words", commands_in_code(), ids=" ".join)
def test_every_example_names_a_command_and_options_that_exist(words: list[str]) -> None:
    pages = (GOLDEN / f"{'-'.join(['sbpair', *words[:length]])}.txt" for length in (2, 1))
    text = next(page for page in pages if page.exists()).read_text()
    assert all(option in text for option in words if option.startswith("--"))


def test_the_exit_codes_are_those_of_the_errors() -> None:
    from sbpair import errors

    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    classes = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SbpairError)
    ]
    assert {each.exit_code for each in classes} | {0, 130} <= documented


def test_both_lines_that_set_everything_up_are_marked_for_those_who_run_them() -> None:
    lines = re.findall(r"<!-- (\w+) -->\n```sh\n(.*?)\n```", README)
    assert [name for name, _ in lines] == ["drill", "tests"]
    assert lines[0][1].endswith("sbpair drill")
    assert "[dev,spark]" in lines[1][1]


def test_the_changelog_has_a_part_for_what_is_not_released() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


async def runs(emulator: Emulator, words: list[str]) -> None:
    """Python with these arguments, and the pair in its environment, ends well."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=environment(emulator), stdout=subprocess.DEVNULL
    )
    assert await process.wait() == 0


def test_the_archive_can_be_read_as_it_says(tmp_path: Path) -> None:
    from sbpair.replay.archive import Archive
    from tests.cli.test_replay import put

    put(Archive(str(tmp_path), "r1"))
    [script] = re.findall(r"<!-- archive -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    said = script.replace("/mnt/archive/RUN", f"{tmp_path}/r1")
    assert said != script

    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)

    assert done.stdout == "orders 1 4\n"


def test_the_example_of_partition_keys_prints_what_it_says() -> None:
    [script] = re.findall(r"<!-- partition-key -->\n```python\n(.*?)```", README, flags=re.DOTALL)

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == re.findall(r"  # (\w+)$", script, flags=re.MULTILINE) != []


def test_every_column_of_the_archive_is_in_it() -> None:
    from sbpair.replay.schema import OUTCOME, SEGMENT

    part = README.partition("**The bodies are in the archive.**")[2].partition("## What it keeps")[0]
    assert [name for name in (*SEGMENT.names, *OUTCOME.names) if f"`{name}`" not in part] == []


async def test_the_message_that_it_sends_arrives() -> None:
    [script] = re.findall(r"<!-- send -->\n```python\n(.*?)```", README, flags=re.DOTALL)

    async def follow() -> int:
        async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
            orders = emulator.namespaces["contoso"].create_queue("orders")
            await runs(emulator, ["-c", script])
            return orders.counts().active

    assert (await follow()) == 1


async def test_the_messages_that_it_strands_come_back() -> None:
    [script] = re.findall(r"<!-- strand -->\n```python\n(.*?)```", README, flags=re.DOTALL)

    async def follow() -> tuple[int, int]:
        async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
            for words in (["-m", "sbpair", "provision"], ["-c", script], ["-m", "sbpair", "syphon", "--once"]):
                await runs(emulator, words)
            backlog = emulator.namespaces["contoso-dr"].queue("contoso/x-servicebus-transfer/0")
            return emulator.namespaces["contoso"].queue("orders").counts().active, backlog.counts().total

    assert (await follow()) == (10, 0)
