"""`sbpair doctor` and `sbpair config`: exit codes, JSON, questions, secrets, and Ctrl-C."""

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sbpair.config.file import PAIR_KEYS, RELAY_SIDE_KEYS, SIDE_KEYS
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import Here
from tests.kit.pairs import stored
from tests.kit.terminal import PseudoTerminal

KEY = "a-key-that-nobody-may-see"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def environment(emulator: Emulator | None, home: Path) -> dict[str, str]:
    return command.environment(emulator, "XDG_", "JAVA_HOME", HOME=str(home))


async def started(words: list[str], environ: dict[str, str], **options: Any) -> asyncio.subprocess.Process:
    return await command.start(*words, env=environ, python=(), **options)


async def finished(words: list[str], environ: dict[str, str]) -> tuple[int, str, str]:
    code, out, err = await command.finished(await started(words, environ))
    assert "Traceback" not in err
    return code, out, err


def made(emulator: Emulator) -> set[str]:
    return {queue.path for each in emulator.namespaces.values() for queue in each.queues()}


def failing(out: str) -> dict[str, int]:
    printed = json.loads(out)
    return {each["name"]: each["exit_code"] for each in printed["checks"] if each["outcome"] == "failed"}


async def test_all_is_well_in_every_form_of_output(home: Path) -> None:
    async with Emulator() as emulator:
        environ = environment(emulator, home)
        code, out, err = await finished(["doctor", "-v"], environ)
        assert (code, out.splitlines()[-1]) == (0, "no problems; 4 unknown")
        assert "primary tcp: ok" in err
        code, out, _ = await finished(["doctor", "--output", "json"], environ)
        printed = json.loads(out)
        assert (code, printed["schema"], printed["live"]) == (0, "sbpair/doctor/1", [])
        code, out, _ = await finished(["doctor", "--output", "jsonl", "--quiet"], environ)
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["name"] for line in lines] == [each["name"] for each in printed["checks"]]
        assert {line["schema"] for line in lines} == {"sbpair/doctor/1"}
    assert list(home.iterdir()) == []


async def test_what_is_wrong_has_its_exit_code_and_tells_no_secret(home: Path) -> None:
    async with Emulator() as emulator:
        right = environment(emulator, home)
        endpoint = emulator.ready.namespaces[1].endpoint
        wrong = f"Endpoint={endpoint};SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        cases: list[tuple[dict[str, str], int, dict[str, int]]] = [
            ({"SBPAIR_SECONDARY_CONNECTION_STRING": wrong}, 5, {"secondary.sign_in": 5}),
            ({"SBPAIR_SECONDARY_CONNECTION_STRING": f"Endpoint=sb://x;SharedAccessKey={KEY}"}, 2, {"configuration": 2}),
            ({"SBPAIR_SECONDARY_CONECTION_STRING": wrong}, 3, {"environment": 3}),
            (
                {"SBPAIR_SECONDARY_CONNECTION_STRING": wrong, "SBPAIR_PAIRR": "x"},
                3,
                {"environment": 3, "secondary.sign_in": 5},
            ),
        ]
        for changed, expected, failed in cases:
            code, out, err = await finished(["doctor", "--output", "json"], right | changed)
            assert (code, failing(out)) == (expected, failed)
            assert KEY not in out + err


async def test_without_java_spark_cannot_run_and_everything_else_is_checked(home: Path) -> None:
    async with Emulator() as emulator:
        pytest.importorskip("pyspark")
        code, out, _ = await finished(["doctor", "--output", "json"], environment(emulator, home) | {"PATH": str(home)})
        assert (code, failing(out)) == (7, {"java": 7})


async def test_doctor_checks_the_machine_even_if_nothing_is_configured(home: Path) -> None:
    code, out, _ = await finished(["doctor", "--output", "json"], environment(None, home))
    printed = json.loads(out)
    assert (code, [each["name"] for each in printed["checks"]][:3]) == (
        2,
        ["configuration", "configuration", "config_file"],
    )
    assert {each["name"] for each in printed["checks"]} >= {"python", "azure-servicebus", "java"}


async def test_live_shows_what_is_observed_beside_what_is_assumed(home: Path) -> None:
    async with Emulator() as emulator:
        environ = environment(emulator, home)
        code, out, err = await finished(["doctor", "--live", "--yes", "-v"], environ)
        assert code == 0
        assert "QUESTION" in out
        assert "81920 MB  " in out
        warned = "warning: --live creates, uses and deletes in contoso and contoso-dr: sbpair-doctor-"
        assert f"Z {warned}" in err.splitlines()[0]
        code, out, _ = await finished(["doctor", "--live", "--yes", "--output", "json"], environ)
        live = json.loads(out)["live"]
        assert (code, len(live)) == (0, 13)
        assert all(each["assumed"] and each["observed"] for each in live)
        assert made(emulator) == set()
        queue = emulator.namespaces["contoso-dr"].create_queue("contoso/x-servicebus-transfer/3")
        queue.send([stored(), stored()])
        queue.messages.receive(1)
        code, out, _ = await finished(["doctor", "--live", "--yes", "--timeout", "20s"], environ)
        assert (code, out.splitlines()[-1]) == (3, "1 problem; 2 unknown")
        seen = " ".join(out.split())
        assert "receivers failed no other receiver contoso/x-servicebus-transfer/3: 1 locked" in seen
        assert "-> stop the syphon of the original library before others move the backlog" in seen


@pytest.mark.parametrize(("answer", "code"), [(b"yess\n", 4), (b"\xff\n", 4), (b"y\n", 0)])
async def test_on_a_terminal_it_asks_first(home: Path, answer: bytes, code: int) -> None:
    async with Emulator() as emulator:
        with PseudoTerminal() as terminal:
            streams = {"stdin": terminal.theirs, "stderr": terminal.theirs}
            process = await started(["doctor", "--live"], environment(emulator, home), **streams)
            terminal.hand_over()
            terminal.write(answer)
            out, _ = await process.communicate()
            shown = terminal.read()
        assert (process.returncode, bool(out)) == (code, code == 0)
        assert "Continue? [y/N]" in shown
        assert made(emulator) == set()


# The assumptions


@pytest.mark.slow
async def test_the_emulator_is_as_assumed_and_the_file_has_the_result(home: Path) -> None:
    async with Emulator() as emulator:
        words = ["doctor", "--assumptions", "--yes", "--write", str(home / "result.json")]
        code, out, _ = await finished(words, environment(emulator, home))
        assert made(emulator) == set()
    written = (home / "result.json").read_text()
    assert "SAS_KEY_VALUE" not in written + out
    found = json.loads(written)["assumptions"]
    unchecked = [(each["name"], each["reason"]) for each in found if each["result"] == "not_checked"]
    assert set(unchecked) == {
        ("idle_detach", "only with --include-idle-test, in 10 minutes"),
        ("unpartitioned", "only in a Premium namespace"),
    }
    last = f"{len(found) - len(unchecked)} confirmed, {len(unchecked)} could not be checked"
    assert (code, out.splitlines()[-1]) == (0, last)


async def test_a_namespace_that_is_away_leaves_its_assumptions_unchecked(home: Path) -> None:
    async with Emulator() as emulator:
        emulator.faults.namespace_down("contoso")
        environ = environment(emulator, home)
        del environ["SBPAIR_SECONDARY_CONNECTION_STRING"]
        words = ["doctor", "--assumptions", "--yes", "-o", "json", "--write", str(home / "result.json")]
        code, out, err = await finished(words, environ)
    document = json.loads(out)
    assert (code, document["tiers"]) == (6, {})
    assert {(each["result"], each["exit_code"]) for each in document["assumptions"]} == {("not_checked", 6)}
    assert {each["evidence"] for each in document["assumptions"]} == {"recorded", "documented", "tested", "inferred"}
    assert "the other namespace is checked" in err
    assert json.loads((home / "result.json").read_text()) == document


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ((), 4, "creates, uses and deletes in contoso and contoso-dr: sbpair-doctor-"),
        (("--yes", "--write", "/nowhere/result.json"), 7, "error: /nowhere/result.json cannot be written"),
    ],
)
async def test_without_a_yes_or_a_place_for_the_result_nothing_is_made(
    home: Path, more: tuple[str, ...], code: int, words: str
) -> None:
    async with Emulator() as emulator:
        ended, out, err = await finished(["doctor", "--assumptions", *more], environment(emulator, home))
        assert (ended, out, made(emulator)) == (code, "", set())
    assert words in err


async def test_ctrl_c_leaves_neither_queues_nor_a_file_of_assumptions(home: Path) -> None:
    async with Emulator() as emulator:
        words = ["doctor", "--assumptions", "--yes", "--write", str(home / "result.json")]
        process = await started(words, environment(emulator, home))
        assert process.stderr is not None
        async for line in process.stderr:
            if b"testing: live primary lock expires" in line:
                break
        assert made(emulator)
        process.send_signal(signal.SIGINT)
        await process.stderr.read()
        assert await process.wait() == 130
        assert (made(emulator), list(home.iterdir())) == (set(), [])


# The configuration


SECRET = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={KEY}"


def test_the_example_is_a_configuration_and_the_path_is_where_it_goes(here: Here) -> None:
    _, example, _ = here("config", "--example")
    _, path, _ = here("config", "--path")
    code, created, err = here("config", "--init")
    assert (code, created) == (0, path)
    assert "created: put your namespaces into it" in err
    file = Path(path.strip())
    assert file.read_text() == example
    code, out, _ = here("config", CONTOSO_DR=SECRET.replace("contoso", "contoso-dr"))
    assert code == 0
    assert "[pairs.orders.primary]" in out
    assert json.loads(here("config", "--path", "-o", "json")[1])["exists"] is True


def test_the_example_has_every_key_of_the_file(here: Here) -> None:
    _, example, _ = here("config", "--example")
    found = set(re.findall(r"^(?:# )?(\w+) = ", example, re.MULTILINE))
    assert found == {*PAIR_KEYS, *SIDE_KEYS, *RELAY_SIDE_KEYS}


@pytest.mark.parametrize("words", [["config"], ["runs", "list"], ["audit"], ["doctor"]])
def test_unknown_variables_are_reported_by_every_command(here: Here, home: Path, words: list[str]) -> None:
    given = {"SBPAIR_BACKLOG_QUEUES": "3", "SBPAIR_PRIMARY_NAMESPACES": "x", "SBPAIR_DR": "named by the file"}
    sides = ('primary]\nnamespace = "a b"', 'secondary]\nconnection_string_env = "SBPAIR_DR"')
    (home / "c.toml").write_text("\n".join(f"[pairs.a.{side}" for side in sides))
    _, out, err = here(*words, "--config", str(home / "c.toml"), **given)
    found = sorted(re.findall(r"(SBPAIR_\w+) is not a known variable, and has no effect", out + err))
    assert found == ["SBPAIR_BACKLOG_QUEUES", "SBPAIR_PRIMARY_NAMESPACES"]
    assert "did you mean SBPAIR_PRIMARY_NAMESPACE?" in out + err
