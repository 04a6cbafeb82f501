"""Templates of definitions and code: text files of the package, filled with values by escapes that they name.

The marks are those of Mustache, with an escape after a colon: `{{value:yaml}}`. `{{#name}}...{{/name}}` stands for each
item of a list or mapping, else for a value that is true; `{{^name}}...{{/name}}` for one that is not. `{{> file}}` is
another template, indented as its line is.

Invariant: a value is never read as a template.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

_MARK = re.compile(
    r"(?P<line>^ *)?{{(?P<kind>[#^])(?P<section>\w+)}}(?(line)\n)(?P<inner>.*?)(?(line)^ *){{/(?P=section)}}(?(line)\n)"
    r"|(?P<indent>^ *)?{{> (?P<file>[\w./-]+)(?::(?P<file_escape>\w+))?}}(?(indent)\n)"
    r"|{{(?P<name>\w+)(?::(?P<escape>\w+))?}}",
    re.DOTALL | re.MULTILINE,
)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')


def filled(package: str, file: str, values: Mapping[str, Any], **escapes: Callable[[Any], str]) -> str:
    """Return a template of a package's folder `templates`, filled with values. `escapes` are added to those here."""
    known = ESCAPES | escapes

    def fill(template: str, values: Mapping[str, Any]) -> str:
        return _MARK.sub(lambda mark: replacement(mark, values), template)

    def replacement(mark: re.Match[str], values: Mapping[str, Any]) -> str:
        if mark["section"]:
            scopes = _scopes(values[mark["section"]])
            scopes = scopes if mark["kind"] == "#" else [] if scopes else [{}]
            return "".join(fill(mark["inner"], {**values, **each}) for each in scopes)
        if mark["file"]:
            text = fill((files(package) / "templates" / mark["file"]).read_text("utf-8"), values)
            escape = mark["file_escape"]
            return known[escape](text) if escape else textwrap.indent(text, mark["indent"] or "")
        value = values[mark["name"]]
        return known[mark["escape"]](value) if mark["escape"] else str(value)

    return fill(f"{{{{> {file}}}}}", values)


def _scopes(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, Mapping):
        return [{"key": key, "value": each, "assignment": f"{key}={each}"} for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [each if isinstance(each, dict) else {"value": each} for each in value]
    return [{}] if value else []


def json_text(text: str) -> str:
    """Return a document of JSON in its usual layout. A comma may follow the last item."""
    document = json.loads(_TRAILING_COMMA.sub(lambda found: found[1] or "", text))
    return json.dumps(document, indent=2) + "\n"


def escaped_unless_printable(text: str) -> str:
    """Return a text in which `\\U0000202e` stands for a character that is not printable."""
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _double_quoted(text: str) -> str:
    return escaped_unless_printable(json.dumps(text, ensure_ascii=False)[1:-1])


def _systemd(text: str) -> str:
    """Return a word of an assignment in a unit: systemd.syntax(7)."""
    text = escaped_unless_printable(text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%"))
    return f'"{text}"' if re.search(r"[^\w@%+=:,./-]", text, re.ASCII) or not text else text


ESCAPES: dict[str, Callable[[Any], str]] = {
    # Between double quotes.
    "json": lambda text: json.dumps(text)[1:-1],
    "yaml": _double_quoted,
    "python": _double_quoted,
    # A dollar sign begins a variable, in Kubernetes only with a parenthesis.
    "compose": lambda text: _double_quoted(text.replace("$", "$$")),
    "kubernetes": lambda text: _double_quoted(text.replace("$(", "$$(")),
    # Words, with quotes where they need some. A dollar sign begins a variable in a command line of a unit only.
    "systemd": _systemd,
    "command": lambda text: _systemd(text).replace("$", "$$"),
    "shell": shlex.quote,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    # Names that a secret may have: in Azure Key Vault, and in Container Apps.
    "vault": lambda name: name.replace("_", "-"),
    "secret": lambda name: name.replace("_", "-").lower(),
}
