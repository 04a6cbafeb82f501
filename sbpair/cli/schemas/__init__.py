"""JSON Schemas of every document and event line that a command prints."""

from functools import cache

from sbpair.cli.schemas.builders import Schema


@cache
def all_schemas() -> dict[str, Schema]:
    """Return every schema by its name, such as `sbpair/audit/1`."""
    from sbpair.cli.schemas import moves, other_commands

    values = [*vars(moves).values(), *vars(other_commands).values()]
    return {each["title"]: each for each in values if isinstance(each, dict) and "$schema" in each}
