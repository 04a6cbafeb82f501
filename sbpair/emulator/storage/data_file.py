"""The SQLite file of an emulator: opened, checked and locked until it is closed; and the form of the rows in it.

Invariant: the content of a file that is refused does not change.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

from sbpair.amqp.message import Sections
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.stored_message import (
    ACTIVE,
    DEFERRED,
    LOCKED,
    DeadLetterReason,
    ForwardedMessage,
    StoredMessage,
)
from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.operating_system import ownership
from sbpair.operating_system.files import open_new
from sbpair.rules import filters
from sbpair.rules.values import read_typed

APPLICATION_ID: Final = 0x73627065
VERSION: Final = 3
BUSY_SECONDS: Final = 1.0
CHECKPOINT_PAGES: Final = 4_000
"""Pages of the write-ahead log that are copied into the file together: 16 MB."""

SCHEMA: Final = (
    "CREATE TABLE entities (id TEXT PRIMARY KEY, document TEXT NOT NULL, state TEXT NOT NULL, at_ms INTEGER NOT NULL)",
    """CREATE TABLE contents (id INTEGER PRIMARY KEY, entity TEXT NOT NULL, part TEXT NOT NULL, key NOT NULL,
    fields TEXT NOT NULL, content BLOB NOT NULL, checksum INTEGER NOT NULL)""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
"""An entity is 'contoso/orders', or the namespace 'contoso' itself, as it was `at_ms`. Its contents are messages,
states of sessions and the message ids that duplicate detection has seen.
"""

_ELSEWHERE: Final = "name another file with --data"
_BROKEN: Final = frozenset((
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
))  # fmt: skip
_IN_USE: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file, or create it, and keep every other process out. Raises StateRefused, MachineLacks."""
    with errors(path):
        if path.exists() and not path.is_file():
            raise MachineLacks(f"{path} is not a regular file", hint=_ELSEWHERE)
        for suffix in ownership.BESIDE:
            ownership.check_owner(Path(f"{path}{suffix}"))
        with suppress(FileExistsError):
            # It holds keys and messages. SQLite gives the files beside it the same mode.
            os.close(open_new(path))
        uri = f"file:{quote(str(path.absolute()))}?mode=rw"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            is_new = _check(path, db)
            db.execute("PRAGMA journal_mode = WAL")
            # A commit survives the end of the process. Only a power failure can take the last ones back.
            db.execute("PRAGMA synchronous = NORMAL")
            # Otherwise a deletion overwrites what it deletes, at twice the cost.
            db.execute("PRAGMA secure_delete = OFF")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            with transaction(db):
                for statement in SCHEMA if is_new else ():
                    db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db


def _check(path: Path, db: sqlite3.Connection) -> bool:
    """Return whether the file is new. Raises StateRefused."""
    [[application]] = db.execute("PRAGMA application_id")
    [[version]] = db.execute("PRAGMA user_version")
    if not application and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return True
    if application != APPLICATION_ID:
        raise _foreign(path)
    if version > VERSION:
        raise StateRefused(f"{path} was written by a newer version of sbpair", hint=f"upgrade sbpair, or {_ELSEWHERE}")
    if version < VERSION:
        raise StateRefused(
            f"{path} was written by an earlier version of sbpair, which this one does not read",
            hint=f"empty its entities with that version, or {_ELSEWHERE}",
        )
    [[result]] = db.execute("PRAGMA quick_check(1)")
    if result != "ok":
        raise broken(path, result)
    return False


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all changes of the block, or none of them if it raises."""
    db.execute("BEGIN IMMEDIATE")
    with db:
        yield


def broken(path: Path, reason: object) -> StateRefused:
    text = " ".join(str(reason).split())[:200]
    return StateRefused(f"{path} is broken: {text}", hint=f"restore it from a copy, or {_ELSEWHERE}")


def of_others(path: Path, found: list[str], wanted: list[str]) -> StateRefused:
    start_with = " ".join(f"--namespace {each}" for each in found)
    text = f"{path} holds {' and '.join(found)}, not {' and '.join(wanted)}"
    return StateRefused(text, hint=f"start with {start_with}, or {_ELSEWHERE}")


def _foreign(path: Path) -> StateRefused:
    return StateRefused(f"{path} is not a data file of the emulator", hint=_ELSEWHERE)


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """Raise what SQLite and the operating system report as errors that name the file."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes a broken file in its errors
        raise _translate(path, error) from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be opened: {error.strerror}", hint=_ELSEWHERE) from error


def _translate(path: Path, error: Exception) -> SbpairError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _IN_USE:
        return MachineLacks(f"{path} is in use by another process", hint=f"stop that emulator, or {_ELSEWHERE}")
    if code == sqlite3.SQLITE_NOTADB:
        return _foreign(path)
    if code in _BROKEN:
        return broken(path, error)
    return MachineLacks(f"{path} cannot be used: {error}", hint=f"check permissions and free space, or {_ELSEWHERE}")


_TYPES: Final[Mapping[str, type[Any]]] = {
    each.__name__: each
    for each in (
        QueueDescription,
        TopicDescription,
        SubscriptionDescription,
        HybridConnectionDescription,
        AuthorizationRule,
        rules.SubscriptionRule,
        filters.TrueRuleFilter,
        filters.FalseRuleFilter,
        filters.SqlRuleFilter,
        filters.CorrelationRuleFilter,
        rules.SqlAction,
    )
}
_NAMED: Final = frozenset({"parameters", "properties"})
"""The fields with named values of a type."""


def _plain(value: Any) -> Any:
    """Return what JSON cannot represent as what it can: an object as its type and its fields."""
    if isinstance(value, frozenset):
        return sorted(value)
    document = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    for name in _NAMED & document.keys():
        document[name] = [(key, typed.kind, typed.text) for key, typed in document[name]]
    return {"type": type(value).__name__, **document}


def _object(document: dict[str, Any]) -> Any:
    if "type" not in document:
        return document
    kind = _TYPES[document.pop("type")]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    for name in _NAMED & values.keys():
        values[name] = tuple((key, read_typed(kind, text)) for key, kind, text in values[name])
    if "rights" in values:
        values["rights"] = frozenset(map(AccessRight, values["rights"]))
    return kind(**values)


encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain).encode
decode = json.JSONDecoder(object_hook=_object).decode

# Messages

_NOT_IN_FIELDS: Final = frozenset({"content", "sequence_number", "lock_token", "locked_until_ms"})
_FORWARDED: Final = ("enqueued_sequence_number", "hops", "dead_letter_source")
_FIELDS: Final = (*(each.name for each in fields(StoredMessage) if each.name not in _NOT_IN_FIELDS), *_FORWARDED)
_values_of = attrgetter(*_FIELDS)
_DEFAULTS: Final = _values_of(StoredMessage(b"", 0))
_IS_SPLIT: Final = "is_split"


def write_message(message: StoredMessage) -> tuple[str, bytes]:
    """Return the fields of a message as JSON, and its content. The table has its sequence number."""
    content = message.content
    if isinstance(content, Sections):
        return _fields_text(_values_of(message), True), content.join()
    return _fields_text(_values_of(message), False), content


@lru_cache(1024)
def _fields_text(values: tuple[Any, ...], is_split: bool) -> str:
    """Return the fields as JSON. Messages that are sent together mostly have the same."""
    named = zip(_FIELDS, values, _DEFAULTS, strict=True)
    stored = {name: value for name, value, default in named if value != default}
    return encode(stored | ({_IS_SPLIT: True} if is_split else {}))


def read_message(sequence_number: int, text: str, content: bytes) -> StoredMessage:
    """Return a stored message, without the lock that it may have had."""
    stored = json.loads(text)
    payload = Sections.split(content) if stored.pop(_IS_SPLIT, False) else content
    message = StoredMessage(payload, 0)
    if any(name in stored for name in _FORWARDED):
        message = ForwardedMessage(payload, 0)
        stored = {name: getattr(StoredMessage, name) for name in _FORWARDED} | stored
    if "dead_letter" in stored:
        stored["dead_letter"] = DeadLetterReason(*stored["dead_letter"])
    for name, value in stored.items():
        setattr(message, name, value)
    message.sequence_number = sequence_number
    if message.state == LOCKED:
        message.state = DEFERRED if message.reported_state == DEFERRED else ACTIVE
    return message


def checksum(entity: str, part: str, key: int | str, text: str, content: bytes) -> int:
    return crc32(f"{entity} {part} {key} {text}".encode(), crc32(content))
