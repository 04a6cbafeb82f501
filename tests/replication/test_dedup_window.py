"""Key stores in memory and in a file, against a naive list."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.errors import LeaseHeld, StateRefused
from sbpair.replication.keys import KeyRule, KeyStatus, KeyStore, Window

ABOUT = {"entity": "orders"}
WINDOWS = st.builds(
    Window, seconds=st.sampled_from((1.0, 7.5, 100.0)) | st.none(), count=st.integers(1, 4)
) | st.builds(Window, seconds=st.sampled_from((1.0, 7.5, 100.0)), count=st.none())
STEPS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(KeyStatus), st.floats(0, 9, allow_nan=False)), max_size=40
)


class Naive:
    """A list of marks, searched linearly."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.marks: list[tuple[str, KeyStatus, float]] = []

    def mark(self, key: str, status: KeyStatus, now: float) -> None:
        self.marks = [each for each in self.marks if each[0] != key] + [(key, status, now)]
        if self.window.count is not None:
            self.marks = self.marks[-self.window.count :]

    def status(self, key: str, now: float) -> KeyStatus:
        for marked, status, at in self.marks:
            if marked == key and (self.window.seconds is None or now - at < self.window.seconds):
                return status
        return KeyStatus.NEW


def agree(window: Window, steps: list[tuple[str, KeyStatus, float]], make: Callable[[], KeyStore]) -> None:
    naive, store, now = Naive(window), make(), 1e9
    try:
        for key, status, later in steps:
            now += later
            for each in "abcdef":
                assert store.status(each, now) == naive.status(each, now)
            if status is KeyStatus.NEW:
                store.close()
                store = make()
                continue
            naive.mark(key, status, now)
            store.mark(key, status, now)
    finally:
        store.close()


@given(WINDOWS, STEPS)
def test_a_store_in_memory_equals_a_naive_list(window: Window, steps: list[tuple[str, KeyStatus, float]]) -> None:
    agree(window, [each for each in steps if each[1] is not KeyStatus.NEW], lambda: KeyStore(None, window, ABOUT))


@settings(max_examples=25, deadline=None)
@given(WINDOWS, STEPS)
def test_the_key_store_equals_a_naive_list_across_reopening(
    window: Window, steps: list[tuple[str, KeyStatus, float]]
) -> None:
    with TemporaryDirectory() as directory:
        agree(window, steps, lambda: KeyStore(Path(directory, "keys.db"), window, ABOUT))


@given(WINDOWS, st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6)), min_size=1))
def test_only_marked_keys_are_known_whatever_the_clock_does(window: Window, steps: list[tuple[str, float]]) -> None:
    store, marked = KeyStore(None, window, ABOUT), set[str]()
    for key, now in steps:
        assert {each for each in "abc" if store.status(each, now) is KeyStatus.DONE} <= marked
        store.mark(key, KeyStatus.DONE, now)
        marked.add(key)
        assert store.status(key, now) is KeyStatus.DONE
    store.close()


def test_the_key_store_is_private_and_for_one_receiver(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    store = KeyStore(path, Window(), ABOUT)
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(LeaseHeld, match="another receiver"):
        KeyStore(path, Window(), ABOUT)
    store.close()
    KeyStore(path, Window(), ABOUT).close()


def test_a_foreign_key_store_is_refused_and_unchanged(tmp_path: Path) -> None:
    text, database, mine = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "keys.db"
    text.write_text("these are my notes, and no database, however long one reads them" * 20)
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE precious (thing TEXT)")
    db.close()
    KeyStore(mine, Window(), ABOUT).close()
    before = {path: path.read_bytes() for path in (text, mine)}
    for path, about in ((text, ABOUT), (database, ABOUT), (mine, {"entity": "billing"})):
        with pytest.raises(StateRefused, match=path.name):
            KeyStore(path, Window(), about)
    assert {path: path.read_bytes() for path in (text, mine)} == before
    with sqlite3.connect(database) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("precious",)]
    db.close()


def received(**own: Any) -> ServiceBusReceivedMessage:
    """Return the message as received, with text as bytes."""
    raw = ServiceBusMessage(b"x", **own).raw_amqp_message
    if raw.properties is not None and "message_id" not in own:
        raw.properties.message_id = None
    properties = {str(key).encode(): value for key, value in (raw.application_properties or {}).items()}
    raw.application_properties = properties or None
    message = object.__new__(ServiceBusReceivedMessage)
    message._raw_amqp_message = raw
    return message


@pytest.mark.parametrize(
    ("by", "own", "key"),
    [
        ("id", {"message_id": "m1"}, "m1"),
        ("id", {}, None),
        ("subject", {"subject": "order 7"}, "order 7"),
        ("label", {"subject": "order 7"}, "order 7"),
        ("subject", {}, None),
        ("property:order", {"application_properties": {"order": b"7"}}, "7"),
        ("property:order", {"application_properties": {"order": 7}}, "int:7"),
        ("property:order", {"application_properties": {"order": "int:7"}}, "str:int:7"),
        ("property:order", {"application_properties": {"order": b"\xff"}}, r"bytes:b'\xff'"),
        ("property:order", {"application_properties": {"order": ""}}, None),
        ("property:order", {"application_properties": {"other": 7}}, None),
        ("property:order", {}, None),
        (lambda _message: None, {}, None),
        (lambda message: message.session_id, {"session_id": "s"}, "s"),
    ],
)
def test_keys_by_rule(by: Any, own: dict[str, Any], key: str | None) -> None:
    assert KeyRule(by).of(received(**own)) == key


VALUES = st.text(max_size=140) | st.binary(max_size=140) | st.integers() | st.booleans() | st.floats(allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(VALUES, VALUES)
def test_different_values_have_different_keys(one: object, other: object) -> None:
    def meant(value: object) -> object:
        try:
            return (str, value.decode()) if isinstance(value, bytes) else (type(value), repr(value))
        except UnicodeDecodeError:
            return bytes, value

    def text(value: object) -> object:
        return (str, value) if isinstance(value, str) else meant(value)

    keys = [KeyRule(lambda _message, value=value: value).of(received()) for value in (one, other)]
    assert all(key is None or len(key) <= 128 for key in keys)
    if text(one) != text(other) and None not in keys:
        assert keys[0] != keys[1]
    if text(one) == text(other):
        assert keys[0] == keys[1]


def test_marked_keys_outlive_a_kill_and_the_lock_does_not(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from sbpair.replication.keys import *\n"
        f"store = KeyStore(Path({str(tmp_path / 'keys.db')!r}), Window(), {ABOUT!r})\n"
        "store.mark('done', KeyStatus.DONE, 5.0); store.mark('doubt', KeyStatus.DOUBT, 5.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    store = KeyStore(tmp_path / "keys.db", Window(), ABOUT)
    assert [store.status(key, 6.0) for key in ("done", "doubt", "new")] == [
        KeyStatus.DONE,
        KeyStatus.DOUBT,
        KeyStatus.NEW,
    ]
    store.close()
