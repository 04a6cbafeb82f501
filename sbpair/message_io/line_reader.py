"""Lines of text as encoded messages, the inverse of `message_json`. Pure.

A line is a raw body, or a JSON object with the fields of a message, such as `sbpair peek` prints.

Invariant: an unknown field is refused, never ignored: a misspelt name would lose a property.
"""

from __future__ import annotations

import difflib
import json
import re
import time
import uuid
from hashlib import sha256
from typing import Any, Final, Literal

from sbpair.amqp.message import Properties, Sections, data_body
from sbpair.amqp.types import Array, Map
from sbpair.backlog import PATH, check_unreserved
from sbpair.errors import ProtocolError, UsageError
from sbpair.failover.property_values import check_sizes
from sbpair.failover.raw_send import RawMessage
from sbpair.message_io.message_fields import FIELDS, read_fields, sections_of
from sbpair.message_io.typed_values import HINT as TYPES_HINT
from sbpair.message_io.typed_values import SCALARS, JsonObject, kind_of, shown
from sbpair.move.message.batches import BatchKey
from sbpair.move.message.dead_letters import CAUSE
from sbpair.move.message.envelope import alias_life_ms, partition_key, restore
from sbpair.move.message.route import MessageForm, Send

HINT: Final = (
    'a line is an object such as {"body": "hello", "message_id": "1", "session_id": "a", "properties": {"n": 1}}'
)
END: Final = "sbpair/peek-end/1"
_TABLE: Final = re.compile(rb"(QUEUE +)?SEQUENCE +ENQUEUED |ENQUEUED +FROM +ID +BODY")
MAX_ID: Final = 128
NAMES: Final = ("message_id", "session_id", "partition_key")
BODIES: Final = ("body", "body_base64")
IGNORED: Final = frozenset((
    "schema", "from", "queue", "sequence_number", "enqueued_at", "delivery_count", "state", "scheduled_at",
    "expires_at", "size", "destination", "dead_letter_reason", "dead_letter_description", "dead_letter_source",
    "locked_until", "flaw", "body_text",
))  # fmt: skip
"""Fields of printed messages that the service sets, or that repeat others."""

# The spellings of the SDKs and the portal. Case, '_' and '-' do not count.
_SPELLINGS: Final = {
    **{name.replace("_", ""): name for name in ("body", "body_kind", *FIELDS, *IGNORED)},
    "label": "subject",
    "timetolive": "ttl",
    "scheduledenqueuetime": "scheduled",
    "scheduledenqueuetimeutc": "scheduled",
    "applicationproperties": "properties",
    "userproperties": "properties",
}


class LineReader:
    """Reads lines in order. `ignored` are the fields that were not sent, `dropped` counts the messages.

    `is_refused` is whether all lines are, as they are not those of their end, or were printed in another form. Lines
    that are not JSON may look printed if they are `surely_text`.

    `scheduled` decides on messages with a schedule time: to keep it, to send them now, or to drop them.
    `as_stranded` messages are for a backlog queue, and keep their aliases.
    """

    def __init__(
        self,
        *,
        as_json: bool = True,
        surely_text: bool = False,
        scheduled: Literal["keep", "now", "drop"] = "keep",
        as_stranded: bool = False,
    ) -> None:
        if as_stranded and not as_json:
            raise UsageError("only lines of JSON can be sent as stranded", hint="add --format jsonl")
        self.ignored: set[str] = set()
        self.dropped, self.is_refused = 0, False
        self._as_json, self._scheduled, self._as_stranded = as_json, scheduled, as_stranded
        self._surely_text = surely_text
        self._lines, self._hash = 0, sha256()

    def read(self, line: bytes, *, skipped: bool = False) -> RawMessage | None:
        """Return the message of a line; None if it is not to be sent. Raises UsageError."""
        try:
            return self._read(line, skipped=skipped)
        except RecursionError:
            raise UsageError("the object is nested too deeply", hint=HINT) from None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(f"a value cannot be encoded: {error}", hint=TYPES_HINT) from None

    def _read(self, line: bytes, *, skipped: bool) -> RawMessage | None:
        if self._as_json and END.encode() in line and (end := dict(_object(line))).get("schema") == END:
            self._check_end(end)
            return None
        if not (self._lines or self._surely_text):
            self._check_form(line)
        self._lines += 1
        self._hash.update(line + b"\n")
        if skipped:
            return None
        return self._message(line) if self._as_json else _encoded(_with_id(Sections(body=data_body(line))))

    def _check_form(self, first: bytes) -> None:
        """Raise UsageError for messages that were printed in a form that is not sent, by their first line."""
        hint = f"print the messages with -o jsonl{'' if self._as_json else '; --format lines sends each line as it is'}"
        what = "a table that was printed" if _TABLE.match(first) else ""
        if first.rstrip() in (b"{", b"[") or first.endswith(b'"messages": ['):
            what = "a JSON document of several lines"
        elif not self._as_json and first.startswith(b'{"schema": "sbpair/'):
            what, hint = "a line of JSON that was printed", "add --format jsonl; --format lines sends it as text"
        if what:
            self.is_refused = True
            raise UsageError(f"it begins with {what}", hint=hint)

    def _check_end(self, end: dict[str, Any]) -> None:
        """Raise UsageError unless the lines before are those that were printed."""
        lines, digest, self._lines, self._hash = self._lines, self._hash.hexdigest(), 0, sha256()
        hint = "copy the file again, or take this line away to send the others; a pipe has sent them"
        self.is_refused = end.get("messages") != lines or end.get("sha256") != digest
        if end.get("messages") != lines:
            raise UsageError(
                f"it counts {end.get('messages')} messages and follows {lines}: some are missing", hint=hint
            )
        if self.is_refused:
            raise UsageError("the lines before it are not those that were printed: their SHA-256 differs", hint=hint)

    def _message(self, line: bytes) -> RawMessage | None:
        named = _named(_object(line))
        self.ignored |= {name for name in IGNORED & named.keys() if named[name] is not None}
        is_printed, has_id = "schema" in named, "message_id" in named
        _check_body(named)
        values = read_fields(JsonObject((name, value) for name, value in named.items() if name not in IGNORED))
        properties = values.get("properties", Map())
        self._check_aliases(properties)
        if not is_printed:
            _check(values, properties)
        if "scheduled" in values and self._scheduled != "keep":
            if self._scheduled == "drop":
                self.dropped += 1
                return None
            del values["scheduled"]
        made = sections_of(values)
        return _encoded(
            made if "message_id" in values or (is_printed and has_id) else _with_id(made),
            values.get("ttl"),
            frozenset(CAUSE) if is_printed else frozenset(),
        )

    def _check_aliases(self, properties: Map) -> None:
        if self._as_stranded:
            if PATH not in properties:
                raise UsageError(f"it has no property {PATH}: it is no message of a backlog queue", hint=_AS_STRANDED)
            return
        for name in properties:
            try:
                check_unreserved(name)
            except UsageError as error:
                raise UsageError(error.message, hint=f"{error.hint}; {_AS_STRANDED}") from None


_AS_STRANDED: Final = "--as-stranded is for lines of a backlog queue"


def _with_id(sections: Sections) -> Sections:
    properties = sections.read_properties()
    properties.message_id = str(uuid.uuid4())
    sections.properties = properties.encode()
    return sections


def _encoded(sections: Sections, ttl_ms: int | None = None, removed: frozenset[str] = frozenset()) -> RawMessage:
    """Return the message as a move sends it: its time to live begins anew."""
    send = Send("", None, alias_life_ms(ttl_ms, Properties()), None)
    try:
        payload = restore(sections, send, int(time.time() * 1000), MessageForm(removed, ""))
        key = BatchKey(sections.read_properties().group_id, partition_key(sections))
    except ProtocolError as error:
        raise UsageError(f"a section cannot be read: {error.message}", hint="leave sections out") from None
    return RawMessage(payload, payload, key)


def _object(line: bytes) -> JsonObject:
    try:
        found = _DECODER.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError("the line is not UTF-8", hint="save it as UTF-8, or give the body as body_base64") from None
    except json.JSONDecodeError as error:
        detail = f"{error.msg[0].lower()}{error.msg[1:]}"
        raise UsageError(f"the line is not JSON: {detail} (column {error.colno})", hint=HINT) from None
    except ValueError:
        raise UsageError("a number has more digits than a property can hold", hint=HINT) from None
    if not isinstance(found, JsonObject):
        raise UsageError(f"expected a JSON object, got {kind_of(found)}", hint=HINT)
    return found


def _constant(name: str) -> float:
    raise UsageError(f"{name} is not JSON", hint=HINT)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=JsonObject, parse_constant=_constant)


def _named(members: JsonObject) -> dict[str, Any]:
    """Return the members by the names of their fields. Raises UsageError for an unknown field."""
    found: dict[str, Any] = {}
    for name, value in members:
        plain = name.lower().replace("_", "").replace("-", "")
        field = _SPELLINGS.get(plain)
        if field is None:
            close = difflib.get_close_matches(plain, _SPELLINGS, 1)
            expected = (
                f"did you mean {_SPELLINGS[close[0]]}?" if close else f"expected one of body, {', '.join(FIELDS)}"
            )
            raise UsageError(
                f"unknown field {shown(name)}; {expected}", hint=f"{HINT}; your own names go into properties"
            )
        if field in found:
            raise UsageError(f"{field}: given twice", hint=HINT)
        found[field] = value
    return found


def _check_body(named: dict[str, Any]) -> None:
    """Raise UsageError unless there is one body. A null is a value's, or stands for bytes that are there."""
    given = [name for name in BODIES if named.get(name) is not None]
    if "body_text" in named and "body_base64" not in given:
        hint = "body_text is what body_base64 holds, for reading: give the bytes too, or send the text as body"
        raise UsageError("body_text without body_base64", hint=hint)
    if (
        named.get("body_kind") is None
        and not given
        and "body" in named
        and "body" not in dict(named.get("sections") or ())
    ):
        raise UsageError("body: expected text, got null", hint=HINT)
    if len(given) > 1 or not any(name in named for name in BODIES):
        raise UsageError("expected one body, as body (text) or body_base64", hint=HINT)


def _check(values: dict[str, Any], properties: Map) -> None:
    """Raise UsageError for a message of a user that the service would refuse."""
    for name in NAMES:
        text = values.get(name)
        if text is not None and not 0 < len(text) <= MAX_ID:
            got = f"cannot be longer than {MAX_ID} characters" if text else "expected text, got an empty one"
            raise UsageError(f"{name}: {got}", hint="shorten it" if text else "omit it, or give a value")
    session, key = values.get("session_id"), values.get("partition_key")
    if None not in (session, key) and session != key:
        raise UsageError(
            f"partition_key {shown(key)} cannot be set to a different value than session_id", hint="omit it"
        )
    for name, value in properties.pairs:
        if not isinstance(name, str):
            raise UsageError(f"property {shown(name)}: its name is not text", hint=HINT)
        if isinstance(value, list | Map | Array):
            kind = "an object" if isinstance(value, Map) else "a list"
            raise UsageError(f"property {shown(name)}: {SCALARS}, got {kind}", hint=HINT)
    check_sizes(dict(properties.pairs))
