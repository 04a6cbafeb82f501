"""Jinja's templates in packages' folders `templates`, and filters that escape values for their languages.

`{{ value | yaml }}` is a whole literal, with its quotes. In HTML every value is escaped.

Invariant: a value is never read as a template.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def filled(package: str, file: str, /, **values: Any) -> str:
    """Return a template of a package, filled with values."""
    return _environment(package).get_template(file).render(values)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(ESCAPES)
    return environment


def _escaped_unless_printable(text: str) -> str:
    """Return a text in which `\\U0000202e` stands for a character that is not printable."""
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _double_quoted(text: str) -> str:
    return _escaped_unless_printable(json.dumps(text, ensure_ascii=False))


def _systemd(text: str) -> str:
    """Return a word of an assignment in a unit: systemd.syntax(7)."""
    text = _escaped_unless_printable(text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%"))
    return f'"{text}"' if re.search(r"[^\w@%+=:,./-]", text, re.ASCII) or not text else text


ESCAPES: dict[str, Callable[[Any], str]] = {
    "json": json.dumps,
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
    "vault_name": lambda name: name.replace("_", "-"),
    "secret_name": lambda name: name.replace("_", "-").lower(),
}
