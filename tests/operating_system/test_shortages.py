"""What this machine has run out of is said as that, by every layer that meets it, and costs exit code 7."""

import asyncio
import errno
import os
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest
from aiohttp.client_reqrep import ConnectionKey
from azure.core.exceptions import ServiceRequestError
from azure.servicebus.exceptions import ServiceBusConnectionError

from sbpair import __main__ as main
from sbpair.amqp_client.stream import open_stream
from sbpair.azure.atom import open_atom
from sbpair.azure.data_plane import open_sender
from sbpair.azure.http_client import check_health
from sbpair.errors import Exhausted, InDoubt, MachineLacks, SbpairError, Unavailable, Unreachable
from sbpair.failover.outbox import outbox_depths
from sbpair.http_tunnel import client_context, open_connection
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.proxy import Proxy
from sbpair.operating_system import listen
from sbpair.operating_system.files import temporary_directory
from sbpair.operating_system.shortages import FILES, MEMORY, ROOM, THREADS, shortage_of
from sbpair.replay.archive import Archive
from sbpair.runs.database import RunDatabase
from sbpair.runs.file_lease import Lease
from tests.kit.command import environment
from tests.kit.shortages import no_file_left
from tests.runs.states import PAIR

KEY = ConnectionKey("a", 1, False, True, None, None, None)  # type: ignore[arg-type]
CONNECTION_STRING = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
NOWHERE = endpoint_from_connection_string(CONNECTION_STRING)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
SHORT: dict[str, tuple[BaseException, tuple[str, str]]] = {
    "the files of the process": (EMFILE, FILES),
    "the files of the machine": (OSError(errno.ENFILE, "Too many open files in system"), FILES),
    "several addresses": (OSError("Multiple exceptions: [Errno 24] Too many open files, [Errno 24] the same"), FILES),
    "aiohttp": (aiohttp.ClientConnectorError(KEY, EMFILE), FILES),
    "azure-servicebus": (ServiceBusConnectionError(message="broken", error=caused(Exception("amqp"), EMFILE)), FILES),
    "azure-core": (ServiceRequestError("broken", error=EMFILE), FILES),
    "an error of ours": (caused(Unreachable("the connection is gone"), EMFILE), FILES),
    "a group": (ExceptionGroup("", [ValueError(), ExceptionGroup("", [EMFILE])]), FILES),
    "memory": (MemoryError(), MEMORY),
    "memory of the kernel": (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
    "memory of sockets": (OSError(errno.ENOBUFS, "No buffer space available"), MEMORY),
    "memory of Arrow": (pa.ArrowMemoryError("malloc of size 99 failed"), MEMORY),
    "threads": (RuntimeError("can't start new thread"), THREADS),
}


def circle() -> Exception:
    """Return an error that is a cause of its cause, as azure-core makes them."""
    inner = ValueError()
    return caused(inner, ExceptionGroup("", [ServiceRequestError("broken", error=inner)]))


OTHERS: list[BaseException] = [
    circle(),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 101] Network is unreachable"),
    TimeoutError(),
    BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.ENOSPC, "No space left on device"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    ssl.SSLCertVerificationError("unable to get local issuer certificate"),
    sqlite3.OperationalError("unable to open database file"),
    RuntimeError("cannot reuse already awaited coroutine"),
    ServiceBusConnectionError(message="the namespace said: [Errno 24] Too many open files"),
    ValueError("[Errno 24] Too many open files"),
]


@pytest.mark.parametrize("name", SHORT)
def test_a_shortage_is_recognized_in_any_error(name: str) -> None:
    error, lack = SHORT[name]
    found = shortage_of(error, "sending to 'orders'")
    assert found is not None
    assert (found.message, found.hint, found.exit_code) == (f"sending to 'orders': {lack[0]}", lack[1], 7)
    assert found.retriable
    assert isinstance(found, Unavailable)
    assert shortage_of(found) is found


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_any_other_error_is_no_shortage(error: BaseException) -> None:
    assert shortage_of(error) is None


@pytest.mark.parametrize("error", [each for each in OTHERS if isinstance(each, socket.gaierror | ssl.SSLError)])
def test_an_error_that_hides_a_shortage_is_one_while_no_file_is_left(error: BaseException) -> None:
    with no_file_left():
        found = shortage_of(error)
    assert found is not None
    assert found.hint == FILES[1]


async def health() -> object:
    return await check_health(NOWHERE, seconds=5)


async def atom() -> object:
    async with open_atom(NOWHERE) as client:
        return await client.get("orders")


async def azures_client() -> None:
    async with open_sender(NOWHERE, "orders"):
        pass


CONNECT: dict[str, Callable[[], Awaitable[object]]] = {
    "AMQP": lambda: open_stream(NOWHERE, "c"),
    "health": health,
    "management": atom,
    "azure-servicebus": azures_client,
    "proxy": lambda: open_connection("a", 1, Proxy("http", "127.0.0.1", 1)),
}


@pytest.mark.parametrize("way", CONNECT)
async def test_a_connection_without_a_file_says_so(way: str) -> None:
    with pytest.raises(Unavailable) as reached:
        await CONNECT[way]()
    assert reached.value.exit_code == 6
    with no_file_left(), pytest.raises(Exhausted, match="too many open files") as short:
        await CONNECT[way]()
    assert "ulimit -n" in short.value.hint


async def test_a_connection_without_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(*_arguments: object, **_options: object) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", no_thread)
    with pytest.raises(Exhausted, match="no more threads can be started"):
        await open_stream(NOWHERE, "c")


OPEN: dict[str, Callable[[Path], object]] = {
    "state": lambda path: RunDatabase(path / "state", PAIR.ends),
    "lease": lambda path: Lease(path / "state", "r"),
    "depth of an outbox": lambda path: outbox_depths(path / "state" / "state.db"),
    "archive": lambda path: Archive(str(path), "run").read_table("segments/1.parquet"),
    "CA file": lambda path: client_context(str(path / "ca.pem")),
    "port": lambda _path: listen("127.0.0.1", 0),
}


@pytest.mark.parametrize("kind", OPEN)
def test_a_file_that_cannot_be_opened_for_want_of_files_is_not_broken(tmp_path: Path, kind: str) -> None:
    RunDatabase(tmp_path / "state", PAIR.ends).close()
    archive = Archive(str(tmp_path), "run")
    archive.create()
    archive.write_table("segments/1.parquet", pa.table({"a": [1]}), 1)
    (tmp_path / "ca.pem").write_text("a certificate")
    with no_file_left(), pytest.raises(Exhausted, match="too many open files"):
        OPEN[kind](tmp_path)


REMEDIES: list[tuple[Exception, int, str]] = [
    (OSError(errno.EMFILE, "Too many open files"), 7, FILES[1]),
    (MemoryError(), 7, MEMORY[1]),
    (caused(MachineLacks("x cannot be read", hint="check its permissions"), EMFILE), 7, FILES[1]),
    (OSError(errno.ENOSPC, "No space left on device"), 7, ROOM[1]),
    (ExceptionGroup("", [OSError(errno.EDQUOT, "Disk quota exceeded")]), 7, ROOM[1]),
    (caused(MachineLacks("x cannot be written", hint="name another"), OSError(errno.ENOSPC, "")), 7, "name another"),
    (caused(InDoubt("no answer came", hint="look"), EMFILE), 6, "look"),
    (caused(SbpairError("a bug", hint="report it"), ValueError()), 1, "report it"),
]


@pytest.mark.parametrize(("error", "code", "hint"), REMEDIES)
def test_a_command_ends_with_7_wherever_a_shortage_was_noticed(
    error: Exception, code: int, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def invoke(_arguments: object) -> int:
        raise error

    monkeypatch.setattr("sbpair.cli.app.invoke", invoke)
    assert main.run(["audit"]) == code
    assert capsys.readouterr().err.splitlines()[1:] == [f"hint: {hint}"]


AUDIT = """
import resource, sys
from sbpair.__main__ import run

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 100))
sys.exit(run(["audit"]))
"""


@pytest.mark.parametrize("files", [pytest.param(3, id="to load modules"), pytest.param(5, id="for an event loop")])
def test_a_command_with_too_few_files_ends_with_7(files: int) -> None:
    environ = environment(None)
    for port, (side, name) in enumerate([("PRIMARY", "contoso"), ("SECONDARY", "contoso-dr")], 1):
        connection_string = CONNECTION_STRING.replace(":1;", f":{port};")
        environ |= {f"SBPAIR_{side}_CONNECTION_STRING": connection_string, f"SBPAIR_{side}_NAME": name}
    command = [sys.executable, "-c", AUDIT, str(files)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    assert done.returncode == 7
    [error, hint] = done.stderr.splitlines()
    assert error.endswith("too many open files")
    assert hint == f"hint: {FILES[1]}"


def test_a_temporary_directory_that_cannot_be_made_names_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(MachineLacks, match="no temporary directory can be made") as lacks, temporary_directory("x"):
        pass
    assert "TMPDIR" in lacks.value.hint
