"""Generate `specification.json` from the XML of AMQP 1.0, as the Debian package `amqp-specs` installs it.

python -m tests.strict_amqp.generate /usr/share/amqp/specs/1-0
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

TABLE = Path(__file__).with_name("specification.json")
PARTS = ("types", "transport", "messaging", "transactions", "security")
NOTICE = (
    "From the XML of OASIS AMQP 1.0 (C) its authors, 2006-2011, under the BSD licence: see their notice in those files."
)


def table(directory: Path) -> dict[str, Any]:
    """Return {"encodings": {code: [type, category, width]}, "types": {name: definition}}."""
    encodings: dict[str, list[Any]] = {}
    types: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        root = ET.parse(directory / f"{part}.bare.xml").getroot()  # noqa: S314  a file of a package
        for each in root.findall(".//{*}type"):
            name = each.attrib["name"]
            for encoding in each.findall("{*}encoding"):
                encodings[encoding.attrib["code"]] = [name, encoding.attrib["category"], int(encoding.attrib["width"])]
            if each.attrib["class"] != "primitive":
                types[name] = _definition(each)
    return {"notice": NOTICE, "encodings": encodings, "types": types}


def _definition(each: ET.Element) -> dict[str, Any]:
    found: dict[str, Any] = {"source": each.attrib["source"]}
    if provides := each.attrib.get("provides"):
        found["provides"] = provides.split(", ")
    for descriptor in each.findall("{*}descriptor"):
        high, low = descriptor.attrib["code"].split(":")
        found["descriptor"] = [descriptor.attrib["name"], int(high, 16) << 32 | int(low, 16)]
    if each.attrib["class"] == "composite":
        found["fields"] = [_field(field.attrib) for field in each.findall("{*}field")]
    if choices := [choice.attrib["value"] for choice in each.findall("{*}choice")]:
        found["choices"] = choices
    return found


def _field(given: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": given["name"], "type": given["type"]}
    if "requires" in given:
        found["requires"] = given["requires"]
    for flag in ("mandatory", "multiple"):
        if given.get(flag) == "true":
            found[flag] = True
    return found


def text(found: dict[str, Any]) -> str:
    """Return a table with a line for each type and encoding."""
    lines = []
    for part in ("encodings", "types"):
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in found[part].items())
        lines.append(f'  "{part}": {{\n{rows}\n  }}')
    return f'{{\n  "notice": {json.dumps(found["notice"])},\n' + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(table(Path(sys.argv[1]))))
