"""JSON Schemas of every document and event line that a command prints."""

from functools import cache
from importlib import import_module

from sbpair.cli.schemas.builders import Schema

MODULES = ("moves", "other_commands")
"""The second one takes longer to load: the classes of its results are beside clients."""


@cache
def _schemas_in(module: str) -> dict[str, Schema]:
    values = vars(import_module(f"{__name__}.{module}")).values()
    return {each["title"]: each for each in values if isinstance(each, dict) and "$schema" in each}


def find_schema(name: str) -> Schema | None:
    """Return the schema of that name, such as `sbpair/audit/1`; None if there is none."""
    return next((found[name] for found in map(_schemas_in, MODULES) if name in found), None)


def all_schemas() -> dict[str, Schema]:
    """Return every schema by its name."""
    return {name: schema for module in MODULES for name, schema in _schemas_in(module).items()}
