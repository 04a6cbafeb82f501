"""The images of the Containerfile, step by step, in root file systems and networks of their own. None is built."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from sbpair.emulator.declared_entities import load_config
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


def stages() -> dict[str, list[Step]]:
    """Read the Containerfile: one instruction on a line, or continued by a backslash. Each stage begins with FROM."""
    lines = (FILES / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [Step(*line.split(None, 1)) for line in lines if line.strip() and not line.startswith("#")]
    found: dict[str, list[Step]] = {}
    for each in steps:
        if each.name == "FROM":
            found[each.words[-1]] = []
        list(found.values())[-1].append(each)
    return found


def step(name: str, stage: str = "emulator") -> Step:
    """Return the step of that name, of the stage or of the one that it is built on."""
    first, *steps = stages()[stage]
    found = [each for each in steps if each.name == name]
    return found[0] if found else step(name, first.words[0])


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


def copy(root: Path, folder: str, words: list[str], place: Path) -> None:
    *sources, target = words
    into = root / Path(folder, target).as_posix().lstrip("/")
    into.mkdir(parents=True, exist_ok=True)
    for source in (place / each.lstrip("/") for each in sources):
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True, ignore=skipped)
        else:
            shutil.copy(source, into)


def build(place: Path, *, install: bool) -> None:
    """Follow the steps of each stage, in a folder of its name.

    Without `install`, this machine's packages stand for those of pip.
    """
    for stage, (first, *steps) in stages().items():
        root, base = place / stage, first.words[0]
        if (place / base).is_dir():
            shutil.copytree(place / base, root, symlinks=True)
        folder = "/"
        for each in steps:
            if each.name == "WORKDIR":
                folder = each.text
                (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif each.name == "COPY":
                origin = re.search(r"--from=(\S+)", each.text)
                copy(root, folder, each.words, place / origin[1] if origin else ROOT)
            elif each.name == "RUN":
                (execute if install else imitate)(root, folder, each.text)


def execute(root: Path, folder: str, commands: str) -> None:
    words = ("sh", "-c", f"cd {folder} && {commands}")
    done = subprocess.run(isolated(root, *words, network=True), env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def imitate(root: Path, folder: str, commands: str) -> None:
    """Write programs that start this machine's, in place of an installation."""
    assert "./source[metrics,otel]" in commands
    programs = root / folder.lstrip("/") / "venv/bin"
    programs.mkdir(parents=True)
    (root / "opt/state").mkdir()
    for name, words in {"sbpair": " -m sbpair", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable}{words} "$@"\n')
        (programs / name).chmod(0o755)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images")
    build(place, install=False)
    return place


@pytest.fixture(scope="module")
def image(images: Path) -> Path:
    return images / "emulator"


def as_read_only(**variables: str) -> dict[str, str]:
    """Return the environment of a container whose root file system is read-only, but for its volume."""
    own = dict(each.split("=", 1) for each in step("ENV").text.split() if not each.startswith("PATH="))
    return environment(**{**own, "WRITABLE": step("VOLUME").text, **variables})


def command_line(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line's image to its end, as its user."""
    entry = step("ENTRYPOINT", "sbpair").words
    return run_program(*isolated(root, *entry, *words, network=False, user=USER), env=as_read_only(**variables))


def entry_point(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point to its end, as the image's user."""
    env = as_read_only(**VENDORS, **variables)
    return run_program(*isolated(root, *step("ENTRYPOINT").words, *words, network=False, user=USER), env=env)


def exchanged(root: Path, **variables: str) -> list[str]:
    """Return the steps of a program for the vendor's emulator, whose emulator is the entry point."""
    user = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}"]
    program = (sys.executable, str(ROOT / "tests/emulator/vendor_program.py"), *user, *step("ENTRYPOINT").words)
    check = json.dumps(step("HEALTHCHECK").words)
    env = as_read_only(**VENDORS, **variables, BESIDE=check)
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
    assert (done.returncode, "--credits is 0, and must be at least 1" in done.stderr) == (2, True)


def test_the_health_check_fails_where_nothing_runs(image: Path) -> None:
    done = run_program(*isolated(image, *step("HEALTHCHECK").words, network=False, user=USER), env=as_read_only())
    assert done.returncode == 1


def test_the_command_line_keeps_its_state_in_the_volume_alone(images: Path) -> None:
    key = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    sides = {"SBPAIR_PRIMARY_NAME": "contoso", "SBPAIR_SECONDARY_NAME": "contoso-dr"}
    sides |= {"SBPAIR_PRIMARY_CONNECTION_STRING": key, "SBPAIR_SECONDARY_CONNECTION_STRING": key.replace(":1;", ":2;")}
    done = command_line(images / "sbpair", "syphon", "--once", **sides)
    assert (done.returncode, "error: " in done.stderr) == (6, True), done.stderr
    without = command_line(images / "sbpair", "syphon", "--once", **sides, XDG_STATE_HOME="/opt")
    assert without.returncode == 7, without.stderr


def test_definitions_of_services_fit_the_image() -> None:
    templates = ROOT / "sbpair/service/templates"
    for name in ("kubernetes-pod.yaml", "containerapp.yaml", "compose.yaml"):
        text = (templates / name).read_text()
        assert step("VOLUME").text in text
        assert {*re.findall(r"(?:runAsUser: |user: .)(\d+)", text)} <= {USER}
    program = Path(step("ENTRYPOINT", "sbpair").words[0])
    assert f'"{program.parent}/python"' in (templates / "compose.yaml").read_text()


def test_the_images_file_is_valid_and_its_user_is_not_root() -> None:
    config = load_config(FILES / "Config.json")
    assert [each.name for each in config.requested([], 5672)] == ["sbemulatorns"]
    assert (int(USER) > 0, step("STOPSIGNAL").text, step("EXPOSE").text) == (True, "SIGTERM", "5672 5300")


@pytest.mark.slow
def test_the_images_work_with_the_packages_that_pip_installs(tmp_path: Path) -> None:
    build(tmp_path, install=True)
    assert exchanged(tmp_path / "emulator") == STEPS
    assert not (tmp_path / "sbpair/opt/sbpair/source").exists()
    assert not (tmp_path / "sbpair/opt/sbpair/venv/bin/pip").exists()
    sides = {"SBPAIR_PRIMARY_NAMESPACE": "contoso", "SBPAIR_SECONDARY_NAMESPACE": "contoso-dr"}
    assert "Type=notify\n" in command_line(tmp_path / "sbpair", "service", "print", "systemd", **sides).stdout
    done = command_line(tmp_path / "sbpair", "drill")
    assert (done.returncode, "no message was lost, altered or duplicated" in done.stdout) == (0, True), done.stderr
