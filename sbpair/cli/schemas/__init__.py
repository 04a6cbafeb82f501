"""JSON Schemas of every document and event line that a command prints (draft 2020-12), from the keys of classes."""

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from functools import cache, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sbpair.model.document import DOCUMENTS, SPREAD, encoded, first_line, hints_of, keys_of

MODULES = tuple(
    f"sbpair.{name}"
    for name in (
        *(f"cli.results.{name}" for name in ("moving", "forecast", "documents", "management", "status", "relay")),
        *("cli.results.partition", "cli.results.runs", "cli.results.replay", "cli.results.messages"),
        *(
            f"cli.commands.{name}"
            for name in ("config", "doctor", "entities", "export", "gateway", "page", "service", "sessions")
        ),
        *("drill", "drill.gateway_drill", "drill.relay_drill", "message_io.send_lines", "planning.outage_cost"),
        *("cli.results.emulator", "replay.package", "cli.schemas.events"),
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


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


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
    """Return the schema of an object with exactly the keys of a class."""
    keys = schemas_of_keys(kind)
    if kind in DOCUMENTS:
        keys = {"schema": (schema_name(DOCUMENTS[kind].name), True), **keys}
    return {
        "type": "object",
        "description": first_line(get_origin(kind) or kind),
        "properties": {name: schema for name, (schema, _) in keys.items()},
        "required": [name for name, (_, is_required) in keys.items() if is_required],
        "additionalProperties": False,
    }


def schemas_of_keys(kind: Any) -> dict[str, tuple[Schema, bool]]:
    """Return the keys of a class by their name, each with whether an object must have it."""
    found: dict[str, tuple[Schema, bool]] = {}
    for key in keys_of(kind):
        if key.description == SPREAD:
            found |= _spread(key.kind, key.keywords)
            continue
        keywords = dict(key.keywords)
        required, is_omitted, *_ = (keywords.pop(name, None) for name in ("required", "omitted", "name", "digits"))
        own = keywords.pop("stored", _without_none(key.kind) if is_omitted else key.kind)
        own = (str | None if is_nullable(own) else str) if "format" in keywords else own
        schema = ({} if keywords.keys() & {"const", "enum"} else typed(own)) | {"description": key.description}
        schema |= {name: object_of(each) if isinstance(each, type) else each for name, each in keywords.items()}
        found[key.name] = schema, required is None
    return found


def _spread(kind: Any, lists: Mapping[str, Any]) -> dict[str, tuple[Schema, bool]]:
    """Return the keys of a value that stand for it: of `lists` with their descriptions, or of an object."""
    own = _without_none(kind)
    texts = {str(name): (typed(get_args(own)[1]) | {"description": text}, True) for name, text in lists.items()}
    may_lack = is_nullable(kind)
    keys = texts or schemas_of_keys(own)
    return {name: (schema, required and not may_lack) for name, (schema, required) in keys.items()}


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
    hint = hints_of(kind)[attribute]
    item = get_args(hint.__origin__ if get_origin(hint) is Annotated else hint)[0]
    return get_args(item) if get_origin(item) in (Union, UnionType) else (item,)


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
