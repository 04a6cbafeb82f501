"""Commands, options, links and examples of the documents, against the tool."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.cli.app import COMMANDS
from sbpair.testing import Emulator
from tests.integration import python_packages
from tests.kit.command import environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "tests/README.md"]
DOCUMENTS += sorted([*(ROOT / "sbpair").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
TEXT = "\n".join(path.read_text() for path in DOCUMENTS)
GOLDEN = ROOT / "tests" / "cli" / "golden"


def commands_in_code() -> list[str]:
    """Collect the calls of the tool in shell blocks, without comments, and with continued lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    calls = [call for line in lines if not line.startswith("#") for call in line.split(" #")[0].split(" | ")]
    return sorted({call[found.start() :] for call in calls if (found := re.search(r"\bsbpair(?= [a-z])", call))})


@pytest.mark.parametrize("line", commands_in_code())
def test_a_documented_command_and_its_options_exist(line: str) -> None:
    words = line.split()
    pages = (GOLDEN / f"{'-'.join(words[:length])}.txt" for length in (3, 2))
    text = next(page for page in pages if page.exists()).read_text()
    options = [re.split(r"[=)]", word)[0] for word in words if word.startswith("--")]
    assert [option for option in options if option not in text] == []


def test_every_command_is_documented() -> None:
    assert [name for name in COMMANDS if f"sbpair {name}" not in TEXT and f"`{name}`" not in TEXT] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", path.read_text())
    for target, anchor in links:
        file = (path.parent / target) if target else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor[1:] in slugs


def test_documents_are_short() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in DOCUMENTS}
    assert lengths["README.md"] <= 250
    folders = {name: lines for name, lines in lengths.items() if re.fullmatch(r"sbpair/[a-z_]+/README.md", name)}
    assert {name: lines for name, lines in folders.items() if not 80 <= lines <= 150} == {}


def test_the_exit_codes_are_those_of_the_errors() -> None:
    from sbpair import errors

    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    classes = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SbpairError)
    ]
    assert {each.exit_code for each in classes} | {0, 130} <= documented


def test_the_readme_marks_the_drill_and_test_commands() -> None:
    lines = dict(re.findall(r"<!-- (drill|tests) -->\n```sh\n(.*?)\n```", README, flags=re.DOTALL))
    assert lines["drill"].endswith("sbpair drill")
    assert "'.[spark]' --group dev" in lines["tests"]


def test_the_changelog_has_a_part_for_what_is_not_released() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


READERS = {
    "archive": (None, "orders 1 4\n"),
    "archive-duckdb": ("duckdb", "orders 1 4\n"),
}


@pytest.mark.parametrize("name", READERS)
def test_the_archive_can_be_read_as_it_says(name: str, tmp_path: Path) -> None:
    from sbpair.replay.archive import Archive
    from sbpair.replay.ledger import Entry, Ledger
    from tests.kit.replay_archives import put

    needed, expected = READERS[name]
    if needed is not None:
        pytest.importorskip(needed)
    archive = Archive(str(tmp_path), "r1")
    put(archive)
    Ledger(archive, 1).write("ledger", 0, [Entry(("another", 1, 2, None), "orders")])
    [script] = re.findall(rf"<!-- {name} -->\n```python\n(.*?)```", TEXT, flags=re.DOTALL)
    said = script.replace("/mnt/archive/RUN", f"{tmp_path}/r1")
    assert said != script

    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)

    assert done.stdout == expected


ONE_LINERS = {
    "DuckDB": "import duckdb; found = {line}; print(*zip(found.columns, found.types))",
    "pandas": "import pandas; found = {line}; print(*zip(found.columns, found.dtypes))",
    "Delta": "import deltalake; {line}; found = deltalake.DeltaTable('{lake}').schema().fields\n"
    "print(*((each.name, each.type.type) for each in found))",
    "Spark": "from pyspark.sql import SparkSession\n"
    "spark = SparkSession.builder.config('spark.ui.enabled', 'false').getOrCreate(); print(*{line}.dtypes)",
}


@pytest.mark.parametrize(
    "reader", ["DuckDB", "pandas", *(pytest.param(each, marks=pytest.mark.slow) for each in ("Delta", "Spark"))]
)
def test_the_archive_is_read_in_one_line_with_these_types(reader: str, tmp_path: Path) -> None:
    from sbpair.replay.segment import SEGMENT
    from tests.replay.segments import created, key, write_segment

    archive, lake = created(tmp_path), tmp_path / "lake"
    for name, more in {"one": {"ttl_ticks": 2**63 - 1}, "two": {}}.items():
        write_segment(archive, name, [key(1)], [b"body"], **more)
    shutil.copytree(Path(archive.root, "segments"), lake)
    [(line, types)] = re.findall(rf"^\| {reader} \| `(.*)` \| (.*) \|$", TEXT, flags=re.MULTILINE)
    line = line.replace("/mnt/archive/RUN", archive.root).replace("/mnt/lake/RUN", str(lake))
    packages = {"PYTHONPATH": str(python_packages.folder("deltalake==1.6.6"))} if reader == "Delta" else {}
    script = ONE_LINERS[reader].format(line=line, lake=lake)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ, **packages}
    )
    of = dict(zip(("string", "int32", "int64", "binary"), types.split(", "), strict=True))
    found = {name: kind.strip("'") for name, kind in re.findall(r"\('(\w+)', ([^)]+)\)", done.stdout)}
    assert list(found) == SEGMENT.names
    for field in SEGMENT:
        assert of[str(field.type)] in found[field.name]


def test_every_column_of_the_archive_is_in_it() -> None:
    from sbpair.replay.ledger import OUTCOME
    from sbpair.replay.segment import SEGMENT

    part = (ROOT / "sbpair/replay/ARCHIVE.md").read_text()
    assert [name for name in (*SEGMENT.names, *OUTCOME.names) if f"`{name}`" not in part] == []


async def test_the_message_of_the_example_arrives() -> None:
    [script] = re.findall(r"<!-- send -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        orders = emulator.namespaces["contoso"].create_queue("orders")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script), env=environment(emulator), stdout=subprocess.DEVNULL
        )
        assert await process.wait() == 0
        assert orders.counts().active == 1


async def test_the_first_minute_strands_ten_messages_and_moves_them(tmp_path: Path) -> None:
    [script] = re.findall(r"<!-- first-minute -->\n```sh\n(.*?)```", README, flags=re.DOTALL)
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        tool = f'sbpair() {{ {sys.executable} -m sbpair "$@"; }}\n'
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", tool + script),
            env=environment(emulator, PYTHONPATH=str(ROOT)),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        assert emulator.namespaces["contoso"].queue("orders").counts().active == 10
        backlog = emulator.namespaces["contoso-dr"].queues()
        assert sum(queue.counts().total for queue in backlog) == 0
