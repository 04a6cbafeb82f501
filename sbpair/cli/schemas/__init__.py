"""JSON Schemas of every document and event line that a command prints."""

from functools import cache

from sbpair.cli.schemas.builders import Schema


@cache
def all_schemas() -> dict[str, Schema]:
    """Return every schema by its name, such as `sbpair/audit/1`."""
    from sbpair.cli.schemas import events, moves, namespaces, replays, tools

    parts = (namespaces.SCHEMAS, moves.SCHEMAS, replays.SCHEMAS, events.SCHEMAS, tools.SCHEMAS)
    return {schema["title"]: schema for part in parts for schema in part}
