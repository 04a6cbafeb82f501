"""The wheel in an empty environment, as a user installs it: the README's commands, the files, what it prints."""

import json
import subprocess
import zipfile
from pathlib import Path

from sbpair import __version__
from sbpair.cli.commands.documents import SCRIPTS
from sbpair.cli.man_page import page_paths
from sbpair.model.installation import commit_of
from tests.packaging.builds import ROOT, build
from tests.packaging.first_minute import emulator, environment, first_minute, timed


def test_the_first_minute_of_the_readme_works_from_the_wheel(tmp_path: Path) -> None:
    """One test, since a second one would install everything again."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / ".venv/bin/sbpair"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
        )

    def sbpair(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    outputs = {
        step.command.partition(" ")[2]: step.output for step in first_minute(build(ROOT, tmp_path).wheel, tmp_path)
    }
    assert "orders" in outputs["audit"]
    assert [int(line.split()[0]) for line in outputs["receive orders"].splitlines()[1:]] == list(range(1, 11))

    document = json.loads(sbpair("--version", "--output", "json"))
    commit = commit_of(ROOT)
    assert (document["version"], document["commit"], document["compiled"]) == (__version__, commit and commit.id, False)
    assert {"aiohttp", "azure-servicebus", "typer"} <= document["dependencies"].keys()
    assert None not in document["dependencies"].values()

    share = tmp_path / ".venv/share"
    assert sbpair("man", "syphon") == (share / "man/man1/sbpair-syphon.1").read_text()
    scripts = {shell: (ROOT / "completions" / name).read_text() for shell, name in SCRIPTS.items()}
    assert {shell: sbpair("completions", shell) for shell in SCRIPTS} == scripts
    assert (share / "bash-completion/completions/sbpair").read_text() == scripts["bash"]

    sbpair("replay", "package", "sbpair.zip")
    with zipfile.ZipFile(tmp_path / "sbpair.zip") as package:
        assert {"sbpair/__init__.py", "pyspark_sbpair.py"} <= {*package.namelist()}

    # The core alone: the help of every command, the views of a run, and each extra that lacks.
    sbpair("man", "--directory", "pages")
    assert len([*(tmp_path / "pages").rglob("*.1")]) == len([*page_paths()])
    with emulator(tmp_path) as exports:
        run_of = "$(sbpair runs list -o json | grep -om1 '[0-9]*-[0-9]*-[0-9a-z]\\{4\\}')"
        views = (f"runs show {run_of}", f"runs report {run_of} --html run.html", "status", "doctor", "syphon --dry-run")
        for each in ("provision --count 1", "syphon --once --count 1", *views):
            timed(f"sbpair {each}", tmp_path, exports)
        for each, extra in (("syphon --watch --metrics-port 0", "metrics"), ("gateway --metrics-port 0", "metrics")):
            refused = timed(f"sbpair {each} 2>&1 || echo $?", tmp_path, exports)
            assert refused.output.splitlines()[-2:] == [f"hint: pip install 'sbpair[{extra}]'", "7"]
    # Without the extra "spark", and perhaps without Java.
    for words in (["run"], ["resume", "261122"]):
        assert run("replay", *words, "--archive", "archive").returncode == 7
    done = run("replay", "run", "--archive", "archive", "--remote", "sc://127.0.0.1:1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (7, "hint: pip install 'sbpair[spark]'")
