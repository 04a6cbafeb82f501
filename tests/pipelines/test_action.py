"""The scripts of the action, as a pipeline runs them: exit codes, summary, outputs, and values that attack them."""

import asyncio
import html
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.backlog import queue_path
from tests.kit.command import environment, finished, run_program
from tests.kit.running import NAMESPACE, Running
from tests.kit.stranded import numbered, put

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "sbpair"
RUN = [sys.executable, str(ACTION / "run.py")]


class Pipeline:
    """A step's files, and a pair in its environment."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.summary_file, self.output_file, self._folder = folder / "summary.md", folder / "output", folder
        self.environ = environment(
            running.emulator, "GITHUB_", PYTHONPATH=str(ROOT), XDG_STATE_HOME=str(folder / "state")
        )
        self.environ |= {"GITHUB_STEP_SUMMARY": str(self.summary_file), "GITHUB_OUTPUT": str(self.output_file)}

    def run(self, command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_program(*RUN, env={**self.environ, "INPUT_COMMAND": command, **more}, cwd=self._folder)

    @property
    def summary(self) -> str:
        return self.summary_file.read_text()

    @property
    def outputs(self) -> str:
        return self.output_file.read_text()


@pytest.fixture(scope="module")
def pair() -> Iterator[Running]:
    with Running() as running:
        running.do(lambda: running.namespace.create_queue("orders"))
        for path in (queue_path(NAMESPACE, 0), queue_path(NAMESPACE, 1)):
            running.do(lambda each=path: running.other.create_queue(each))
        yield running


@pytest.fixture
def pipeline(pair: Running, tmp_path: Path) -> Pipeline:
    return Pipeline(pair, tmp_path)


def test_a_move_puts_its_receipt_and_its_report_into_the_summary(pair: Running, pipeline: Pipeline) -> None:
    for number in range(3):
        pair.do(lambda each=number: put(pair.other.entity(queue_path(NAMESPACE, 0)), numbered(each, "orders")))
    done = pipeline.run("syphon --once --count 2")
    assert done.returncode == 0, done.stderr
    assert "received           3" in done.stdout
    assert "✅ sbpair ended with exit code 0\n\n<pre>\n$ sbpair syphon --once --count 2\n" in pipeline.summary
    assert "\n# `sbpair syphon --once`: done\n" in pipeline.summary
    assert re.fullmatch(r"exit-code=0\nrun=\d{6}-\d{6}-\w{4}\n", pipeline.outputs)
    runs = {pipeline.outputs}
    for output in ("--output json", "--output jsonl", "--output tsv", "--query sent"):
        pipeline.output_file.unlink()
        assert pipeline.run(f"syphon --once --count 2 {output}").returncode == 0
        assert re.fullmatch(r"exit-code=0\nrun=\d{6}-\d{6}-\w{4}\n", pipeline.outputs)
        runs.add(pipeline.outputs)
    assert pipeline.summary.count("\n# `sbpair syphon --once`: done\n") == len(runs) == 5


def test_findings_fail_the_step(pipeline: Pipeline) -> None:
    failed = pipeline.run("audit --count 3 --fail-on missing")
    assert failed.returncode == 3
    assert "❌ sbpair ended with exit code 3" in pipeline.summary
    assert pipeline.outputs == "exit-code=3\nrun=\n"


def test_an_accepted_exit_code_does_not_fail_the_step(pipeline: Pipeline) -> None:
    assert pipeline.run("no-such-command", INPUT_ACCEPT_EXIT_CODES="6, 2").returncode == 0
    assert pipeline.outputs == "exit-code=2\nrun=\n"
    assert pipeline.summary.startswith("### ✅ sbpair ended with exit code 2, which is accepted\n")
    assert "$ sbpair no-such-command\nerror: No such command 'no-such-command'\nhint: " in pipeline.summary


def test_an_error_as_json_gives_its_reason_in_the_summary(pipeline: Pipeline) -> None:
    assert pipeline.run("no-such-command --log-format json").returncode == 2
    assert "json\nerror: No such command 'no-such-command'\nhint: see sbpair --help\n</pre>" in pipeline.summary


def test_an_unreachable_namespace_fails_the_step_with_its_code(pipeline: Pipeline) -> None:
    nobody = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=bm8=;UseDevelopmentEmulator=true"
    done = pipeline.run("ping orders", SBPAIR_PRIMARY_CONNECTION_STRING=nobody)
    assert done.returncode == 6
    assert "bm8=" not in done.stdout + done.stderr + pipeline.summary


@pytest.mark.parametrize(
    ("command", "codes", "error"),
    [
        ("", "", "command is empty"),
        ("  ", "", "command is empty"),
        ("audit 'unclosed", "", "No closing quotation"),
        ("sbpair audit", "", "command begins with the name of the program"),
        ("version", "3,findings", "accept-exit-codes: expected numbers such as 3, got 'findings'"),
    ],
)
def test_a_wrong_input_is_refused_and_named(command: str, codes: str, error: str, pipeline: Pipeline) -> None:
    done = pipeline.run(command, INPUT_ACCEPT_EXIT_CODES=codes)
    assert (done.returncode, done.stdout) == (2, "")
    first, hint = done.stderr.splitlines()
    assert (first, hint[:6]) == (f"error: {error}", "hint: ")
    assert pipeline.summary == f"### ❌ sbpair was not started\n\n<pre>\n{done.stderr}</pre>\n\n"


def test_no_shell_reads_a_command(pipeline: Pipeline, tmp_path: Path) -> None:
    assert pipeline.run("version; touch caught $(touch caught) `touch caught` > caught").returncode == 2
    assert not (tmp_path / "caught").exists()


def test_no_module_of_the_working_directory_is_imported(pipeline: Pipeline, tmp_path: Path) -> None:
    for name in ("sbpair", "typer", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('caught')")
    assert pipeline.run("version").returncode == 0


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("run 261122-101500-ab12 done after 3 s", True),
        ("run 261122-101500-ab12", True),
        ('  "run": "261122-101500-ab12",', True),
        ("run 261122-101500-ab12x", False),
        ("a run 261122-101500-ab12", False),
    ],
)
def test_the_receipts_of_moves_and_replays_name_their_run(line: str, named: bool) -> None:
    found = runpy.run_path(str(ACTION / "run.py"))["RUN_LINE"].match(line)
    assert (found and found[1]) == ("261122-101500-ab12" if named else None)


def test_texts_of_a_namespace_command_no_agent_and_format_no_summary(pipeline: Pipeline) -> None:
    """A command's output is whatever messages and names hold: here, an argument that an error repeats."""
    hostile = "</pre><img src=x>##vso[task.setvariable variable=PATH]x"
    done = pipeline.run(f"help '{hostile}'", GITHUB_ACTIONS="true")
    assert done.returncode == 2
    assert "##vso[" not in done.stdout + done.stderr
    assert "##-vso[" in done.stderr
    stop, token = done.stdout.splitlines()[0].rsplit("::", 1)
    assert (stop, done.stdout.splitlines()[-1]) == ("::stop-commands", f"::{token}::")
    assert len(token) == 32
    assert pipeline.summary.count("</pre>") == 1
    assert html.escape(hostile, quote=False) in pipeline.summary


async def test_a_cancelled_step_stops_its_command_in_order(pipeline: Pipeline) -> None:
    process = await asyncio.create_subprocess_exec(
        *RUN,
        env={**pipeline.environ, "INPUT_COMMAND": "syphon --watch --count 2"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if b"moving 2 backlog queues" in line:
            break
    process.send_signal(signal.SIGTERM)
    assert (await finished(process))[0] == 0
    assert "received           0" in pipeline.summary


@pytest.mark.parametrize(
    ("variable", "value"),
    [("INPUT_EXTRAS", "relay]; touch caught"), ("INPUT_VERSION", "1 --index-url http://127.0.0.1")],
)
def test_an_install_that_names_no_version_or_extra_is_refused(variable: str, value: str, tmp_path: Path) -> None:
    done = run_program(ACTION / "install.sh", tmp_path / "venv", env={"PATH": "/usr/bin:/bin", variable: value})
    assert (done.returncode, done.stderr[:7]) == (2, "error: ")
    assert list(tmp_path.iterdir()) == []


def test_an_install_takes_the_source_and_puts_the_program_on_the_path(tmp_path: Path) -> None:
    """Python is a script here that notes its arguments and makes no environment."""
    calls, python = tmp_path / "calls", tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n'
        f'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp {python} "$3/bin/python"; fi\n'
    )
    python.chmod(0o755)
    target, path_file = tmp_path / "venv", tmp_path / "path"
    environ = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "GITHUB_PATH": str(path_file)}
    for more, requirement in (
        ({"INPUT_EXTRAS": "relay,spark"}, f"{ROOT}[relay,spark]"),
        ({"INPUT_VERSION": "0.1.0", "INPUT_EXTRAS": "relay"}, "sbpair[relay]==0.1.0"),
    ):
        done = run_program(ACTION / "install.sh", target, env={**environ, **more})
        assert done.returncode == 0, done.stderr
        assert calls.read_text().splitlines()[-1].endswith(f" {requirement}")
    assert (target / "path" / "sbpair").readlink() == target / "bin" / "sbpair"
    assert path_file.read_text().splitlines()[-1] == str(target / "path")
