"""The printed unit under a real systemd, in namespaces of its own: starts, stops, kills, and keys that change."""

import asyncio
import os
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.config import load_pair
from sbpair.service.service_definition import ServiceDefinition, definition_text
from tests.cli.test_runs import BACKLOG, Pair, open_pair
from tests.kit.command import environment
from tests.kit.waiting import until
from tests.service.test_service_definition import IDENTITIES, KEYS

CHECKOUT = Path(__file__).parents[2]
TARGETS = ("test", "basic", "sysinit", "shutdown", "network-online")
NAME = "sbpair-syphon"
WATCH = f"""#!/bin/sh
export LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH=/opt/checkout:/opt/packages
exec /opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor} -m sbpair "$@"
"""

OWN = """
[Unit]
StartLimitIntervalSec=0
[Service]
RestartSec=1ms
RestartMaxDelaySec=100ms
StandardError=append:/run/test/err
ExecStopPost=+/bin/sh -c 'echo $EXIT_STATUS >>/run/test/ends'
"""


class Machine:
    """A booted systemd. `folder` is its /run/test."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder, self.process, self.pid = folder, process, 0

    def program(self, text: str) -> str:
        """Write a program, and return its path in the machine."""
        (self.folder / "program").write_text(text)
        (self.folder / "program").chmod(0o755)
        return "/run/test/program"

    async def run(self, *words: str, text: str = "") -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(self.pid), "--all", "--root", "--wd", *words),
            **dict.fromkeys(("stdin", "stdout"), asyncio.subprocess.PIPE),
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate(text.encode())
        return process.returncode or 0, out.decode()

    async def state(self) -> list[str]:
        names = "ActiveState,SubState,Result,ExecMainStatus"
        _, out = await self.run("systemctl", "show", "--property", names, NAME)
        found = dict(line.split("=", 1) for line in out.splitlines())
        return [found[name] for name in names.split(",")]

    async def until_state(self, *states: str) -> None:
        while (await self.state())[1] not in states:
            pass

    async def install(self, environ: dict[str, str], program: str) -> str:
        """Install the unit and its keys as the commands at its beginning do. Only the waits are shorter."""
        pair = load_pair(environ=environ, config=Path("/dev/null"))
        service = ServiceDefinition("systemd", pair, NAME, "sbpair:1.0", program, "", (), "the origin")
        unit = self.folder / f"units/{NAME}.service"
        unit.write_text(definition_text(service))
        unit.with_name(f"{NAME}.service.d").mkdir(exist_ok=True)
        (unit.with_name(f"{NAME}.service.d") / "own.conf").write_text(OWN)
        await self.write_keys(environ)
        await self.run("systemctl", "daemon-reload")
        return unit.read_text()

    async def write_keys(self, environ: dict[str, str]) -> None:
        lines = "".join(f"{name}={value}\n" for name, value in environ.items() if "CONNECTION_STRING" in name)
        file = f"/etc/sbpair/{NAME}.env"
        script = f"install -D -m 600 /dev/null {file}.new && cat >{file}.new && mv {file}.new {file}"
        code, out = await self.run("sh", "-c", script, text=lines)
        assert (code, out) == (0, "")


def child_of(pid: int, name: str) -> int:
    """Return the descendant of that name."""
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        if found := child if Path(f"/proc/{child}/comm").read_text().strip() == name else child_of(child, name):
            return found
    return 0


@asynccontextmanager
async def booted(folder: Path) -> AsyncIterator[Machine]:
    if sys.platform != "linux" or os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("systemd is booted in namespaces of Linux, by root")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("systemd is not installed: apt-get install systemd")
    folder.chmod(0o755)
    (folder / "units").mkdir()
    for each in TARGETS:
        (folder / f"units/{each}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    with (folder / "units/test.target").open("a") as target:
        target.write("Wants=ready.service\n")
    (folder / "units/ready.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/touch /run/test/ready\n")
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "sh", str(Path(__file__).with_name("booted.sh")), str(folder)),
        *(f"checkout={CHECKOUT}", f"python={sys.base_prefix}", f"packages={sysconfig.get_path('purelib')}"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    machine, ended = Machine(folder, process), asyncio.create_task(process.communicate())
    try:
        await until(lambda: (folder / "ready").exists() or ended.done())
        if ended.done():
            pytest.skip(f"this machine cannot boot systemd in namespaces: {ended.result()[1].decode()}")
        machine.pid = child_of(process.pid, "systemd")
        yield machine
    finally:
        if machine.pid:
            await machine.run("systemctl", "--force", "--force", "poweroff")
        await ended


def variables_of(pair: Pair) -> dict[str, str]:
    return {name: value for name, value in environment(pair.emulator).items() if name.startswith("SBPAIR_")}


async def test_a_unit_starts_outlives_a_kill_takes_new_keys_and_stops(tmp_path: Path) -> None:
    def ends() -> list[str]:
        return (tmp_path / "ends").read_text().split()

    async with booted(tmp_path) as machine, open_pair(tmp_path / "unused") as pair:
        await pair.strand(1)
        backlog = pair.emulator.namespaces["contoso-dr"].queue(BACKLOG)
        await machine.install(variables_of(pair), machine.program(WATCH))
        assert await machine.run("systemctl", "start", NAME) == (0, ""), (tmp_path / "err").read_text()
        await until(lambda: pair.arrived == 1 and backlog.counts().active == 0)
        assert (await machine.state())[:2] == ["active", "running"]
        code, out = await machine.run("systemctl", "reload", NAME)
        assert (code, "Job type reload is not applicable" in out) == (3, True)

        await machine.run("systemctl", "kill", "--signal", "KILL", NAME)
        await until((tmp_path / "ends").exists)  # or the dead link may get the message
        await pair.strand_more()
        await until(lambda: pair.arrived == 2)

        for space in pair.emulator.namespaces.values():
            rule = AuthorizationRule("RootManageSharedAccessKey", "key", "bmV3", frozenset(AccessRight))
            space.keys = (rule,)
        assert (await machine.run("systemctl", "restart", NAME))[0] == 1
        await until(lambda: ends().count("5") > 2)
        await machine.write_keys(variables_of(pair))
        await pair.strand_more()
        await until(lambda: pair.arrived == 3)
        await machine.until_state("running")

        assert await machine.run("systemctl", "stop", NAME) == (0, "")
        assert [each for each in ends() if each != "5"] == ["KILL", "0", "0"]
        assert await machine.state() == ["inactive", "dead", "success", "0"]
        _, out = await machine.run("sh", "-c", "ls -ld /var/lib/private/sbpair /etc/sbpair/*")
        assert [line.split()[0] for line in out.splitlines()] == ["-rw-------", "drwx------"]
        assert "SharedAccessKey=" not in (tmp_path / "err").read_text()


async def test_an_exit_code_decides_whether_systemd_restarts(tmp_path: Path) -> None:
    async with booted(tmp_path) as machine:
        for environ, code, state in [
            (KEYS, 5, "auto-restart"),
            (KEYS, 1, "auto-restart"),
            (KEYS, 4, "failed"),
            (KEYS, 2, "failed"),
            (KEYS, 3, "dead"),
            (IDENTITIES, 5, "failed"),
            (IDENTITIES, 6, "auto-restart"),
        ]:
            program = machine.program(f"#!/bin/sh\nsystemd-notify --ready\nexit {code}\n")
            await machine.install(environ, program)
            unit = tmp_path / f"units/{NAME}.service.d/own.conf"
            unit.write_text("[Service]\nRestartSec=1h\nRestartMaxDelaySec=2h\nNotifyAccess=all\n")
            await machine.run("systemctl", "daemon-reload")
            await machine.run("systemctl", "start", NAME)
            await machine.until_state("auto-restart", "failed", "dead")
            assert (code, (await machine.state())[1]) == (code, state), environ
            await machine.run("systemctl", "stop", NAME)
            await machine.run("systemctl", "reset-failed", NAME)
