"""Messages described in a file: JSON, or JSON lines, as text into what they are.

Whatever is wrong with it is told with its line and column. Unknown properties are no fault: a message has many.
"""

import difflib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sbpair.errors import MachineLacks, UsageError
from sbpair.partition_key import Message

STDIN = "-"
# How the SDKs, AMQP and the portal spell them, without regard to case, '_' and '-'.
SPELLINGS = {
    "sessionid": "session_id",
    "groupid": "session_id",
    "partitionkey": "partition_key",
    "xoptpartitionkey": "partition_key",
    "messageid": "message_id",
}
_OTHERS = ("viapartitionkey", "transactionpartitionkey")
"""Properties of their own, which look like others."""
_ALIKE = 0.88
_HINT = 'each message is an object such as {"session_id": "a", "partition_key": "a", "message_id": "1"}'
_KINDS: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", list: "a list"}


@dataclass(frozen=True, slots=True)
class Read:
    """A message, the line where it begins, and its names that may be slips of the pen, with what was meant."""

    message: Message
    line: int
    slips: tuple[tuple[str, str], ...] = ()


def text_of(name: str) -> str:
    """What the file `name` holds, or stdin for `-`. Raises UsageError, and MachineLacks where it may not be read."""
    try:
        raw = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no file {name}", hint="check the path; - is stdin") from None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}", hint="name a file; - is stdin") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineLacks(f"{name} cannot be read: {reason}", hint="check its permissions") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}, line {line}: it is not UTF-8", hint="save it as UTF-8") from error


def read(text: str, place: str) -> list[Read]:
    """The messages of `text`: one object, a list of them, or objects one after the other. Raises UsageError."""
    reader = _Reader(text, place)
    try:
        return list(reader.messages())
    except json.JSONDecodeError as error:
        # Python's words begin with a capital and name no place that is not in the numbers.
        reader.refuse(error.pos, f"it is not JSON: {error.msg[0].lower()}{error.msg[1:]}")
    except RecursionError:
        raise UsageError(f"{place}: it is nested too deeply", hint=_HINT) from None


class _Object:
    """An object of JSON as it is written: with names that stand twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


class _Reader:
    def __init__(self, text: str, place: str) -> None:
        self._text = text
        self._place = place
        # No number is wanted, so none is calculated, however many digits it has.
        self._decoder = json.JSONDecoder(object_pairs_hook=_Object, parse_int=float)
        self._line, self._counted = 1, 0

    def refuse(self, at: int, what: str) -> NoReturn:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        raise UsageError(f"{self._place}, line {line}, column {column}: {what}", hint=_HINT)

    def messages(self) -> Iterator[Read]:
        at = self._after_space(0)
        if self._has("[", at):
            yield from self._list(at)
            return
        if at == len(self._text):
            raise UsageError(f"{self._place} is empty", hint=_HINT)
        while at < len(self._text):
            message, at = self._message(at)
            yield message

    def _list(self, at: int) -> Iterator[Read]:
        at = self._after_space(at + 1)
        more = not self._has("]", at)
        while more:
            message, at = self._message(at)
            yield message
            more = self._has(",", at)
            if not (more or self._has("]", at)):
                self.refuse(at, "a list goes on with ',' or ends with ']'")
            at = self._after_space(at + 1) if more else at
        if (rest := self._after_space(at + 1)) < len(self._text):
            self.refuse(rest, "there is something after the end of the list")

    def _message(self, at: int) -> tuple[Read, int]:
        """The message at a place, and where what follows it begins."""
        value, end = self._decoder.raw_decode(self._text, at)
        if not isinstance(value, _Object):
            self.refuse(at, f"a message is an object, and this is {_kind(value)}")
        found: dict[str, str | None] = {}
        for name, said in value.pairs:
            known = SPELLINGS.get(_plain(name))
            if known in found:
                self.refuse(at, f"the message that begins here has its {known} twice")
            if known and not (said is None or isinstance(said, str)):
                self.refuse(at, f"the {known} of the message that begins here must be text, and is {_kind(said)}")
            if known:
                found[known] = said  # type: ignore[assignment]  # which was checked
        slips = tuple((name, meant) for name, _said in value.pairs if (meant := _meant(name)))
        return Read(Message(**found), self._line_of(at), slips), self._after_space(end)

    def _line_of(self, at: int) -> int:
        """Counted on from the message before, since a file may have many."""
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line

    def _has(self, mark: str, at: int) -> bool:
        return self._text.startswith(mark, at)

    def _after_space(self, at: int) -> int:
        while at < len(self._text) and self._text[at] in " \t\r\n":
            at += 1
        return at


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _meant(name: str) -> str | None:
    """Which property a name that counts for nothing may be a slip of."""
    plain = _plain(name)
    if plain in SPELLINGS or plain in _OTHERS:
        return None
    close = difflib.get_close_matches(plain, SPELLINGS, 1, _ALIKE)
    return SPELLINGS[close[0]] if close else None


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null" if value is None else "text")
