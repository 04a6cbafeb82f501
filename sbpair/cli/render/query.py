"""Parts of a JSON document: found by a query in JMESPath, and as lines of values that tabs separate."""

import json
from collections.abc import Iterator
from typing import Any

from sbpair.errors import UsageError, nearest_hint

REFERENCE = "see https://jmespath.org; quote it for the shell, as in --query 'messages[0].id'"


class Query:
    """A query in JMESPath. Raises UsageError if it is malformed, or calls an unknown function."""

    def __init__(self, text: str) -> None:
        import jmespath

        try:
            self._query = jmespath.compile(text)
        except jmespath.exceptions.JMESPathError as error:
            raise UsageError(f"--query: {str(error).splitlines()[0].rstrip(': ')}", hint=REFERENCE) from error
        known = jmespath.functions.Functions.FUNCTION_TABLE
        if unknown := [each for each in _functions(self._query.parsed) if each not in known]:
            hint = nearest_hint(unknown[0], known, REFERENCE)
            raise UsageError(f"--query: {unknown[0]!r} is not a function of JMESPath", hint=hint)

    def found(self, document: object) -> Any:
        """Return the value that it finds in a document; None for none. Raises UsageError if it cannot be applied."""
        from jmespath.exceptions import JMESPathError

        try:
            return self._query.search(document)
        except JMESPathError as error:
            hint = "the command has run; try the query on -o json"
            raise UsageError(f"--query: {str(error).splitlines()[0]}", hint=hint) from error


def _functions(node: dict[str, Any]) -> Iterator[str]:
    if node["type"] == "function_expression":
        yield node["value"]
    for child in node["children"]:
        yield from _functions(child) if isinstance(child, dict) else ()


def tab_separated(rows: list[Any]) -> Iterator[str]:
    """Yield a line for each row: its values, separated by tabs. The name of a schema is left out."""
    for row in rows:
        cells = [each for key, each in row.items() if key != "schema"] if isinstance(row, dict) else row
        yield "\t".join(map(_cell, cells if isinstance(cells, list) else [cells]))


def _cell(value: object) -> str:
    """Return text as it is, on one line, and other values as JSON; nothing for null."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return " ".join(text.splitlines()).replace("\t", " ")
