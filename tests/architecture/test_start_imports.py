"""The modules that short commands load: each foreign package that they do without costs time at every start."""

import re
import subprocess
import sys

import pytest

from sbpair.testing import Emulator
from tests.kit.command import environment, finished, run_program, start
from tests.kit.waiting import PATIENCE_SECONDS

MANAGEMENT_SDK = {"azure.mgmt", "azure.servicebus.management"}
HEAVY = {*MANAGEMENT_SDK, "aiohttp", "azure", "cryptography", "jinja2", "lark", "opentelemetry", "pandas", "pyarrow"}
HEAVY |= {"pydantic", "pyspark", "prometheus_client", "requests", "rich", "websockets"}
CLIENT = {"sbpair.amqp_client", "sbpair.azure.atom"}
COMMANDS = {"asyncio", "logging", "sbpair.amqp", "sbpair.azure", "sbpair.emulator"}
"""What the module of any command may load."""

TRACE = ("-X", "importtime")
IMPORTED = re.compile(r"^import time: .*\| +(\S+)$", re.MULTILINE)


def loaded(trace: str) -> set[str]:
    """Return the modules of Python's trace of imports, and the packages that contain them."""
    names = [name.split(".") for name in IMPORTED.findall(trace)]
    return {".".join(parts[:length]) for parts in names for length in range(1, len(parts) + 1)}


async def trace_of(*words: str) -> set[str]:
    """Return what a command loads, against an emulated pair with two empty backlog queues."""
    async with Emulator() as emulator:
        emulator.namespaces["contoso"].create_queue("orders")
        env = environment(emulator)
        for given in (("provision", "--count", "2"), words):
            process = await start(*given, env=env, python=TRACE)
            code, _, trace = await finished(process)
            assert code == 0, trace
    return loaded(trace)


@pytest.mark.parametrize(
    "command",
    [
        "syphon --once --count 2",
        "syphon --once --count 2 --output json --log-format json",
        "status orders --count 2",
        "audit --count 2",
        "provision --dry-run --count 3",
        "deadletters list --count 2",
    ],
)
async def test_commands_that_read_load_no_sdk_and_no_web_framework(command: str) -> None:
    modules = await trace_of(*command.split())
    assert modules & HEAVY == set()
    assert "sbpair.azure.atom" in modules


async def test_what_creates_queues_loads_the_management_sdk_alone() -> None:
    modules = await trace_of("provision", "--count", "3")
    assert modules & MANAGEMENT_SDK == {"azure.servicebus.management"}
    assert modules.isdisjoint({"pyspark", "pandas", "rich"})


@pytest.mark.parametrize(
    ("command", "more"),
    [("--help", COMMANDS), ("--version", COMMANDS), ("syphon --help", set()), ("schema syphon", set())],
)
def test_help_loads_no_client_at_all(command: str, more: set[str]) -> None:
    done = run_program(sys.executable, *TRACE, "-m", "sbpair", *command.split(), env=environment(None))
    assert done.returncode == 0
    assert loaded(done.stderr) & (HEAVY | CLIENT | more) == set()


def test_an_emulator_loads_its_web_framework_with_the_first_request() -> None:
    command = [sys.executable, *TRACE, "-m", "sbpair", "emulator", "--quiet", "--namespace", "contoso=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "contoso" in process.stdout.readline()
        process.terminate()
        _, trace = process.communicate(timeout=PATIENCE_SECONDS)
    modules = loaded(trace)
    assert "sbpair.emulator.server" in modules
    assert modules & (HEAVY | CLIENT) == set()
