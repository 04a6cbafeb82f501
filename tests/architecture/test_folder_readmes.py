"""READMEs of packages: a ```python block after `<!-- example: NAME -->` runs against an emulated pair."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.backlog import queue_path
from tests.kit import command
from tests.kit.running import NAMESPACE, Running

ROOT = Path(__file__).parents[2]
READMES = {path.parent.name: path.read_text() for path in sorted((ROOT / "sbpair").rglob("README.md"))}
EXAMPLES = [
    (package, name, code)
    for package, text in READMES.items()
    for name, code in re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", text, flags=re.DOTALL)
]
PUBLIC = {"sbpair", "sbpair.aio", "sbpair.events", "sbpair.management", "sbpair.testing"}
PUBLIC |= {"sbpair.relay", "sbpair.relay.aio", "sbpair.spark"}


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """A pair with backlog queues, and `orders` in both namespaces, as the configuration of a program."""
    with Running() as running:
        for namespace in (running.namespace, running.other):
            running.do(lambda each=namespace: each.create_queue("orders"))
            running.do(lambda each=namespace: each.hybrid_connections.create("service"))
        for path in [queue_path(NAMESPACE, index) for index in range(10)]:
            running.do(lambda each=path: running.other.create_queue(each))
        yield command.environment(running.emulator, PYTHONPATH=str(ROOT))


@pytest.mark.parametrize("code", [each[2] for each in EXAMPLES], ids=[f"{each[0]}-{each[1]}" for each in EXAMPLES])
def test_example_runs_and_prints_its_comments(code: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^ *print\(.*\)  # ([(\w{][^;\n]*?)(?:[;,] .*)?$", code, flags=re.MULTILINE)
    assert [text for text in printed if text not in done.stdout] == []


@pytest.mark.parametrize("package", READMES)
def test_python_blocks_import_only_public_modules(package: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", READMES[package], flags=re.DOTALL)
    nodes = [node for code in blocks for node in ast.walk(ast.parse(code))]
    found = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module if isinstance(node, ast.ImportFrom) else each.name for node in found for each in node.names]
    assert {name for name in names if str(name).split(".")[0] == "sbpair"} <= PUBLIC


def test_both_capabilities_with_a_client_have_examples() -> None:
    assert {"failover", "replication"} <= {package for package, _, _ in EXAMPLES}


def test_the_page_for_contributors_names_files_that_are_there() -> None:
    text = (ROOT / ".github/CONTRIBUTING.md").read_text()
    named = set(re.findall(r"\b(?:sbpair|tests)/[\w/]+(?:\.\w+)?", text))
    placeholders = {"sbpair/cli/commands/NAME.py", "sbpair/NAME/1", "tests/README"}
    assert {each for each in named if not (ROOT / each).exists()} == placeholders
