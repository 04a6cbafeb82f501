"""Documents: the keys and JSON of a result, and its schema, follow from the annotations of its class.

A field or property with a description, `Annotated[int, "Messages"]`, is a key of the document; all others are not. A
third annotation has keywords of the schema, or one of the marks below. Invariant: nothing here does I/O.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from sbpair.errors import SbpairError

LATER = {"required": False}
"""Documents of earlier versions may lack the key."""

OMITTED = {"required": False, "omitted": True}
"""The key is left out while it has no value, or an empty one."""

SPREAD = "*"
"""In place of a description: the keys of the value stand for it."""

Result = TypeVar("Result")
DOCUMENTS: list["DocumentForm"] = []
"""A name may have several classes, and a class several names."""


@dataclass(frozen=True, slots=True)
class DocumentForm:
    """A document called `name`, and the attributes whose items are its JSON Lines; it is its own line without any."""

    name: str
    kind: type
    lines: tuple[str, ...]
    summary: str


@dataclass_transform()
def document(name: str, *lines: str, summary: str = "") -> Callable[[type[Result]], type[Result]]:
    """Make a class a frozen dataclass, and the document called `name`, such as `sbpair/audit/1`, or one of its forms.

    The summary of the first form is that of the document; the default is the first line of the docstring.
    """

    def register(kind: type[Result]) -> type[Result]:
        made = dataclass(frozen=True, slots=True)(kind)
        DOCUMENTS.append(DocumentForm(name, made, lines, summary or first_line(made)))
        return made

    return register


def first_line(kind: type) -> str:
    return str(kind.__doc__).partition("\n")[0]


def described_as(result: object, name: str = "") -> DocumentForm:
    """Return the document of a result, of which a class may have several."""
    return next(each for each in DOCUMENTS if each.kind is type(result) and name in ("", each.name))


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A key of a document, and the attribute that has its value."""

    attribute: str
    kind: Any
    description: str
    keywords: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The attribute's name, of which `from_` has an underscore more."""
        return self.attribute.rstrip("_")


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
    return hint[tuple(bound[each] for each in variables)] if variables else bound.get(hint, hint)


def _merged(annotated: Any) -> dict[str, Any]:
    return {name: value for keywords in annotated.__metadata__[1:] for name, value in keywords.items()}


def encode_document(result: Any, described: "DocumentForm") -> dict[str, Any]:
    return {"schema": described.name, **encoded(result)}


def encode_lines(result: Any, described: "DocumentForm") -> Iterator[dict[str, Any]]:
    """Yield the JSON Lines of a result."""
    for name in described.lines or ("",):
        for item in getattr(result, name) if name else (result,):
            yield {"schema": described.name, **encoded(item)}


def encoded(value: Any) -> Any:
    """Return a value as JSON has it; durations and rates have three decimals."""
    match value:
        case Enum():
            return value.value
        case Decimal():
            return float(value)
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%SZ}"
        case Mapping():
            return {str(key): encoded(each) for key, each in value.items()}
        case None | str() | int() | float():
            return value
        case list() | tuple() | Set() | Iterator() if not hasattr(value, "_fields"):
            return list(map(encoded, value))
    kind: type = type(value)
    return dict(_items(value, keys_of(kind))) if keys_of(kind) else str(value)


def _items(value: Any, keys: tuple[DocumentKey, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        found = getattr(value, key.attribute)
        if key.description == SPREAD:
            yield from {} if found is None else encoded(found).items()
        elif not key.keywords.get("omitted") or not (found is None or found is False or found in ("", ())):
            is_rounded = isinstance(found, float) and key.name.endswith(("seconds", "per_second"))
            yield key.name, round(found, 3) if is_rounded else encoded(found)


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
