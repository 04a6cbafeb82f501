"""`sbpair export`: files that are written, and those that are not."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.command import Here

Sbpair = Callable[..., subprocess.CompletedProcess[str]]


PAIR = ("--primary", "contoso", "--secondary", "contoso-dr")
ENTITIES = """
[queues.orders]
forward_to = "elsewhere"
[topics.events.subscriptions.audit]
"""


@pytest.fixture
def entities(tmp_path: Path) -> str:
    (tmp_path / "entities.toml").write_text(ENTITIES)
    return str(tmp_path / "entities.toml")


@pytest.fixture
def sbpair(here: Here) -> Sbpair:
    return lambda *words: subprocess.CompletedProcess(words, *here(*words))


def test_a_file_holds_what_stdout_would(sbpair: Sbpair, tmp_path: Path, entities: str) -> None:
    printed = sbpair("export", "bicep", *PAIR, "--entities", entities)
    target = tmp_path / "secondary.bicep"
    done = sbpair("export", "bicep", *PAIR, "--entities", entities, "--write", str(target))
    assert (printed.returncode, done.returncode) == (0, 0)
    assert target.read_text() == printed.stdout
    assert done.stdout == f"{target}: 10 backlog queues, 1 queue, 1 topic, 1 subscription of contoso-dr\n"
    assert done.stderr.endswith("warning: forwarding targets that must exist already: elsewhere\n")
    assert "\nresource queue_orders " in printed.stdout


def test_a_missing_folder_is_named(sbpair: Sbpair, tmp_path: Path) -> None:
    done = sbpair("export", "bicep", *PAIR, "--write", str(tmp_path / "no/x"))
    assert (done.returncode, done.stdout) == (7, "")
    assert "no/x cannot be written: No such file or directory\nhint: choose a writable path" in done.stderr


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_named(sbpair: Sbpair, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = sbpair("export", "bicep", *PAIR, "--write", str(tmp_path / "x"))
    assert done.returncode == 7
    assert "cannot be written: Permission denied" in done.stderr


def test_a_mistake_in_the_entities_writes_no_file(sbpair: Sbpair, tmp_path: Path, entities: str) -> None:
    Path(entities).write_text("[queues.orders]\nlock_duration = '6m'\n")
    done = sbpair("export", "bicep", *PAIR, "--entities", entities, "--write", str(tmp_path / "x"))
    assert done.returncode == 2
    assert f"{entities}:2:1: lock_duration of queue orders: expected more than nothing" in done.stderr
    assert not (tmp_path / "x").exists()


def test_the_document_has_the_code_or_the_file(sbpair: Sbpair, tmp_path: Path, entities: str) -> None:
    words = ("export", "terraform", *PAIR, "--side", "primary", "--entities", entities, "-o", "json")
    printed = json.loads(sbpair(*words).stdout)
    assert (printed["namespace"], printed["backlog_queues"], printed["file"]) == ("contoso", 0, None)
    assert printed["needs"] == ["elsewhere"]
    assert [each["symbol"] for each in printed["entities"]] == [
        "queue_orders",
        "topic_events",
        "subscription_events_audit",
    ]
    target = str(tmp_path / "main.tf")
    written = json.loads(sbpair(*words, "--write", target).stdout)
    assert (written["file"], written["code"]) == (target, None)
    assert Path(target).read_text() == printed["code"]


def test_the_heading_repeats_the_command_without_the_pair(sbpair: Sbpair) -> None:
    out = sbpair("export", "bicep", *PAIR, "--count", "3", "--partitioned", "--write", "-").stdout.splitlines()
    assert out[0] == "// Service Bus namespace contoso-dr: the backlog queues of contoso."
    assert out[1].startswith("// Written by: sbpair export bicep --side secondary --count 3 --partitioned (version ")
    assert "    enablePartitioning: true" in out
