"""`sbpair schema`, and the schemas themselves."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sbpair.cli.schemas import all_schemas
from tests.cli.test_golden import sbpair
from tests.kit.json_schemas import parse_validated

SOURCE = Path(__file__).parents[2] / "sbpair"
PUBLISHED = Path(__file__).parent / "published_schemas.json"
"""What programs rely on: every schema without its descriptions. `python tests/cli/test_golden.py` writes it again."""


def objects(schema: Any) -> list[dict[str, Any]]:
    """Return every schema of an object with known keys, in a schema."""
    children = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    found = [each for child in children for each in objects(child)]
    return [*found, schema] if isinstance(schema, dict) and "type" in schema and "properties" in schema else found


def published(schemas: dict[str, Any]) -> str:
    """Return a JSON object with a line for each schema."""
    lines = [f'"{name}": {json.dumps(without_texts(schemas[name]), sort_keys=True)}' for name in sorted(schemas)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def without_texts(schema: Any) -> Any:
    """Return a schema without descriptions and examples; keys named so remain. Lists are sorted."""
    match schema:
        case {"properties": properties}:
            rest = without_texts({key: value for key, value in schema.items() if key != "properties"})
            return rest | {"properties": {key: without_texts(value) for key, value in properties.items()}}
        case dict():
            return {key: without_texts(schema[key]) for key in schema.keys() - {"description", "examples"}}
        case list():
            # Neither the order of required keys nor that of alternatives matters.
            return sorted(map(without_texts, schema), key=lambda each: json.dumps(each, sort_keys=True))
    return schema


def test_the_schemas_are_as_they_were_last_agreed() -> None:
    assert json.loads(published(all_schemas())) == json.loads(PUBLISHED.read_text()), (
        "if they should change: python tests/cli/test_golden.py"
    )


@pytest.mark.parametrize("name", all_schemas())
def test_a_schema_is_valid_closed_and_described(name: str) -> None:
    schema = all_schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["description"]
    for each in objects(schema):
        assert each["additionalProperties"] is False
        assert [
            key for key, value in each["properties"].items() if "description" not in value and "anyOf" not in value
        ] == []


def test_every_schema_named_in_the_code_exists() -> None:
    cli, code = ("\n".join(path.read_text() for path in each.rglob("*.py")) for each in (SOURCE / "cli", SOURCE))
    named = {*re.findall(r'"(sbpair/[a-z-]+/\d)"', cli), *re.findall(r'@document\(\s*"(.*?)"', code)}
    assert named == set(all_schemas())


def test_without_a_name_all_are_listed() -> None:
    document = json.loads(sbpair("schema", "-o", "json").stdout)
    assert [each["name"] for each in document["schemas"]] == sorted(all_schemas())


@pytest.mark.parametrize("name", ["audit", "sbpair/audit/1"])
def test_a_schema_is_printed_by_its_short_or_full_name(name: str) -> None:
    printed = sbpair("schema", name).stdout
    assert json.loads(printed) == all_schemas()["sbpair/audit/1"]


def test_the_tests_refuse_a_document_with_an_unknown_key() -> None:
    with pytest.raises(AssertionError, match="nope"):
        parse_validated('{"schema": "sbpair/schemas/1", "schemas": [], "nope": 1}')
