"""The documents of the emulator and of `sbpair.testing` against both."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sbpair.emulator
import sbpair.testing
from sbpair.emulator.faults.fault_kinds import KINDS
from tests.kit.plugin import install_plugin
from tests.kit.running import Running

EMULATOR = Path(sbpair.emulator.__file__).parent
TESTING = (Path(sbpair.testing.__file__).parent / "README.md").read_text()


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of a document's table by their first cell."""
    lines = [line.strip()[1:-1].split("|") for line in text.splitlines() if line.startswith("| `")]
    return {first.strip(" `"): rest for first, *rest in lines}


def test_the_table_of_faults_has_every_kind_with_its_fields() -> None:
    table = rows((EMULATOR / "faults" / "README.md").read_text())
    assert table.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        _, needs, takes = table[name]
        if "as `drop`" in takes:
            takes = table["drop"][2]
        assert set(re.findall(r"`([a-z_]+)`", needs)) == set(kind.needs)
        assert set(re.findall(r"`([a-z_]+)`", takes)) == set(kind.takes)


def example_of(text: str) -> str:
    [example] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    return example


def test_the_administration_client_needs_no_more_than_the_example(running: Running) -> None:
    names: dict[str, Any] = {}
    exec(example_of((EMULATOR / "CONTAINER.md").read_text()), names)  # noqa: S102  # the document's own code
    with names["administration"](running.connection_string) as admin:
        admin.create_queue("by-example")
        assert admin.get_queue("by-example").name == "by-example"


@pytest.mark.parametrize("title", ["In pytest", "In an event loop"])
def test_the_pytest_example_passes(tmp_path: Path, title: str) -> None:
    path = tmp_path / "test_example.py"
    path.write_text(example_of(TESTING.partition(f"## {title}\n")[2].partition("\n## ")[0]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    env = install_plugin(tmp_path / "installed")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
