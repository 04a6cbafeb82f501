"""Clients that share no code with the product, each driven in a process of its own by requests in JSON lines.

A client is a script of drivers/ and its packages. `does` names what it can do: the ways of settling, and the rest of
ABILITIES. A script of Python runs with its packages before all others; one of Node.js with the folder's package.json.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration import python_packages
from tests.integration.node import install
from tests.kit.running import Running

HERE = Path(__file__).parent
ANSWER_SECONDS = 240
SETTLES = ("accept", "release", "modify", "defer", "reject")
ABILITIES = (*SETTLES, "sessions", "schedule", "dead-letters", "raw", "requests", "token", "transactions", "reconnect")
"""`raw`: receives messages of others; `requests`: to $management; `token`: signs in on $cbs."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    script: str
    does: frozenset[str]
    packages: tuple[str, ...] = ()

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment of its script. Raises NotHere."""
        script = str(HERE / "drivers" / self.script)
        if self.script.endswith(".mjs"):
            return [install.node(), script], {"MODULES": f"{install.modules(HERE / 'package.json')}/"}
        return [sys.executable, script], {"PYTHONPATH": str(python_packages.folder(*self.packages))}


def client(name: str, script: str, does: str, *packages: str) -> Client:
    abilities = frozenset(does.split())
    assert abilities <= set(ABILITIES)
    return Client(name, script, abilities, packages)


PLAIN_LINKS = " ".join((*SETTLES, "sessions", "schedule", "dead-letters", "raw", "requests"))
AZURE = ("azure-servicebus==7.15.0", "aiohttp>=3.14")
KOMBU = (*AZURE, "celery==5.7.0", "isodate", "kombu==5.7.0")
CLIENTS = (
    client("rhea", "rhea.mjs", f"{PLAIN_LINKS} token reconnect"),
    client("amqp10", "amqp10.mjs", f"{PLAIN_LINKS} token reconnect"),
    client("NestJS", "nest.mjs", "accept modify defer reject schedule reconnect"),
    client("Proton", "proton_blocking.py", f"{PLAIN_LINKS} token transactions", python_packages.PROTON),
    client("uamqp", "uamqp_clients.py", PLAIN_LINKS, "uamqp==1.6.11"),
    client(
        "azure-servicebus 7.8", "azure_servicebus.py",
        "accept modify defer reject sessions schedule dead-letters raw reconnect",
        "azure-servicebus==7.8.3",
    ),
    client("Kombu", "kombu_queues.py", "accept reconnect", *KOMBU),
    client("Celery", "celery_worker.py", "accept reconnect", *KOMBU),
    client(
        "FastStream", "faststream_broker.py", "accept modify defer reject schedule reconnect",
        *AZURE, "faststream-azure-servicebus==0.2.1",
    ),
    client("taskiq", "taskiq_broker.py", "accept schedule reconnect", *AZURE, "taskiq-service-bus==0.3.0"),
)  # fmt: skip


def address(running: Running) -> dict[str, str]:
    """Return an environment that names an emulator with TLS in every form that a client may need."""
    host, port = running.authority.split(":")
    ca_file = running.emulator.ready.ca_file or ""
    return {
        "HOST": host,
        "PORT": port,
        "KEY_NAME": running.rule.key_name,
        "KEY": running.rule.primary_key,
        "CONNECTION_STRING": running.connection_string,
        "CA_FILE": ca_file,
        "NODE_EXTRA_CA_CERTS": ca_file,
        "REQUESTS_CA_BUNDLE": ca_file,
    }


class Driver:
    """A running client: `driver("send", to="orders", body="x")` returns the result, or raises its error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, name: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self._process.stdin.flush()
        stop = threading.Timer(ANSWER_SECONDS, self._process.kill)
        stop.start()
        line = self._process.stdout.readline()
        stop.cancel()
        assert line, f"{name} was not answered"
        answer = json.loads(line)
        assert "error" not in answer, f"{name}: {answer['error']}"
        return answer["result"]


@contextmanager
def driven(client: Client, running: Running, *, signs_in: bool = True) -> Iterator[Driver]:
    """Start a client for an emulator with TLS. Raises NotHere."""
    command, own = client.command()
    known = {"PATH": os.environ["PATH"], **address(running), **own}
    if not signs_in:
        del known["KEY_NAME"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=known, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Driver(process)
        finally:
            process.kill()
