"""The file of an outbox: its content, owner and limits, and its state after a kill."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbpair.errors import LeaseHeld, MachineLacks, QuotaExceeded, StateRefused
from sbpair.failover import outbox
from sbpair.failover.outbox import Outbox, OutboxDepth, outbox_depths
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from tests.kit.waiting import PATIENCE_SECONDS

KEY = "SharedAccessKeyName=k;SharedAccessKey=a2V5"
ROOT = Path(__file__).parents[2]


def strings(primary: str = "contoso") -> list[str]:
    return [f"Endpoint=sb://{name}.example/;{KEY}" for name in (primary, "dr")]


def a_pair(primary: str = "contoso") -> Pair:
    return Pair("p", *map(endpoint_from_connection_string, strings(primary)))


def messages(box: Outbox, entity: str) -> list[bytes]:
    return [each.message for each in box.peek(entity, 1000, 2**40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out box?.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., Outbox]]:
    """Return a function that opens the outbox, and closes the one that it opened before."""
    with ExitStack() as stack:

        def open_again(**options: Any) -> Outbox:
            stack.close()
            return stack.enter_context(closing(Outbox(path, a_pair(), **options)))

        yield open_again


def test_peek_is_bounded_but_returns_at_least_one(opened: Callable[..., Outbox]) -> None:
    box = opened()
    box.put("orders", [b"xxx", b"yyy", b"z"])
    assert [len(box.peek("orders", 10, size)) for size in (1, 5, 6, 7)] == [1, 1, 2, 3]


def test_an_outbox_that_is_full_of_bytes_stores_none_of_a_put(opened: Callable[..., Outbox]) -> None:
    box = opened(max_bytes=6)
    box.put("orders", [b"aa", b"bb"])
    with pytest.raises(QuotaExceeded, match=r"out box\?\.db is full: it has 2 messages of 4 bytes"):
        box.put("orders", [b"cc", b"dd"])
    box.put("orders", [b"cc"])
    box.remove("orders", box.peek("orders", 2, 100))
    box.put("orders", [b"ee"])
    # What was there before counts too.
    box = opened(max_bytes=6)
    with pytest.raises(QuotaExceeded):
        box.put("news", [b"xyz"])


def test_another_process_is_refused_until_this_one_is_killed(path: Path) -> None:
    with a_child("hold", path) as child:
        with pytest.raises(LeaseHeld):
            Outbox(path, a_pair())
        child.kill()
        child.wait()
        box = Outbox(path, a_pair())
        assert messages(box, "orders") == [b"0"]
        box.close()


def test_a_foreign_file_is_refused_and_unchanged(path: Path) -> None:
    Outbox(path, a_pair()).close()
    before = path.read_bytes()
    with pytest.raises(StateRefused, match=r"outbox of contoso\.example and dr\.example, not of other\.example"):
        Outbox(path, a_pair("other"))
    for change, reason in (
        ("PRAGMA user_version = 3", "newer version"),
        ("PRAGMA application_id = 1", "not an sbpair outbox"),
        (
            "INSERT INTO messages (id, entity, at_ms, message) VALUES (7, 'orders', 1, 'text')",
            r"out box\?\.db .*message 7 cannot be read",
        ),
        (None, "broken"),
    ):
        path.write_bytes(before if change else b"not a database, but long enough to be taken for one" * 100)
        if change:
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                db.execute(change)
        for refuses in (lambda: Outbox(path, a_pair()), lambda: outbox_depths(path)):
            with pytest.raises(StateRefused, match=reason):
                refuses()
    # Whoever was refused has not kept the lock. The name of the pair may change.
    path.write_bytes(before)
    Outbox(path, replace(a_pair(), name="another")).close()


def test_a_file_that_cannot_be_created_is_a_lack_of_the_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(outbox, "create_private", fail)
    with pytest.raises(MachineLacks, match=r"out box\?\.db cannot be used for an outbox: No space left"):
        Outbox(path, a_pair())
    path.with_name(f"{path.name}-lock").unlink()
    path.with_name(f"{path.name}-lock").mkdir()
    with pytest.raises(MachineLacks, match="cannot be used for an outbox: Is a directory") as raised:
        Outbox(path, a_pair())
    assert raised.value.hint == "name a file that can be written"


def test_only_the_owner_can_read_the_file(path: Path, opened: Callable[..., Outbox]) -> None:
    box = opened()
    box.put("orders", [b"a"])
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


def test_a_full_disk_stores_nothing_and_a_later_put_works(opened: Callable[..., Outbox]) -> None:
    box = opened()
    box.put("orders", [b"a"])
    [[pages]] = box._db.execute("PRAGMA page_count")
    box._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MachineLacks, match="full"):
        box.put("orders", [b"x" * 100_000, b"b"])
    assert (messages(box, "orders"), len(box)) == ([b"a"], 1)
    box.put("orders", [b"b"])
    assert messages(box, "orders") == [b"a", b"b"]


def test_depths_are_readable_while_in_use_and_after(path: Path) -> None:
    assert outbox_depths(path) == {}
    times = iter((5, 6, 7))
    box = Outbox(path, a_pair(), clock_ms=lambda: next(times))
    box.put("orders", [b"a", b"b"])
    box.put("orders", [b"c"])
    box.put("news", [b"d"])
    expected = {"news": OutboxDepth(1, 7), "orders": OutboxDepth(3, 5)}
    assert outbox_depths(path) == expected
    box.close()
    assert outbox_depths(str(path)) == expected
    with a_child("hold", path) as child:
        child.kill()
        child.wait()
        assert outbox_depths(path)["orders"].messages == 4


@pytest.mark.parametrize("boot", ["another", ""])
def test_a_wait_before_another_start_of_the_machine_is_not_counted(path: Path, boot: str) -> None:
    """A file of an earlier version does not say how long its messages have waited: "" is its boot."""
    with closing(Outbox(path, a_pair(), uptime=lambda: 5.0)) as box:
        box.put("orders", [b"a", b"b"])
        box._db.execute("UPDATE messages SET boot = ? WHERE message = ?", (boot, b"a"))
    with closing(Outbox(path, a_pair(), uptime=lambda: 9.0)) as box:
        assert [each.waited_ms for each in box.peek("orders", 2, 100)] == [0, 4_000]


class OutboxAgainstTheModel(RuleBasedStateMachine):
    """Puts, removals, refusals and reopenings in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(os.environ.get("TMPDIR", "/tmp")) / f"outbox-{os.getpid()}-{id(self)}"  # noqa: S108
        self.directory.mkdir()
        self.number = 0
        self.box = self._opened()
        self.model: dict[str, list[bytes]] = {"orders": [], "Billing/News": []}
        self.refused: list[tuple[str, bytes]] = []
        self.tried: set[bytes] = set()
        self.times: dict[bytes, int] = {}

    entity = st.sampled_from(["orders", "Billing/News"])

    def _opened(self) -> Outbox:
        return Outbox(self.directory / "x.db", a_pair(), max_messages=8, uptime=lambda: self.number)

    @rule(entity=entity, count=st.integers(1, 3), spelling=st.sampled_from([str, str.lower, str.upper]))
    def put(self, entity: str, count: int, spelling: Callable[[str], str]) -> None:
        new = [f"{entity}{self.number + each}".encode() for each in range(count)]
        self.number += count
        if sum(map(len, self.model.values())) + count > 8:
            with pytest.raises(QuotaExceeded):
                self.box.put(entity, new)
        else:
            self.box.put(spelling(entity), new)
            self.model[entity] += new
            self.times |= dict.fromkeys(new, self.number)

    @rule(entity=entity, count=st.integers(1, 3), tried=st.booleans())
    def mark(self, entity: str, count: int, tried: bool) -> None:
        some = self.box.peek(entity, count, 2**30)
        self.box.mark(some, tried=tried)
        messages_of = {each.message for each in some}
        self.tried = self.tried | messages_of if tried else self.tried - messages_of

    def _passing(self, entity: str) -> list[bytes]:
        return [each for each in self.model[entity] if (entity, each) not in self.refused]

    @rule(entity=entity, count=st.integers(1, 3))
    def remove(self, entity: str, count: int) -> None:
        gone = self.box.peek(entity, count, 2**30)
        assert [each.message for each in gone] == self._passing(entity)[:count]
        self.box.remove(entity, gone)
        for each in gone:
            self.model[entity].remove(each.message)

    @rule(entity=entity)
    def refuse(self, entity: str) -> None:
        for each in self.box.peek(entity, 1, 0):
            self.box.refuse(entity, each)
            self.refused.append((entity, each.message))

    @rule()
    def open_again(self) -> None:
        self.box.close()
        self.box = self._opened()
        self.refused.clear()

    @invariant()
    def both_agree(self) -> None:
        assert len(self.box) == sum(map(len, self.model.values()))
        for entity in self.model:
            found = self.box.peek(entity.swapcase(), 1000, 2**40)
            assert [each.message for each in found] == self._passing(entity)
            assert [(each.waited_ms, each.tried) for each in found] == [
                (1000 * (self.number - self.times[each.message]), each.message in self.tried) for each in found
            ]
            assert self.box.holds(entity.swapcase()) is bool(self._passing(entity))
        assert {each.lower() for each in self.box.entities()} == {
            each.lower() for each in self.model if self._passing(each)
        }
        counts = {entity.lower(): each.messages for entity, each in outbox_depths(self.directory / "x.db").items()}
        assert counts == {entity.lower(): len(each) for entity, each in self.model.items() if each}

    def teardown(self) -> None:
        self.box.close()
        shutil.rmtree(self.directory)


TestOutboxAgainstTheModel = OutboxAgainstTheModel.TestCase
TestOutboxAgainstTheModel.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)


CHILD = """
import os, signal, sys
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.failover.outbox import Outbox

what, path, kill_at, *ends = sys.argv[1:]
kill_at = int(kill_at)
box = Outbox(path, Pair("p", *map(endpoint_from_connection_string, ends)))
print("ready", flush=True)
if what == "hold":
    box.put("orders", [b"0"])
    print("holding", flush=True)
    signal.pause()
steps = 0

def count():
    global steps
    steps += 1
    if steps == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0

box._db.set_progress_handler(count, 1)
for number in range(3):
    box.put("orders", [b"%da" % number, b"%db" % number])
    print("put", number, flush=True)
first = box.peek("orders", 2, 100)
box.mark(first, tried=True)
box.remove("orders", first)
print("removed", flush=True)
"""


class a_child:  # noqa: N801  it reads as what it gives
    """Start a process that owns an outbox; with "hold" until it is killed."""

    def __init__(self, what: str, path: Path, kill_at: int = 0, *tracer: str) -> None:
        command = [*tracer, sys.executable, "-c", CHILD, what, str(path), str(kill_at), *strings()]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> subprocess.Popen[str]:
        assert self.process.stdout is not None
        while self.process.stdout.readline() not in ("holding\n", ""):
            pass
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def lines(self) -> list[str]:
        output, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.process.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), errors
        return output.splitlines()


def holds_what_was_promised(path: Path, lines: list[str]) -> None:
    put = [line for line in lines if line.startswith("put")]
    if not path.exists():
        assert not put
        return
    with closing(Outbox(path, a_pair())) as box:
        found = messages(box, "orders")
    everything = [b"%d%c" % (number, letter) for number in range(3) for letter in b"ab"]
    if "removed" in lines:
        assert found == everything[2:]
    elif len(put) == 3:
        assert found in (everything, everything[2:])
    else:
        # What `put` returned for; and it takes all of its messages or none, whether it lived to say so or not.
        minimum = 2 * len(put)
        assert found in (everything[:minimum], everything[: minimum + 2])


@pytest.mark.parametrize("kill_at", [1, 40, 90, 130, 170])
def test_stored_messages_survive_a_kill_at_any_database_step(path: Path, kill_at: int) -> None:
    lines = a_child("work", path, kill_at).lines()
    assert lines[0] == "ready"
    holds_what_was_promised(path, lines)


STRACE = shutil.which("strace")
TRACER = (str(STRACE), "-f", "-qq", "-o")


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="there is no strace")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "fsync", "ftruncate", "unlink"])
def test_stored_messages_survive_a_kill_at_every_write(tmp_path: Path, call: str) -> None:
    for number in range(1, 60):
        path = tmp_path / f"{call}-{number}.db"
        inject = f"inject={call}:signal=SIGKILL:when={number}"
        child = a_child("work", path, 0, *TRACER, "/dev/null", "-e", f"trace={call}", "-e", inject)
        lines = child.lines()
        holds_what_was_promised(path, lines)
        if "removed" in lines and child.process.returncode == 0:
            return
    raise AssertionError("it was always killed")


@pytest.mark.skipif(STRACE is None, reason="there is no strace")
def test_put_returns_after_the_sync_to_disk(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    child = a_child("work", tmp_path / "x.db", 0, *TRACER, str(trace), "-e", "trace=write,pwrite64,fdatasync")
    assert "removed" in child.lines()
    calls = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines() if "(" in line]
    ready = next(at for at, call in enumerate(calls) if call.startswith('write(1, "ready'))
    puts = [at for at, call in enumerate(calls) if call.startswith('write(1, "put')]
    assert len(puts) == 3
    for before, after in zip([ready, *puts], puts, strict=False):
        written = [call.split("(")[0] for call in calls[before + 1 : after]]
        assert written[-1] == "fdatasync", "nothing is written after the disk was waited for"
        assert "pwrite64" in written
