"""JSON Schemas of every document and event line that a command prints, and their builders (draft 2020-12).

The schema of a class follows from its keys, which `model.document` describes. A builder returns a schema as plain
values: of an event line, and of a document that is written as a dict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sbpair.model import document as documents
from sbpair.model.document import DOCUMENTS, SPREAD, encoded, first_line
from sbpair.move.events import SyphonEvent, name_and_level

MODULES = tuple(
    f"sbpair.{name}"
    for name in (
        *("cli.schemas.moves", "planning.outage_cost", "replay.package"),
        *(f"cli.results.{name}" for name in ("documents", "moving", "management", "status", "relay", "partition")),
        *(f"cli.commands.{name}" for name in ("config", "doctor", "export", "gateway", "page", "service")),
        *("drill", "drill.gateway_drill", "drill.relay_drill", "message_io.send_lines", "cli.results.messages"),
        *("cli.results.replay", "cli.results.runs", "cli.results.emulator", "cli.schemas.other_commands"),
    )
)
"""The later ones take longer to load: the classes of their results are beside clients."""

Schema = dict[str, Any]
SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: dict[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number"},
    Decimal: {"type": "number"},
    bool: {"type": "boolean"},
    object: {},
    Path: {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class Optional:
    """A key that an object may lack."""

    schema: Schema


def text(description: str, *, example: str = "") -> Schema:
    return {"type": "string", "description": description, **({"examples": [example]} if example else {})}


def time(description: str) -> Schema:
    return {"type": "string", "format": "date-time", "description": f"{description}, in UTC"}


def count(description: str) -> Schema:
    return {"type": "integer", "minimum": 0, "description": description}


def number(description: str) -> Schema:
    return {"type": "number", "description": description}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def choice(description: str, *values: str) -> Schema:
    return {"enum": list(values), "description": description}


def array(description: str, item: Schema) -> Schema:
    return {"type": "array", "description": description, "items": item}


def mapping(description: str, value: Schema) -> Schema:
    """Return the schema of an object whose keys are data."""
    return {"type": "object", "description": description, "additionalProperties": value}


def fields(**properties: Schema | Optional) -> dict[str, Schema | Optional]:
    """Return keys that several objects share."""
    return properties


def record(summary: str, /, **properties: Schema | Optional) -> Schema:
    """Return the schema of an object with exactly these keys."""
    return {
        "type": "object",
        **({"description": summary} if summary else {}),
        "properties": {key: each.schema if isinstance(each, Optional) else each for key, each in properties.items()},
        "required": [key for key, each in properties.items() if not isinstance(each, Optional)],
        "additionalProperties": False,
    }


def records(description: str, /, **properties: Schema | Optional) -> Schema:
    """Return the schema of an array of objects with exactly these keys."""
    return array(description, record("", **properties))


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def optional(schema: Schema | Optional) -> Optional:
    return schema if isinstance(schema, Optional) else Optional(schema)


def typed(kind: Any) -> Schema:
    """Return the schema of a type; of a dataclass, that of an object with its fields."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, description, *keywords = arguments
        return typed(inner) | {"description": description} | (keywords[0] if keywords else {})
    if is_nullable(kind):
        return nullable(typed(_without_none(kind)))
    if origin is Literal:
        return {"enum": list(map(encoded, arguments))}
    if origin in (Union, UnionType):
        return SCALAR if str in arguments else {"anyOf": list(map(typed, arguments))}
    if origin is tuple and Ellipsis not in arguments:
        return {"type": "array", "prefixItems": list(map(typed, arguments)), "items": False, "minItems": len(arguments)}
    if origin in (list, tuple, frozenset):
        return {"type": "array", "items": typed(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": typed(arguments[1])}
    if kind in PLAIN:
        return PLAIN[kind]
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    return {"enum": [each.value for each in kind]} if is_enum else object_of(kind)


def object_of(kind: Any) -> Schema:
    """Return the schema of an object with the keys of a class."""
    own = {"schema": schema_name(DOCUMENTS[kind].name)} if kind in DOCUMENTS else {}
    return record(first_line(kind), **own, **properties_of(kind))


def properties_of(kind: Any) -> dict[str, Any]:
    """Return the keys of a class by their name."""
    found: dict[str, Any] = {}
    for key in documents.keys_of(kind):
        if key.description == SPREAD:
            found |= _spread(key.kind, key.keywords)
            continue
        keywords = dict(key.keywords)
        required, is_omitted, _ = (keywords.pop(name, None) for name in ("required", "omitted", "name"))
        own = _without_none(key.kind) if is_omitted else key.kind
        own = keywords.pop("stored", own)
        own = (str | None if is_nullable(own) else str) if "format" in keywords else own
        schema = ({} if keywords.keys() & {"const", "enum"} else typed(own)) | {"description": key.description}
        schema |= {name: object_of(each) if isinstance(each, type) else each for name, each in keywords.items()}
        found[key.name] = schema if required is None else Optional(schema)
    return found


def _spread(kind: Any, lists: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a value that stand for it: of `lists` with their descriptions, or of an object."""
    if lists:
        return {str(name): typed(get_args(kind)[1]) | {"description": text} for name, text in lists.items()}
    keys = properties_of(_without_none(kind))
    return {name: optional(each) for name, each in keys.items()} if is_nullable(kind) else keys


def _without_none(kind: Any) -> Any:
    return reduce(or_, (each for each in get_args(kind) if each is not NoneType)) if is_nullable(kind) else kind


def is_nullable(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)


def schema_of(name: str) -> Schema:
    """Return the schema of a document, and of its JSON Lines."""
    found = [each for each in DOCUMENTS.values() if each.name == name]
    lines = [line for each in found for attribute in each.lines for line in _item_kinds(each.kind, attribute)]
    return forms(name, found[0].summary, *map(object_of, dict.fromkeys([*(each.kind for each in found), *lines])))


def _item_kinds(kind: type, attribute: str) -> tuple[Any, ...]:
    """Return the kinds of the items of an attribute."""
    hint = documents.hints_of(kind)[attribute]
    item = get_args(hint.__origin__ if get_origin(hint) is Annotated else hint)[0]
    return get_args(item) if get_origin(item) in (Union, UnionType) else (item,)


def keys_of(kind: Any, *later: str) -> dict[str, Any]:
    """Return the keys of a class by their name. Stored documents of earlier versions may lack the `later` ones."""
    keys = properties_of(kind)
    return keys | {name: Optional(keys[name]) for name in later}


def some_of(kind: Any, *names: str) -> dict[str, Any]:
    """Return keys of a class by their names."""
    keys = properties_of(kind)
    return {name: keys[name] for name in names}


def event(kind: str, severity: str = "info", /, **properties: Schema | Optional) -> Schema:
    """Return the schema of an event line."""
    level, name = choice("Level", severity), choice("Kind of event", kind)
    return record(f"The event {kind}", time=time("Time of the line"), level=level, event=name, **properties)


def event_of(kind: "type[SyphonEvent]", **more: Schema | Optional) -> Schema:
    """Return the schema of the line of an event, which has `more` keys."""
    return event(*name_and_level(kind), **keys_of(kind), **more)


def document(title: str, summary: str, /, *lines: Schema | str, **properties: Any) -> Schema:
    """Return the schema of a document with these keys, and of its JSON Lines where they differ from it.

    The name of a list stands for lines of its items.
    """
    items = (properties[each]["items"] if isinstance(each, str) else each for each in lines)
    return forms(title, summary, record("The document", **properties), *items)


def schema_name(name: str) -> Schema:
    return {"const": name, "description": "Name and version of this schema"}


def forms(name: str, description: str, *records: Schema, **more: Schema) -> Schema:
    """Return the schema of a document or line called `name`, in one of several forms, with `more` optional keys."""
    own = {"schema": schema_name(name), **more}
    named = [
        {
            **each,
            "properties": own | each["properties"],
            "required": list(dict.fromkeys(["schema", *each["required"]])),
        }
        for each in records
    ]
    body = named[0] if len(named) == 1 else {"anyOf": named}
    return {"$schema": DIALECT, "title": name, **body, "description": description}


@cache
def _schemas_in(module: str) -> dict[str, Schema]:
    values = vars(import_module(module)).values()
    written = {each["title"]: each for each in values if isinstance(each, dict) and "$schema" in each}
    return written | {each.name: schema_of(each.name) for each in DOCUMENTS.values()}


def find_schema(name: str) -> Schema | None:
    """Return the schema of that name, such as `sbpair/audit/1`; None if there is none."""
    return next((found[name] for found in map(_schemas_in, MODULES) if name in found), None)


def all_schemas() -> dict[str, Schema]:
    """Return every schema by its name."""
    return {name: schema for module in MODULES for name, schema in _schemas_in(module).items()}
