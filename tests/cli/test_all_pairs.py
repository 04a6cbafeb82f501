"""`--all-pairs`: three pairs on one emulator, two of them with one secondary, in one process."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.cli.commands.supervised_moves import PairMove, _keep_moving
from sbpair.cli.options.common import Display
from sbpair.cli.render.screen import Screen
from sbpair.emulator.entities.description import QueueDescription
from sbpair.testing import Emulator
from tests.kit.command import CommandLines, environment
from tests.kit.mounted_keys import MountedKey
from tests.kit.moves import ids
from tests.kit.stranded import put, stranded
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import until

PAIRS = {"alpha": "shared", "bravo": "shared", "delta": "delta-dr"}
"""The secondary of each pair. Its primary has the name of the pair, and `-main`."""

QUEUES = 2
JSON = ("--output", "json", "--log-format", "json")


class Pairs(CommandLines):
    """The pairs of a file, and a process that has all of them."""

    def __init__(self, emulator: Emulator, directory: Path) -> None:
        keys = {f"KEY_{each.name.upper().replace('-', '_')}": each for each in emulator.ready.namespaces}
        names = {each.name: variable for variable, each in keys.items()}
        strings = {variable: each.connection_string for variable, each in keys.items()}
        file = directory / "config.toml"
        file.write_text(
            "".join(
                f"[pairs.{pair}]\nbacklog_queues = {QUEUES}\n"
                f'primary = {{ name = "{pair}-main", connection_string_env = "{names[f"{pair}-main"]}" }}\n'
                f'secondary = {{ name = "{secondary}", connection_string_env = "{names[secondary]}" }}\n'
                for pair, secondary in PAIRS.items()
            )
        )
        super().__init__(environment(None, SBPAIR_CONFIG=str(file), XDG_STATE_HOME=str(directory / "state"), **strings))
        self.emulator = emulator
        self.sent: dict[str, list[str]] = {pair: [] for pair in PAIRS}
        for pair, secondary in PAIRS.items():
            self.primary(pair).create_queue("orders", QueueDescription(max_size_in_megabytes=5120))
            for number in range(QUEUES):
                emulator.namespaces[secondary].create_queue(queue_path(f"{pair}-main", number))

    def primary(self, pair: str) -> Any:
        return self.emulator.namespaces[f"{pair}-main"]

    def strand(self, count: int = 5) -> None:
        """Strand messages in the first backlog queue of each pair."""
        for pair, secondary in PAIRS.items():
            for _ in range(count):
                self.sent[pair].append(f"{pair}-{len(self.sent[pair])}")
                queue = self.emulator.namespaces[secondary].queue(queue_path(f"{pair}-main", 0))
                put(queue, stranded(self.sent[pair][-1], "orders"))

    def arrived(self, pair: str) -> list[object]:
        """Return the ids of messages in the primary, in their order."""
        return ids(self.primary(pair).queue("orders"))

    def is_delivered(self, *pairs: str) -> bool:
        return all(self.arrived(pair) == self.sent[pair] for pair in pairs)


@asynccontextmanager
async def open_pairs(directory: Path) -> AsyncIterator[Pairs]:
    names = [*(f"{pair}-main" for pair in PAIRS), *dict.fromkeys(PAIRS.values())]
    async with Emulator([(name, 0) for name in names]) as emulator:
        yield Pairs(emulator, directory)


async def stopped(process: Any) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Stop a process in order; return its exit code, its result by pair, and its lines."""
    process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()
    document = json.loads(out)
    assert document["schema"] == "sbpair/syphon-pairs/1"
    pairs = {each["pair"]: each for each in document["pairs"]}
    return process.returncode, pairs, [json.loads(line) for line in err.splitlines()]


async def line_of(process: Any, event: str, pair: str) -> dict[str, Any]:
    """Return the first event of a pair that has this name."""
    while True:
        printed = json.loads(await process.stderr.readline())
        if (printed.get("event"), printed.get("pair")) == (event, pair):
            return dict(printed)


async def page(url: str) -> tuple[int, str]:
    """Return the status and the text of a page on a port of a process."""
    host, _, rest = url.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), content.decode()


WRONG = "SharedAccessKey=c2JwYWly"


async def test_trouble_of_pairs_does_not_stop_another(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        pairs.primary("bravo").take_down()
        wrong = re.sub("SharedAccessKey=[^;]+", WRONG, pairs.environ["KEY_DELTA_MAIN"])
        pairs.strand()
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", *JSON, KEY_DELTA_MAIN=wrong)
        await until(lambda: pairs.is_delivered("alpha"))
        assert (await line_of(process, "queue-failed", "bravo"))["side"] == "primary"
        pairs.primary("bravo").bring_up()
        await until(lambda: pairs.is_delivered("alpha", "bravo"))
        pairs.strand()
        await until(lambda: pairs.is_delivered("alpha", "bravo"))

        code, found, lines = await stopped(process)
        assert code == 5
        assert {pair: each["exit_code"] for pair, each in found.items()} == {"alpha": 0, "bravo": 0, "delta": 5}
        assert [found[pair]["documents"][0]["sent"] for pair in ("alpha", "bravo")] == [10, 10]
        assert found["delta"]["documents"] == []
        assert "delta-main does not accept the key" in found["delta"]["reason"]
        assert "--pair delta" in found["delta"]["hint"]
        assert WRONG not in json.dumps(lines)
        assert pairs.arrived("delta") == []
        for pair in ("alpha", "bravo"):
            _, out, _ = await pairs.run("runs", "list", "--pair", pair, "--output", "json")
            assert [(run["outcome"], run["id"]) for run in json.loads(out)["runs"]] == [
                ("stopped", found[pair]["documents"][0]["run"])
            ]
            assert f"--pair {pair}" in found[pair]["documents"][0]["next_commands"][0]


async def test_a_secondary_that_is_away_at_the_start_is_tried_again(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        pairs.emulator.namespaces["delta-dr"].take_down()
        pairs.strand()
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", "--health-port", "0", *JSON)
        url = json.loads(await process.stderr.readline())["url"]
        await until(lambda: pairs.is_delivered("alpha", "bravo"))
        status, state = await page(url)
        while "delta: next try at " not in state:
            status, state = await page(url)
        assert status == 503
        assert (await page(url.replace("ready", "live")))[0] == 200
        pairs.emulator.namespaces["delta-dr"].bring_up()
        await until(lambda: pairs.is_delivered(*PAIRS))
        while (await page(url)) != (200, "3 of 3 pairs are ready\n"):
            pass
        code, found, _ = await stopped(process)
        assert code == 0
        assert {pair: each["documents"][0]["sent"] for pair, each in found.items()} == dict.fromkeys(PAIRS, 5)


async def test_a_pair_whose_key_is_refused_waits_for_the_next_one_in_its_file(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        key, file = MountedKey(tmp_path / "key", pairs.emulator.namespaces["delta-dr"]), tmp_path / "config.toml"
        key.regenerate(and_file=False)
        file.write_text(file.read_text().replace('_env = "KEY_DELTA_DR"', f'_file = "{key.path}"'))
        pairs.strand()
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", "--health-port", "0", *JSON)
        url = json.loads(await process.stderr.readline())["url"]
        await until(lambda: pairs.is_delivered("alpha", "bravo"))
        while "delta: next try at " not in (await page(url))[1]:
            pass
        key.update()
        await until(lambda: pairs.is_delivered(*PAIRS))
        code, found, _ = await stopped(process)
        assert (code, found["delta"]["documents"][-1]["sent"]) == (0, 5)


async def test_a_killed_process_goes_on_with_all_pairs(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        pairs.strand(60)
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", "--rate", "40")
        await until(lambda: all(pairs.arrived(pair) for pair in PAIRS))
        process.kill()
        await process.communicate()
        assert not pairs.is_delivered(*PAIRS)
        pairs.emulator.advance(120_000)  # its locks run out
        process = await pairs.start("syphon", "--watch", "--all-pairs", *JSON)
        await until(lambda: all({*pairs.arrived(pair)} == {*pairs.sent[pair]} for pair in PAIRS))
        code, found, _ = await stopped(process)
        assert code == 0
        for pair, each in found.items():
            [receipt] = each["documents"]
            twice = len(pairs.arrived(pair)) - len(pairs.sent[pair])
            assert twice <= receipt["doubtful_total"]
            assert list(dict.fromkeys(pairs.arrived(pair))) == pairs.sent[pair]


async def test_the_lease_keeps_a_single_pair_and_all_pairs_apart(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        single = await pairs.start("syphon", "--watch", "--pair", "alpha", *JSON)
        pairs.strand()
        await until(lambda: pairs.is_delivered("alpha"))
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", *JSON)
        await until(lambda: pairs.is_delivered(*PAIRS))
        while "is moving messages of this pair; trying again" not in (
            line := (await process.stderr.readline()).decode()
        ):
            pass
        assert json.loads(line)["pair"] == "alpha"
        single.send_signal(signal.SIGTERM)
        await single.communicate()
        pairs.strand()
        await until(lambda: pairs.is_delivered(*PAIRS))
        code, _, err = await pairs.run("syphon", "--once", "--pair", "bravo")
        assert code == 4
        assert err.startswith(f"error: process {process.pid} (run ")
        code, found, _ = await stopped(process)
        assert (code, [each["exit_code"] for each in found.values()]) == (0, [0, 0, 0])


async def test_one_lease_queue_in_each_secondary_serves_all_pairs(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        for name in {*PAIRS.values()}:
            sessions = QueueDescription(requires_session=True)
            pairs.emulator.namespaces[name].create_queue("leases", sessions)
        pairs.strand()
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", "--lease", "leases", *JSON)
        await until(lambda: pairs.is_delivered(*PAIRS))
        assert (await stopped(process))[0] == 0


async def test_metrics_have_a_label_for_each_pair(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        pairs.strand()
        process: Any = await pairs.start("syphon", "--watch", "--all-pairs", "--metrics-port", "0", *JSON)
        url = json.loads(await process.stderr.readline())["url"]
        await until(lambda: pairs.is_delivered(*PAIRS))
        wanted = {
            f'sbpair_messages_sent_total{{pair="{pair}",queue="{pair}-main/x-servicebus-transfer/0"}} 5.0'
            for pair in PAIRS
        }
        lines: set[str] = set()
        while not wanted <= lines:
            lines = {*(await page(url))[1].splitlines()}
        assert {f'sbpair_side_away{{pair="{pair}",side="primary"}} 0.0' for pair in PAIRS} <= lines
        assert len([line for line in lines if line.startswith("sbpair_run_info")]) == len(PAIRS)
        await stopped(process)


async def test_once_moves_all_pairs_and_ends_with_the_gravest_code(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        pairs.strand()
        code, out, err = await pairs.run("syphon", "--once", "--all-pairs", KEY_DELTA_MAIN="")
        assert code == 2
        assert pairs.is_delivered("alpha", "bravo")
        assert out.splitlines()[-4:-1] == [
            "PAIR   EXIT  RECEIVED  SENT  NOTE",
            "alpha     0         5     5",
            "bravo     0         5     5",
        ]
        assert "error: delta: " in err
        assert "the variable KEY_DELTA_MAIN is not set" in out.splitlines()[-1]


async def test_a_terminal_gets_a_line_for_each_pair(tmp_path: Path) -> None:
    async with open_pairs(tmp_path) as pairs:
        pairs.primary("bravo").take_down()
        pairs.strand()
        with PseudoTerminal(120) as terminal:
            process = await pairs.start("syphon", "--watch", "--all-pairs", stderr=terminal.theirs, TERM="xterm")
            terminal.hand_over()
            pairs_shown = ("PAIR ", "alpha ", "bravo ", "delta ", "total")
            seen = await terminal.shown("bravo: primary unreachable", *pairs_shown, "primary unreachable since")
            assert "x-servicebus-transfer" not in seen
            process.send_signal(signal.SIGTERM)
            out, _ = await process.communicate()
        assert process.returncode == 0
        assert b"pair alpha\n" in out


@pytest.mark.parametrize("command", ["status", "audit"])
async def test_status_and_audit_have_a_line_for_each_pair(tmp_path: Path, command: str) -> None:
    async with open_pairs(tmp_path) as pairs:
        wrong = re.sub("SharedAccessKey=[^;]+", WRONG, pairs.environ["KEY_DELTA_DR"])
        pairs.environ |= {"KEY_BRAVO_MAIN": "", "KEY_DELTA_DR": wrong}
        pairs.strand(2)
        words = (command, "--all-pairs", *(["--sample", "0"] if command == "audit" else []))
        code, out, err = await pairs.run(*words)
        heading, alpha, bravo, delta = out.splitlines()
        assert code == 5
        assert "hint: check the key's name and the key in KEY_DELTA_DR" in err
        assert heading.startswith("PAIR ")
        assert re.match(r"alpha .*\b2 +0 ", alpha)
        assert bravo.endswith("the variable KEY_BRAVO_MAIN is not set")
        assert re.search("signature|does not accept", delta)
        _, out, _ = await pairs.run(*words, "--output", "json")
        found = json.loads(out)
        assert found["schema"] == f"sbpair/{command}-pairs/1"
        assert [each["pair"] for each in found["pairs"]] == [*PAIRS]
        [document] = found["pairs"][0]["documents"]
        assert (document["schema"], document["backlog"]["messages"]) == (f"sbpair/{command}/1", 2)
        _, out, _ = await pairs.run(*words, "--output", "jsonl")
        assert [json.loads(line)["pair"] for line in out.splitlines()] == [*PAIRS]


async def test_a_bug_ends_the_pair_that_has_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Any:
        raise ZeroDivisionError

    async def move(each: PairMove) -> None:
        each.begin()

    moved = PairMove("alpha", fail)
    await _keep_moving(Screen(Display()), moved, move, asyncio.Event())
    assert moved.exit_code == 1
    assert moved.live.halted == "failed: unexpected ZeroDivisionError"
    assert "error: alpha: unexpected ZeroDivisionError\nhint: this is a bug: " in capsys.readouterr().err
