"""`sbpair schema`: prints the JSON Schema of a document or event line."""

import json

from sbpair.cli.options.common import argument
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.errors import UsageError

PREFIX, VERSION = "sbpair/", "/1"


def command(
    *,
    name: str | None = argument("[NAME]", "Name of a schema, such as sbpair/audit/1 or audit", default=None),
    screen: Screen,
) -> int:
    """Print the JSON Schema of an output document or event line.

    The key "schema" of each document and event names its schema (draft 2020-12). Without NAME, prints the names.

    Examples:
      sbpair schema
      sbpair schema syphon-event > syphon-event.schema.json
    """
    from sbpair.cli.schemas import all_schemas

    known = all_schemas()
    if name is None:
        entries = [{"name": each, "description": known[each]["description"]} for each in sorted(known)]
        rows = [(entry["name"], entry["description"].partition(". ")[0]) for entry in entries]
        screen.result("sbpair/schemas/1", {"schemas": entries}, columns([("NAME", "DESCRIPTION"), *rows]), entries)
        return 0
    full = name if name in known else f"{PREFIX}{name}{VERSION}"
    if full not in known:
        raise UsageError(f"{name!r} is not a schema", hint="run sbpair schema for the names")
    screen.write(json.dumps(known[full], indent=2))
    return 0
