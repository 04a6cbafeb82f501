"""`--namespace` and `SIDE:ENTITY`: commands on a namespace of no pair, and wrong combinations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class World:
    """A pair, whose secondary the configuration file also has as `archive`."""

    def __init__(self, thread: EmulatorThread, here: Here, tmp_path: Path) -> None:
        self.primary, self.secondary = thread.emulator.namespaces.values()
        self._here, self._pair = here, environment(thread.emulator, NO_COLOR="1")
        file = tmp_path / "config.toml"
        file.write_text('[namespaces.archive]\nconnection_string_env = "ARCHIVE"\nname = "cellar"\n')
        self._alone = {"SBPAIR_CONFIG": str(file), "ARCHIVE": self.secondary.connection_string, "NO_COLOR": "1"}
        for namespace in (self.primary, self.secondary):
            queue = thread.do(lambda namespace=namespace: namespace.create_queue("orders"))
            for number in range(2):
                name = f"{namespace.name}-{number}"
                thread.do(lambda queue=queue, name=name: put(queue, stranded(name, None)))

    def run(self, *words: str, pair: bool = True) -> tuple[int, str, list[str]]:
        code, out, err = self._here(*words, **self._alone | (self._pair if pair else {}))
        return code, out, untimed(err).splitlines()

    def document(self, *words: str, pair: bool = True) -> dict[str, Any]:
        code, out, err = self.run(*words, "-o", "json", pair=pair)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def world(here: Here, tmp_path: Path, impatient: None) -> Iterator[World]:  # noqa: ARG001
    with EmulatorThread() as thread:
        yield World(thread, here, tmp_path)


@pytest.mark.parametrize("words", [["orders", "--namespace", "archive"], ["archive:orders"]])
def test_peek_and_receive_need_no_pair(world: World, words: list[str]) -> None:
    peeked = world.document("peek", *words, pair=False)
    assert (peeked["namespace"], peeked["side"], peeked["total"]) == ("cellar", "archive", 2)
    assert [each["from"] for each in peeked["messages"]] == ["archive", "archive"]
    removed = world.document("receive", *words, "--remove", "--yes", "--wait", "1s", pair=False)
    assert [each["message_id"] for each in removed["messages"]] == ["contoso-dr-0", "contoso-dr-1"]
    assert {each["from"] for each in removed["messages"]} == {"archive"}
    assert world.document("peek", *words, pair=False)["total"] == 0


def test_receive_reads_the_side_that_is_named(world: World) -> None:
    for words, name in (
        (["orders"], "contoso-0"),
        (["primary:orders"], "contoso-0"),
        (["secondary:orders"], "contoso-dr-0"),
    ):
        assert world.document("receive", *words, "--max", "1")["messages"][0]["message_id"] == name


def test_send_to_a_namespace_alone_needs_no_pair(world: World, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"line {number}\n" for number in range(2500)))
    for count, words in enumerate((["archive:orders"], ["orders", "--namespace", "archive"]), 1):
        sent = world.document("send", *words, str(lines), pair=False)
        assert (sent["messages"], sent["primary"], sent["failed"], sent["next_line"]) == (2500, 2500, 0, 2501)
        assert world.secondary.find_queue("orders").counts().active == 2 + count * 2500
    code, out, _err = world.run("send", "archive:orders", str(lines), pair=False)
    assert [line.split()[0] for line in out.splitlines()] == ["MESSAGES", "all", "sent", "in", "failed"]
    code, _out, err = world.run("send", "archive:nowhere", str(lines), pair=False)
    assert (code, "nowhere" in err[0]) == (2, True)
    large = tmp_path / "large"
    large.write_text(f"one\n{'x' * 300_000}\ntwo\n")
    code, out, err = world.run("send", "archive:orders", str(large), "-o", "json", pair=False)
    sent = json.loads(out)
    assert (code, sent["primary"], sent["failed"], sent["failure"]["line"]) == (3, 1, 1, 2)
    assert err[-1] == f"continue with sbpair send archive:orders {large} --skip 1"


def test_runs_of_a_namespace_are_listed_shown_and_reported(world: World) -> None:
    assert world.run("runs", "list", "--namespace", "archive", pair=False)[0] == 0
    world.secondary.create_queue("store")
    moved = world.document("move", "orders", "store", "--namespace", "archive", "-q", pair=False)
    assert moved["sent"] == 2
    [run] = world.document("runs", "list", "--namespace", "archive", pair=False)["runs"]
    assert (run["id"], run["command"]) == (moved["run"], "move archive:orders archive:store --once")
    words = [moved["run"], "--namespace", "archive"]
    assert world.document("runs", "show", *words, pair=False)["runs"][0]["receipt"]["sent"] == 2
    code, out, _err = world.run("runs", "report", *words, "--markdown", "-", pair=False)
    assert (code, "| `source namespace` |" in out, "primary" in out) == (0, True, False)
    assert world.document("runs", "list")["runs"] == []  # those of the pair


def test_the_name_of_a_side_is_explained(world: World) -> None:
    start, end = "hint: contoso-dr is the secondary of the pair: ", "write secondary:ENTITY for its entities"
    assert world.run("peek", "contoso-dr:orders")[2][-1] == start + end
    for words in (["peek", "orders"], ["runs", "list"]):
        found = world.run(*words, "--namespace", "contoso-dr")[2][-1]
        assert found == f"{start}leave --namespace out, and {end}"
    assert "is the secondary" not in world.run("peek", "contoso-dr:orders", pair=False)[2][-1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("peek orders --namespace nowhere", "namespace 'nowhere' does not exist"),
        ("peek orders --side primary --namespace archive", "--side and --namespace exclude each other"),
        ("peek archive:orders --side primary", "'archive:orders' names archive, and --side primary"),
        ("peek :orders", "':orders': expected SIDE:ENTITY"),
        ("peek archive:", "'archive:': expected SIDE:ENTITY"),
        ("peek archiv:orders", "namespace 'archiv' does not exist"),
        ("receive orders --dedup --namespace archive", "--dedup receives from both sides of the pair"),
        ("receive secondary:orders --dedup", "--dedup receives from both sides of the pair"),
        ("receive nowhere:orders --remove --yes", "namespace 'nowhere' does not exist"),
        ("send archive:orders --to-backlog", "--to-backlog is for the primary of a pair"),
        ("send orders --namespace archive --outbox x", "--outbox is for the primary of a pair"),
        ("send secondary:orders --on-failure wait", "--on-failure is for the primary of a pair"),
        ("send secondary:0", "contoso/x-servicebus-transfer/0 is a backlog queue"),
        ("send nowhere:orders", "namespace 'nowhere' does not exist"),
        ("runs list --namespace nowhere", "namespace 'nowhere' does not exist"),
        ("runs show 1 --namespace archive", "run '1' does not exist"),
    ],
)
def test_wrong_namespaces_are_refused_with_a_hint(world: World, words: str, error: str) -> None:
    code, out, err = world.run(*words.split())
    assert (code, out) == (2, ""), err
    assert err[-2].startswith(f"error: {error}"), err
    assert err[-1].startswith("hint: "), err
