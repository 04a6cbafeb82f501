"""Commands on a machine whose clock differs from the service's: one line says so, and a refused token says why."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.clock import SystemClock
from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment
from tests.kit.pairs import BACKLOG

pytestmark = pytest.mark.usefixtures("impatient")

MINUTE, HOUR = 60, 3_600
COMMANDS = [
    "status --count 1",
    "audit --count 1",
    "provision --dry-run --count 1",
    "prune --count 1 --dry-run",
    "export bicep --count 1",
    "syphon --once --count 1",
    "syphon --dry-run --count 1",
    "move orders other",
    "redrive orders --by-reason",
    "replay plan --count 1",
    "peek orders",
    "receive orders",
    "receive orders --remove --yes --wait 0.1s",
    "receive orders --dedup --remove --yes --wait 0.1s",
    "deadletters list --count 1",
    "deadletters show --count 1",
    "ping orders",
    "send orders {file}",
    "send primary:orders {file}",
    "relay status",
    "relay send default /",
]
OFFLINE = {"export bicep --count 1"}
"""Commands that connect to nothing."""


class ServiceClock(SystemClock):
    """The clock of a service whose time is so many seconds ahead of this machine's."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self._base_ns += ahead * 1_000_000_000


@contextmanager
def service(ahead: int) -> Iterator[dict[str, str]]:
    with EmulatorThread(clock=ServiceClock(ahead)) as thread:
        for name in ("contoso", "contoso-dr"):
            thread[name].declare(queues=["orders", "other"], hybrid_connections=["service"])
        secondary = thread.emulator.namespaces["contoso-dr"]
        thread.do(lambda: secondary.create_queue(queue_path("contoso", 0), BACKLOG))
        environ = environment(thread.emulator)
        for side, ready in zip(("PRIMARY", "SECONDARY"), thread.emulator.ready.namespaces, strict=True):
            environ[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = f"{ready.connection_string};EntityPath=service"
        yield environ


def clock_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "this machine's clock" in line]


def invoked(here: Here, command: str, directory: Path, environ: dict[str, str]) -> tuple[int, str]:
    """Return the exit code of a command, and what it writes to stderr."""
    file = directory / "lines.txt"
    file.write_text("hello\n")
    code, _, err = here(*command.format(file=file).split(), **environ)
    return code, err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("ahead", "said"), [(30 * MINUTE, "30 minutes behind"), (-2 * HOUR, "2 hours ahead of")])
def test_each_command_that_connects_warns_in_one_line(
    here: Here, tmp_path: Path, command: str, ahead: int, said: str
) -> None:
    with service(ahead) as environ:
        code, err = invoked(here, command, tmp_path, environ)
    found = clock_lines(err)
    if command in OFFLINE:
        assert (code, found) == (0, [])
        return
    assert len(found) == 1, err
    assert f"this machine's clock is {said} the service's: synchronise this machine's clock by NTP" in found[0]


@pytest.mark.parametrize("command", ["audit --count 1", "send orders {file}"])
def test_a_clock_within_five_minutes_is_no_news(here: Here, tmp_path: Path, command: str) -> None:
    with service(4 * MINUTE) as environ:
        code, err = invoked(here, command, tmp_path, environ)
    assert (code, clock_lines(err)) == (0, [])


@pytest.mark.parametrize(
    "command",
    [
        *("audit --count 1", "syphon --once --count 1", "peek orders", "status --count 1"),
        *("send primary:orders {file}", "ping orders"),
    ],
)
def test_a_signature_is_made_again_by_the_time_of_the_service(here: Here, tmp_path: Path, command: str) -> None:
    with service(2 * HOUR) as environ:
        code, err = invoked(here, command, tmp_path, environ)
    assert (code, len(clock_lines(err))) == (0, 1), err


@pytest.mark.parametrize("command", ["provision --count 2", "relay send default /"])
def test_a_refused_token_is_explained_by_the_clock(here: Here, tmp_path: Path, command: str) -> None:
    with service(2 * HOUR) as environ:
        code, err = invoked(here, command, tmp_path, environ)
    cause = "this machine's clock is 2 hours behind the service's, and a signature lives an hour"
    assert (code, f"synchronise this machine's clock by NTP, and then check the key: {cause}" in err) == (5, True), err
