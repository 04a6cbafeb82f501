"""Help texts and completion scripts against golden files.

`python tests/cli/test_golden.py` writes them again, and the published schemas of `test_schemas.py`.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from sbpair.cli.app import COMMANDS, COMPLETION_VARIABLE, PROGRAM, find_command, load
from sbpair.cli.commands.documents import SCRIPTS
from sbpair.cli.man_page import page_name, page_paths
from tests.kit import command

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
HELPS = {page_name(path): path for path in page_paths()}
MAX_LINES, COLUMNS = 66, 80


SETTINGS = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}


def sbpair(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command.run(*arguments, env={**os.environ, **SETTINGS, **environ})


def help_text(name: str) -> str:
    done = sbpair(*HELPS[name], "--help")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def completion_script(shell: str) -> str:
    from typer.completion import get_completion_script

    script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell).strip()
    if shell == "zsh":
        # Zsh loads the file when it is first asked, and expects an answer then.
        script += '\n\n[[ $funcstack[1] == _sbpair ]] && _sbpair_completion "$@"'
    if shell == "powershell":
        # What the Tab key does everywhere else is the user's own choice.
        script = script.removeprefix(
            "Import-Module PSReadLine\nSet-PSReadLineKeyHandler -Chord Tab -Function MenuComplete\n"
        )
    return f"{script}\n"


@pytest.mark.parametrize("name", HELPS)
def test_a_help_text_is_as_it_was_last_agreed(name: str, here: command.Here) -> None:
    expected = (GOLDEN / f"{name}.txt").read_text()
    assert here(*HELPS[name], "--help", **SETTINGS) == (0, expected, ""), (
        "if it should change: python tests/cli/test_golden.py"
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [(["replay", "run", "--help"], "sbpair-replay-run"), (["syphon", "-h"], "sbpair-syphon"), ([], "sbpair")],
)
def test_a_process_prints_the_same_help(words: list[str], name: str) -> None:
    assert sbpair(*words).stdout == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", HELPS)
def test_help_fits_on_one_screen_with_examples(name: str) -> None:
    lines = (GOLDEN / f"{name}.txt").read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= COLUMNS
    examples = [line for line in lines if line.startswith("  sbpair ") or "| sbpair " in line]
    assert len(examples) >= 2 or name == "sbpair"


@pytest.mark.parametrize("width", [40, 60])
def test_help_fits_narrow_terminals(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for path in filter(find_command, page_paths()):
        found = find_command(path)
        text = found.get_help(found.context_class(found, info_name=" ".join(["sbpair", *path])))
        # A command that is to be pasted stays on one line.
        assert [line for line in text.splitlines() if len(line) > width and "sbpair " not in line] == []


@pytest.mark.parametrize("name", HELPS)
def test_options_follow_one_convention(name: str) -> None:
    text = (GOLDEN / f"{name}.txt").read_text()
    flat = " ".join(text.split())
    assert "-h, --help" in text
    # The number of backlog queues, or in commands without it that of messages.
    number = ["count"] if "Number of backlog queues" in flat else ["max"] if "--max N" in text else []
    assert re.findall(r" -n, --(\w+) N", text) == number
    assert text.count(" -n, ") == len(number)
    # A default has one form, and no prose of its own.
    assert not re.search(r"\([0-9]+\)|by itself|\(default|defaults to", flat)
    named = "[env: SBPAIR_PRIMARY_NAMESPACE, …]"
    assert ("--primary NAMESPACE" in text) == (named in flat)
    assert ("--secondary NAMESPACE" in text) == ("[env: SBPAIR_SECONDARY_…, the same]" in flat)


@pytest.mark.parametrize("name", HELPS)
def test_required_options_are_in_the_usage_and_marked(name: str) -> None:
    command = find_command(HELPS[name])
    required = [param for param in getattr(command, "params", ()) if param.required and param.opts[0].startswith("--")]
    text = (GOLDEN / f"{name}.txt").read_text()
    assert text.count("[required]") == len(required)
    assert all(f" {param.opts[0]} {param.metavar} " in text.splitlines()[0] for param in required)


def test_each_command_has_a_golden_file_and_there_is_no_other() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == HELPS.keys()


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_completion_script_is_not_stale_and_is_printed(shell: str, here: command.Here) -> None:
    shipped = (ROOT / "completions" / SCRIPTS[shell]).read_text()
    assert shipped == completion_script(shell), "stale: python tests/cli/test_golden.py"
    assert here("completions", shell) == (0, shipped, "")


def test_the_list_of_commands_has_the_first_help_line_of_each() -> None:
    for name, summary in COMMANDS.items():
        assert load(name).help.splitlines()[0] == summary


def regenerate() -> None:
    """Write every golden file, every completion script, and what command lines print."""
    for name in HELPS:
        (GOLDEN / f"{name}.txt").write_text(help_text(name))
    for shell, file in SCRIPTS.items():
        (ROOT / "completions" / file).write_text(completion_script(shell))
    from sbpair.cli.schemas import all_schemas
    from tests.cli import test_declared_refusals, test_refusals, test_sessions, test_stories
    from tests.cli.test_schemas import PUBLISHED, published

    PUBLISHED.write_text(published(all_schemas()))
    test_declared_refusals.regenerate()
    test_refusals.regenerate()
    test_sessions.regenerate()
    test_stories.regenerate()


if __name__ == "__main__":
    regenerate()
