"""A namespace that accepts connections and says nothing: reported soon, and ended as unreachable, by every command."""

import gc
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.amqp_client import client, stream
from sbpair.azure import data_plane, http_client
from sbpair.message_io import send_lines
from sbpair.model import connect_errors
from tests.cli.test_bad_input import emulated
from tests.kit.command import run_here

# The SDK leaves a connection open whose opening is cancelled. It is freed below, and not in another test.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

COMMANDS = (
    "syphon --once --state {}",
    "syphon --watch --state {}",
    "syphon --dry-run",
    "audit",
    "status --timeout 1s",
    "provision",
    "prune",
    "ping orders",
    "send orders {}/line",
    "send orders {}/line --to-backlog",
    "receive orders",
    "receive orders --remove --yes",
    "peek orders",
    "peek contoso/x-servicebus-transfer/0",
    "deadletters list",
    "partition list",
    "partition queue orders --size-gb 5",
    "doctor --timeout 1s",
    "replay plan",
)
LIMITS = (
    (client, "FIRST_ANSWER_SECONDS", 0.4),
    (data_plane, "OPEN_SECONDS", 0.4),
    (send_lines, "FIRST_SEND_SECONDS", 0.0),
    (http_client, "FIRST_ANSWER_SECONDS", 0.4),
    (http_client, "REPORT_SECONDS", 0.1),
)


@pytest.fixture
def silent_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port where the system accepts connections, and no program reads them. All time limits are short."""
    for module, name, seconds in LIMITS:
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setitem(stream.open_stream.__kwdefaults__, "seconds", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]
    gc.collect()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_silent_namespace_is_reported_and_ends_every_command(
    words: str,
    silent_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SBPAIR_PRIMARY_CONNECTION_STRING", emulated(silent_port))
    monkeypatch.setenv("SBPAIR_PRIMARY_NAME", "contoso")
    secondary = emulated(silent_port).replace("127.0.0.1", "localhost")
    monkeypatch.setenv("SBPAIR_SECONDARY_CONNECTION_STRING", secondary)
    (tmp_path / "line").write_text("hello\n")
    code = run_here(shlex.split(words.format(tmp_path)))
    out, err = capfd.readouterr()
    assert code == 6
    assert "no answer within" in out + err
    assert f":{silent_port}" in out + err
    assert "attempt 1" not in err


def test_the_limits_keep_every_command_below_half_a_minute() -> None:
    limits = connect_errors
    assert limits.CONNECT_SECONDS < limits.REPORT_SECONDS < 9
    # A call to each side; a call and a connection; a connection and its sign-in.
    assert 2 * limits.FIRST_ANSWER_SECONDS <= 25
    assert limits.CONNECT_SECONDS + limits.FIRST_ANSWER_SECONDS <= 25
    assert data_plane.OPEN_SECONDS <= 25
