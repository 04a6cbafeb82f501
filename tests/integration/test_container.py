"""The image's Containerfile, step by step, in a root file system and a network of their own. No image is built."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from sbpair.emulator.config_file import load_config
from tests.kit.command import run_program

ROOT = Path(__file__).parents[2]
FILES = ROOT / ".container"
ISOLATED = Path(__file__).with_name("isolated.sh")
VENDORS = {"ACCEPT_EULA": "Y", "SQL_SERVER": "mssql", "MSSQL_SA_PASSWORD": "Secr3t!", "SQL_WAIT_INTERVAL": "0"}
"""The variables of the vendor's image."""
KEPT = f"{ROOT} {sys.prefix}"
"""Folders that stand for what pip installs, also where this checkout is below /tmp."""


class Step(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of a step in exec form or of a COPY, without options."""
        text = self.text
        if "[" in text:
            return json.loads(text[text.index("[") :])
        return [word for word in shlex.split(text) if not word.startswith("--")]


def steps() -> list[Step]:
    """Read the Containerfile: one instruction on a line, or continued by a backslash."""
    lines = (FILES / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    return [Step(*line.split(None, 1)) for line in lines if line.strip() and not line.startswith("#")]


def step(name: str) -> Step:
    [found] = [each for each in steps() if each.name == name]
    return found


USER = step("USER").text.partition(":")[0]


def isolated(root: Path, *words: str, network: bool, user: str = "") -> list[str]:
    """Return a command that runs in `root`; `user` is a number, and without root's rights."""
    become = ["unshare", "--user", f"--map-user={user}", f"--map-group={user}"] if user else []
    networks = [] if network else ["--net"]
    return ["unshare", "--map-root-user", "--mount", *networks, "sh", str(ISOLATED), str(root), *become, *words]


@pytest.fixture(scope="module", autouse=True)
def isolation(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("probe")
    if shutil.which("unshare") is None or run_program(*isolated(root, "true", network=False, user="1")).returncode:
        pytest.skip("this machine offers no namespaces to processes")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "PYTHON", "TMP"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "KEEP": KEPT, **more}


def copy(root: Path, folder: str, words: list[str]) -> None:
    *sources, target = words
    into = root / Path(folder, target).as_posix().lstrip("/")
    into.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, into)


def build(root: Path, *, install: bool) -> None:
    """Follow the steps up to the entry point. Without `install`, this machine's packages stand for those of pip."""
    folder = "/"
    for each in steps():
        if each.name == "WORKDIR":
            folder = each.text
            (root / folder.lstrip("/")).mkdir(parents=True)
        elif each.name == "COPY":
            copy(root, folder, each.words)
        elif each.name == "RUN" and install:
            shell = f"cd {folder} && {each.text}"
            done = subprocess.run(
                isolated(root, "sh", "-c", shell, network=True), env=environment(), capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr.decode()
        elif each.name == "RUN":
            programs = root / folder.lstrip("/") / "venv/bin"
            programs.mkdir(parents=True)
            for name, words in {"sbpair": " -m sbpair", "python": ""}.items():
                (programs / name).write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable}{words} "$@"\n')
                (programs / name).chmod(0o755)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image")
    build(root, install=False)
    return root


def entry_point(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point to its end, as the image's user."""
    env = environment(**VENDORS, **variables)
    return run_program(*isolated(root, *step("ENTRYPOINT").words, *words, network=False, user=USER), env=env)


def exchanged(root: Path, **variables: str) -> list[str]:
    """Return the steps of a program for the vendor's emulator, whose emulator is the entry point."""
    user = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}"]
    program = (sys.executable, str(ROOT / "tests/emulator/vendor_program.py"), *user, *step("ENTRYPOINT").words)
    check = json.dumps(step("HEALTHCHECK").words)
    env = environment(**VENDORS, **variables, BESIDE=check)
    done = run_program(*isolated(root, *program, network=False), env=env)
    assert VENDORS["MSSQL_SA_PASSWORD"] not in done.stdout + done.stderr
    return done.stdout.splitlines() or [done.stderr]


HEALTHY = '200 {"status":"healthy","message":"Service is healthy."}'
STEPS = ["True", HEALTHY, "['queue.1']", "True", "hello", "hello", "0", "0"]


def test_the_image_takes_the_place_of_the_vendors(image: Path) -> None:
    assert exchanged(image) == STEPS


def test_the_port_for_http_is_the_vendors_variable(image: Path) -> None:
    assert exchanged(image, EMULATOR_HTTP_PORT="8080") == STEPS


def test_a_mounted_file_replaces_the_images(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    mounted = root / "ServiceBus_Emulator/ConfigFiles/Config.json"
    queues = [{"Name": "queue.1"}, {"Name": "queue.2", "Properties": {"MaxDeliveryCount": 1000}}]
    mounted.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues}]}}))
    assert exchanged(root)[2] == "['queue.1', 'queue.2']"
    mounted.write_text('{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queue": []}]}}')
    done = entry_point(root)
    assert done.returncode == 2
    assert "error: Config.json: UserConfig.Namespaces[0].Queue: unknown property; expected Queues" in done.stderr
    mounted.unlink()
    assert "Config.json cannot be read: No such file or directory" in entry_point(root).stderr


def test_arguments_are_options_of_the_emulator(image: Path) -> None:
    done = entry_point(image, "--credits", "0")
    assert (done.returncode, "Invalid value for '--credits'" in done.stderr) == (2, True)


def test_the_health_check_fails_where_nothing_runs(image: Path) -> None:
    done = run_program(*isolated(image, *step("HEALTHCHECK").words, network=False, user=USER), env=environment())
    assert done.returncode == 1


def test_the_images_file_is_valid_and_its_user_is_not_root() -> None:
    config = load_config(FILES / "Config.json")
    assert [each.name for each in config.requested([], 5672)] == ["sbemulatorns"]
    assert (int(USER) > 0, step("STOPSIGNAL").text, step("EXPOSE").text) == (True, "SIGTERM", "5672 5300")


@pytest.mark.slow
def test_the_image_works_with_the_packages_that_pip_installs(tmp_path: Path) -> None:
    build(tmp_path, install=True)
    assert exchanged(tmp_path) == STEPS
    assert not (tmp_path / "opt/sbpair/source").exists()
