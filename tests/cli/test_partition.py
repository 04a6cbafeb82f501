"""`sbpair partition`: output and exit codes.

Many command lines are run by one process, one after the other: it takes longer to start than to run them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.command import environment, run_program, untimed

RUN_ALL = """
import contextlib, io, json, sys
from sbpair.__main__ import run
answers = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def run_all(*lines: list[str], **environ: str) -> list[Answer]:
    env = environment(None, NO_COLOR="1", XDG_CONFIG_HOME="/nowhere", **environ)
    done = run_program(sys.executable, "-W", "error", "-c", RUN_ALL, env=env, input=json.dumps(lines))
    assert (done.returncode, done.stderr) == (0, "")
    return [Answer(*each) for each in json.loads(done.stdout)]


QUEUE = ["partition", "queue"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Standard namespace and a Premium one, in a process of their own."""
    ready = Path(tmp_path_factory.mktemp("emulator")) / "ready.json"
    namespaces = ("--namespace", "contoso=0", "--namespace", "contoso-dr=0,premium,2")
    command = [sys.executable, "-m", "sbpair", "emulator", *namespaces, "-o", "json", "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout
        found = json.loads(running.stdout.readline())["namespaces"]
        sides = list(zip(("PRIMARY", "SECONDARY"), found, strict=True))
        keys = "name", "connection_string"
        yield {f"SBPAIR_{side}_{key.upper()}": each[key] for side, each in sides for key in keys}
        running.terminate()


def test_a_queue_is_made_once_and_listed(pair: dict[str, str]) -> None:
    five = [*QUEUE, "orders", "--size-gb", "5"]
    empty, dry, made, again, listed, other, refused, table = run_all(
        ["partition", "list"],
        [*five, "--dry-run", "-o", "json"],
        [*five, "-o", "json"],
        [*five, "-o", "json"],
        ["partition", "list", "-o", "jsonl"],
        [*QUEUE, "orders", "--size-gb", "4"],
        [*QUEUE, "large", "--size-gb", "80"],
        ["partition", "list"],
        **pair,
    )
    assert (empty.code, empty.out, untimed(empty.err)) == (0, "", "no queues and no topics\n")
    entry = {
        "name": "orders",
        "namespace": "contoso",
        "kind": "queue",
        "tier": "Standard",
        "partitions": 16,
        "max_size_mb": 5120,
        "effective_max_size_mb": 81920,
        "outcome": "created",
        "created": True,
    }
    assert made.document == {"schema": "sbpair/partition/1", **entry, "dry_run": False, "namespaces": [entry]}
    assert (dry.document["outcome"], dry.document["created"], dry.document["dry_run"]) == ("would_create", False, True)
    assert (again.code, again.document["outcome"], again.document["created"]) == (0, "existing", False)
    [line] = listed.out.splitlines()
    sizes = {"size_bytes": 0, "fill_ratio": 0.0}
    kept = {name: value for name, value in entry.items() if name not in ("outcome", "created")}
    assert json.loads(line) == {"schema": "sbpair/partition-list/1", **kept, **sizes}
    assert (other.code, other.out) == (3, "")
    assert "MaxSizeInMegabytes is 5120 and should be 4096" in other.err
    assert (refused.code, refused.err.splitlines()[1]) == (
        2,
        "hint: choose 1, 2, 3, 4 or 5: it has 16 partitions of that size, and 5 makes 80 GB",
    )
    assert table.out.splitlines() == [
        "NAME    KIND   NAMESPACE  PARTITIONS  SIZE  IN ALL  HOLDS  FULL",
        "orders  queue  contoso            16  5 GB  80 GB   0 B    0.0%",
    ]


def test_both_namespaces_each_by_its_own_rules(pair: dict[str, str]) -> None:
    one = ["partition", "topic", "news", "--size-gb", "1", "--both"]
    dry, made = run_all([*one, "--dry-run"], [*one, "-o", "json"], **pair)
    assert untimed(dry.err) == "contoso-dr may not be partitioned; if so, it refuses this\n"
    assert " ".join(dry.out.splitlines()[2].split()) == "news topic contoso-dr 1 or 2 1 GB 1 GB would create"
    printed = [
        (each["tier"], each["partitions"], each["effective_max_size_mb"]) for each in made.document["namespaces"]
    ]
    assert printed == [("Standard", 16, 16384), ("Premium", 2, 1024)]
