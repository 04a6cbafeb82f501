"""Documents: the keys and JSON of a result, and its schema, follow from the annotations of its class.

A field or property with a description, `Annotated[int, "Messages"]`, is a key of the document; all others are not. A
third annotation has keywords of the schema, or one of the marks below. Invariant: nothing here does I/O.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from sbpair.errors import SbpairError
from sbpair.timespan import utc

LATER = {"required": False}
"""Documents of earlier versions may lack the key."""

UNLESS_NONE = {"required": False, "omitted": "none"}
OMITTED = {"required": False, "omitted": "empty"}
"""The key is left out while its value is None or false; with OMITTED, also an empty one."""

TIME = {"format": "date-time"}
"""The value is a time, such as `2026-11-22T10:15:00Z`; of an integer, that many ms since 1970."""

# {"name": "from"} is another name of the key than that of the attribute.

# {"digits": N} rounds a number.
# {"stored": Kind} is for a value that is the JSON of that kind already.

SPREAD = "*"
"""In place of a description: the keys of the value stand for it."""

Result = TypeVar("Result")
DOCUMENTS: dict[type, "DocumentForm"] = {}
"""A name may have several classes, which are its forms."""


@dataclass(frozen=True, slots=True)
class DocumentForm:
    """A document called `name`, and the attributes whose items are its JSON Lines; it is its own line without any."""

    name: str
    kind: type
    lines: tuple[str, ...]
    summary: str


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def document(
    name: str, *lines: str, summary: str = "", kw_only: bool = False
) -> Callable[[type[Result]], type[Result]]:
    """Make a class a frozen dataclass, and the document called `name`, such as `sbpair/audit/1`, or one of its forms.

    The summary of the first form is that of the document; the default is the first line of the docstring.
    """

    def register(kind: type[Result]) -> type[Result]:
        made = dataclass(frozen=True, slots=True, kw_only=kw_only)(kind)
        DOCUMENTS[made] = DocumentForm(name, made, lines, summary or first_line(made))
        return made

    return register


def first_line(kind: type) -> str:
    return str(kind.__doc__).partition("\n")[0]


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A key of a document, and the attribute that has its value."""

    attribute: str
    kind: Any
    description: str
    keywords: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.keywords.get("name", self.attribute))


@cache
def keys_of(kind: Any) -> tuple[DocumentKey, ...]:
    """Return the keys of a class, also a generic one of other classes: of its fields, then of its properties."""
    annotated = {name: each for name, each in hints_of(kind).items() if get_origin(each) is Annotated}
    return tuple(
        DocumentKey(name, each.__origin__, each.__metadata__[0], _merged(each)) for name, each in annotated.items()
    )


def hints_of(kind: Any) -> dict[str, Any]:
    """Return the annotations of the fields and properties of a class."""
    generic = get_origin(kind)
    if generic:
        bound = dict(zip(generic.__parameters__, get_args(kind), strict=True))
        return {name: _of(each, bound) for name, each in hints_of(generic).items()}
    hints = get_type_hints(kind, include_extras=True)
    for name, found in ((name, found) for each in reversed(kind.__mro__) for name, found in vars(each).items()):
        if isinstance(found, property) and "return" in found.fget.__annotations__:
            hints[name] = get_type_hints(found.fget, include_extras=True)["return"]
    return hints


def _of(hint: Any, bound: Mapping[Any, Any]) -> Any:
    """Return an annotation with other kinds in place of its variables."""
    variables = getattr(hint, "__parameters__", ())
    return hint[tuple(bound[each] for each in variables)] if variables else hint


def _merged(annotated: Any) -> dict[str, Any]:
    return {name: value for keywords in annotated.__metadata__[1:] for name, value in keywords.items()}


def event_name(kind: type) -> str:
    """Return the name of an event in a log: `queue-done` of QueueDone."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def encode_lines(result: Any) -> Iterator[dict[str, Any]]:
    """Yield the JSON Lines of a document: the items of its lists, or else itself."""
    form = DOCUMENTS[type(result)]
    for name in form.lines:
        for item in getattr(result, name):
            yield {"schema": form.name, **encoded(item)}
    if not form.lines:
        yield encoded(result)


def encoded(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case Enum():
            return value.value
        case Decimal():
            return float(value)
        case PurePath():
            return str(value)
        case Mapping():
            return {str(key): encoded(each) for key, each in value.items()}
        case None | str() | int() | float():
            return value
        case Set():
            return sorted(map(encoded, value))
        case list() | tuple() | Iterator() if not hasattr(value, "_fields"):
            return list(map(encoded, value))
    kind: type = type(value)
    own = {"schema": DOCUMENTS[kind].name} if kind in DOCUMENTS else {}
    return own | dict(_items(value, keys_of(kind)))


def _items(value: Any, keys: tuple[DocumentKey, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        found = getattr(value, key.attribute)
        if key.description == SPREAD:
            yield from {} if found is None else encoded(found).items()
        elif not _is_omitted(found, key.keywords.get("omitted")):
            yield key.name, _shown(key, found)


def _shown(key: DocumentKey, found: Any) -> Any:
    """Return the value of a key as JSON: durations and growth with three decimals, and ratios with six."""
    if isinstance(found, int) and "format" in key.keywords:
        return utc(found / 1000)
    if not isinstance(found, float):
        return encoded(found)
    usual = 3 if key.name.endswith(("seconds", "bytes_per_second")) else 6 if key.name.endswith("ratio") else None
    digits = key.keywords.get("digits", usual)
    return found if digits is None else round(found, digits or None)


def _is_omitted(value: Any, mark: str | None) -> bool:
    return mark is not None and (value is None or value is False or (mark == "empty" and value in ("", ())))


class Failing:
    """The keys of an answer that may be an `error`."""

    __slots__ = ()
    error: SbpairError | None

    @property
    def reason(self) -> Annotated[str, "What is wrong; may be empty"]:
        return self.error.message if self.error else ""

    @property
    def hint(self) -> Annotated[str, "What to do about it; may be empty"]:
        return self.error.hint if self.error else ""
