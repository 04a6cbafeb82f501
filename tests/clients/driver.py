"""Clients that share no code with the product, each driven in a process of its own by requests in JSON lines.

A client is a program of drivers/ and its packages: a script of Python, which runs with its packages before all others,
one of Node.js with the folder's package.json, or a folder with the manifest of a compiled language. `does` names what
it can do, of BEHAVIOURS. The table of clients in the emulator's README is written from it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration import python_packages
from tests.integration.node import install
from tests.kit.running import Running

HERE = Path(__file__).parent
ANSWER_SECONDS = 240
BUILD_SECONDS = 1200
TRANSPORTS = ("tcp", "tls", "websocket")
"""A WebSocket may be plain or over TLS."""
SETTLES = ("accept", "release", "modify", "defer", "reject")
BEHAVIOURS = {
    "connects over": TRANSPORTS,
    "settles by; settles and closes at once": (*SETTLES, "settle-then-close"),
    "receives sessions by id, in any case; sets and clears their state": ("sessions", "session-case", "session-state"),
    "sends for a later time; receives dead letters": ("schedule", "dead-letters"),
    "reads properties of every type, and annotations that had string keys": ("raw", "string-keys"),
    "sees the entity's time to live, and the partition; browses, and messages stay": (
        "default-ttl", "partition-annotations", "browse",
    ),
    "carries messages of many frames, and of the largest size": ("large", "nearly-full"),
    "signs in on `$cbs`; asks `$management`, and attaches there before its token": (
        "token", "requests", "management-before-claim",
    ),
    "has transactions that exchange, settle, send via a subscription, and give back": (
        "transactions", "settle-in-transaction", "via-subscription", "rollback-redelivers",
    ),
    "creates, lists and deletes entities, and misses one; reads the types in rules": ("administration", "rules"),
    "goes on after a restart": ("reconnect",),
}  # fmt: skip
"""The rows of the table of clients, and the abilities that each has."""
ABILITIES = {ability for abilities in BEHAVIOURS.values() for ability in abilities}


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    program: str
    does: frozenset[str]
    packages: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    """For abilities that it lacks by a fault of its own, the fault in a few words."""

    @property
    def is_quick(self) -> bool:
        """Whether its tests are not slow ones: it has the packages that other tests have."""
        return self.name in QUICK

    @property
    def transports(self) -> tuple[str, ...]:
        """What it connects over: the first is what it does most of its tests with."""
        return tuple(transport for transport in TRANSPORTS if transport in self.does)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command of its program, and variables for it. Raises NotHere."""
        program = HERE / "drivers" / self.program
        if program.suffix == ".mjs":
            manifest = install.WANTED if self.is_quick else HERE / "package.json"
            return [install.node(), str(program)], {"MODULES": f"{install.modules(manifest)}/"}
        if self.is_quick:
            return [sys.executable, str(program)], {}
        if program.suffix == ".py":
            return [sys.executable, str(program)], {"PYTHONPATH": str(python_packages.folder(*self.packages))}
        name, *arguments = self.program.split()
        return [*compiled(HERE / "drivers" / name), *arguments], {}


class Build(NamedTuple):
    """How a compiled language fetches its pinned packages, builds into the folder `{to}`, and runs from it."""

    fetch: str
    build: str
    run: str


BUILDS = {
    "go.mod": Build("go mod download", "go build -o {to}/driver .", "{to}/driver"),
    "Cargo.toml": Build(
        "cargo fetch --locked",
        "cargo install --quiet --locked --offline --debug --path . --root {to} --target-dir {cache}/cargo",
        "{to}/bin/driver",
    ),
    "client.cpp": Build(
        "g++ -fsyntax-only -include proton/container.hpp -include nlohmann/json.hpp -x c++ /dev/null",
        "g++ -std=c++20 -O1 client.cpp -o {to}/driver -lqpid-proton-cpp -pthread",
        "{to}/driver",
    ),
    "pom.xml": Build(
        "mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory={to}",
        "javac -cp {to}/* -d {to} Azure.java Jms.java Lines.java Spring.java",
        "java -XX:TieredStopAtLevel=1 -cp {to}:{to}/*",
    ),
}
"""By the manifest of a program's folder; the packages of C++ are those of the system."""


def compiled(source: Path) -> list[str]:
    """Return the command of a program, which the first process that asks has built elsewhere. Raises NotHere."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    [build] = (BUILDS[path.name] for path in files if path.name in BUILDS)
    digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:12]
    place = install.kept(f"{source.name}-{digest}", partial(_build, source, build))
    return [word.format(to=place) for word in build.run.split()]


def _build(source: Path, build: Build, to: Path) -> None:
    fetch, make = ([word.format(to=to, cache=install.CACHE) for word in each.split()] for each in build[:2])
    for tool in (fetch[0], make[0]):
        if shutil.which(tool) is None:
            raise install.NotHere(f"there is no {tool} here to build a client with")
    fetched = subprocess.run(fetch, cwd=source, capture_output=True, check=False, timeout=BUILD_SECONDS)
    if fetched.returncode:
        raise install.NotHere(f"the packages of a client cannot be had: `{build.fetch}` failed")
    built = subprocess.run(make, cwd=source, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)
    assert built.returncode == 0, built.stdout + built.stderr


def client(name: str, program: str, does: str, *packages: str, **faults: str) -> Client:
    abilities = frozenset(does.split())
    assert abilities <= ABILITIES
    return Client(name, program, abilities, packages, {key.replace("_", "-"): words for key, words in faults.items()})


QUEUES = "accept large reconnect"
READS = "sessions session-case schedule dead-letters raw string-keys large nearly-full"
PLAIN_LINKS = " ".join((*SETTLES, READS, "requests"))
EVERY_WAY = " ".join(TRANSPORTS)
SEES = "default-ttl partition-annotations browse"
AZURE = ("azure-servicebus==7.15.0", "aiohttp>=3.14")
KOMBU = (*AZURE, "celery==5.7.0", "isodate", "kombu==5.7.0")
QUICK = ("azure-servicebus 7.15", "@azure/service-bus")
OFFICIAL = f"{EVERY_WAY} {QUEUES} {READS} modify defer reject {SEES} session-state administration"
CLIENTS = (
    client(QUICK[0], "azure_servicebus.py", f"{OFFICIAL} rules"),
    client(QUICK[1], "azure_servicebus.mjs", OFFICIAL),
    client(
        "rhea", "rhea.mjs",
        f"{EVERY_WAY} {PLAIN_LINKS} {SEES} token management-before-claim settle-then-close reconnect",
    ),
    client("amqp10", "amqp10.mjs", f"tcp {PLAIN_LINKS} token reconnect"),
    client("NestJS", "nest.mjs", f"tcp {QUEUES} modify defer reject schedule"),
    client(
        "Proton", "proton_blocking.py",
        f"tcp tls {PLAIN_LINKS} {SEES} token management-before-claim settle-then-close transactions "
        "settle-in-transaction rollback-redelivers",
        python_packages.PROTON,
    ),
    client(
        "Proton C++", "proton_cpp", f"tcp tls accept release modify {READS} {SEES} settle-then-close",
        reject="it gives no reason",
    ),
    client("uamqp", "uamqp_clients.py", f"tls {PLAIN_LINKS}", "uamqp==1.6.11"),
    client(
        "azure-servicebus 7.8", "azure_servicebus.py",
        f"tls {QUEUES} {READS} modify defer reject {SEES} session-state",
        "azure-servicebus==7.8.3",
    ),
    client("Kombu", "kombu_queues.py", f"tcp {QUEUES}", *KOMBU),
    client("Celery", "celery_worker.py", f"tcp {QUEUES}", *KOMBU),
    client(
        "FastStream", "faststream_broker.py", f"tcp {QUEUES} modify defer reject schedule",
        *AZURE, "faststream-azure-servicebus==0.2.1",
    ),
    client(
        "Go azservicebus", "go",
        f"{EVERY_WAY} {QUEUES} {READS} modify defer reject {SEES} session-state administration rules",
    ),
    client(
        "Rust fe2o3-amqp", "rust",
        f"{EVERY_WAY} {' '.join(SETTLES)} {READS} {SEES} settle-then-close transactions"
        " settle-in-transaction via-subscription",
    ),
    client("taskiq", "taskiq_broker.py", f"tcp {QUEUES} schedule", *AZURE, "taskiq-service-bus==0.3.0"),
    client(
        "Azure SDK for Java", "java Azure",
        f"{EVERY_WAY} {QUEUES} {READS} {SEES} modify defer reject session-state settle-then-close"
        " transactions settle-in-transaction via-subscription administration",
        rules="makes text of numbers",
    ),
    client(
        "Spring", "java Spring",
        f"{EVERY_WAY} {QUEUES} modify defer reject schedule string-keys nearly-full default-ttl partition-annotations",
    ),
    client(
        "Qpid JMS", "java Jms",
        f"{EVERY_WAY} {QUEUES} release modify defer dead-letters raw string-keys nearly-full default-ttl browse"
        " settle-then-close transactions rollback-redelivers",
    ),
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

    def __call__(self, name: str, /, **arguments: Any) -> Any:
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
def driven(
    client: Client, running: Running, *, transport: str | None = None, signs_in: bool = True
) -> Iterator[Driver]:
    """Start a client for an emulator with TLS. Raises NotHere."""
    command, own = client.command()
    over = transport or client.transports[0]
    known = {"PATH": os.environ["PATH"], "TRANSPORT": over, **address(running), **own}
    if not signs_in:
        del known["KEY_NAME"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=known, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Driver(process)
        finally:
            process.kill()
