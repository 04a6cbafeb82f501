"""Validation of every JSON document and event line of sbpair that a test parses."""

import json
from collections.abc import Iterator
from functools import cache
from threading import Lock
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sbpair.cli.schemas import all_schemas

PARSE = json.loads
BUILDING = Lock()


@cache
def _schemas() -> dict[str, Any]:
    return all_schemas()


def schemas() -> dict[str, Any]:
    with BUILDING:  # threads of a command may parse their first documents at once
        return _schemas()


@cache
def validator_of(name: str) -> Draft202012Validator:
    return Draft202012Validator(schemas()[name])


def parse_validated(text: str | bytes, *arguments: Any, **options: Any) -> Any:
    """Parse JSON like `json.loads`; a document of sbpair must match the schema that it names."""
    document = PARSE(text, *arguments, **options)
    # Files of an archive name schemas of their own.
    if isinstance(document, dict) and document.get("schema") in schemas():
        errors = [
            f"{error.json_path}: {error.message}" for error in validator_of(document["schema"]).iter_errors(document)
        ]
        assert not errors, "\n".join(errors)
    return document


@pytest.fixture(scope="session", autouse=True)
def _documents_match_their_schemas() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", parse_validated)
        yield
