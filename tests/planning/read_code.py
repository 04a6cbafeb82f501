"""Readers of exported code: Bicep by a published grammar, and Terraform by Terraform itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tree_sitter_bicep
from tree_sitter import Language, Node, Parser

TERRAFORM = shutil.which("terraform")


@dataclass(frozen=True)
class ReadResource:
    """A resource as the code declares it. `parent` is a symbol, empty for the namespace's."""

    symbol: str
    type: str
    name: str
    parent: str
    properties: dict[str, Any]
    needs: tuple[str, ...] = ()


# Bicep --------------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|([\\'nrt$]))|(\\|\$\{|')")
_PLAIN = {"\\": "\\", "'": "'", "n": "\n", "r": "\r", "t": "\t", "$": "$"}


def read_bicep(text: str) -> list[ReadResource]:
    """Return the resources, with every loop unrolled and every parameter at its default."""
    root = Parser(Language(tree_sitter_bicep.language())).parse(text.encode()).root_node
    assert not root.has_error, text
    values: dict[str, Any] = {}
    found: list[ReadResource] = []
    for node in root.named_children:
        if node.type == "parameter_declaration":
            values[_text(node.named_children[0])] = _value(node.named_children[-1], values)
        elif node.type == "resource_declaration":
            found += _declared(node, values)
        else:
            assert node.type in ("comment", "decorators"), node.type
    return found


def _declared(node: Node, values: dict[str, Any]) -> Iterator[ReadResource]:
    symbol, type_, body = node.named_children
    if any(child.type == "existing" for child in node.children):
        assert _text(symbol) == "namespace"
        return
    if body.type == "object":
        yield _resource(_text(symbol), _value(type_, values), _value(body, values))
        return
    variable, call, each = body.named_children
    assert (body.type, _text(call.named_children[0])) == ("for_statement", "range")
    first, number = (_value(argument, values) for argument in call.named_children[1].named_children)
    for index in range(first, first + number):
        inner = {**values, _text(variable): index}
        yield _resource(f"{_text(symbol)}[{index}]", _value(type_, values), _value(each, inner))


def _resource(symbol: str, type_: str, body: dict[str, Any]) -> ReadResource:
    needs = tuple(each.removeprefix("&") for each in body.pop("dependsOn", []))
    parent, name, properties = body.pop("parent"), body.pop("name"), body.pop("properties")
    assert not body
    assert parent.startswith("&")
    return ReadResource(symbol, type_, name, "" if parent == "&namespace" else parent[1:], properties, needs)


def _value(node: Node, values: dict[str, Any]) -> Any:
    match node.type:
        case "object":
            pairs = [each.named_children for each in node.named_children]
            found = {
                _text(key) if key.type == "identifier" else _value(key, values): _value(each, values)
                for key, each in pairs
            }
            assert len(found) == len(pairs)
            return found
        case "array":
            return [_value(each, values) for each in node.named_children]
        case "identifier":
            return values.get(_text(node), f"&{_text(node)}")
        case "number":
            return int(_text(node))
        case "boolean":
            return {"true": True, "false": False}[_text(node)]
        case "string":
            return _string(node, values)
    raise AssertionError(node.type)


def _string(node: Node, values: dict[str, Any]) -> str:
    assert node.text is not None
    parts, at = [], node.start_byte + 1
    for child in [each for each in node.children if each.type == "interpolation"]:
        parts.append(_unescaped(node.text[at - node.start_byte : child.start_byte - node.start_byte].decode()))
        parts.append(str(values[_text(child.named_children[0])]))
        at = child.end_byte
    return "".join([*parts, _unescaped(node.text[at - node.start_byte : -1].decode())])


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        assert not match[3], text
        return chr(int(match[1], 16)) if match[1] else _PLAIN[match[2]]

    return _ESCAPE.sub(plain, text)


def _text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode()


# Terraform ----------------------------------------------------------------------------------------

_BLOCK = re.compile(
    r'^resource "azapi_\w+" "(\w+)" \{\n(  count .*\n)?((?:.*\n)*?)(  depends_on .*\n|  lifecycle .*\n|\}\n)',
    re.MULTILINE,
)


def read_terraform(text: str, folder: Path) -> list[ReadResource]:
    """Return the resources as `terraform plan` evaluates them.

    The provider is not at hand: a resource of Terraform's own, which accepts any value, takes the place of each one.
    """
    provider = re.search(r"^terraform \{\n(?:  .*\n)*\}\n", text, re.MULTILINE)
    assert provider is not None
    own = _BLOCK.sub(r'resource "terraform_data" "\1" {\n\2input = {\n\3}\n\4', text.replace(provider[0], ""))
    own = own.replace("azapi_resource.", "terraform_data.").replace("[body.", "[input.body.")
    (folder / "main.tf").write_text(own, "utf-8")
    run_terraform(folder, "init", "-input=false")
    group = "-var=resource_group_id=/subscriptions/s/resourceGroups/g"
    run_terraform(folder, "plan", "-input=false", group, "-out=plan")
    shown = json.loads(run_terraform(folder, "show", "-json", "plan"))
    declared = {each["name"]: each for each in shown["configuration"]["root_module"]["resources"]}
    found = []
    for each in shown["planned_values"]["root_module"].get("resources", []):
        name, planned = each["name"], each["values"]["input"]
        parent = "".join(ref.split(".")[1] for ref in _references(declared[name]) if ref.endswith(".id"))
        needs = tuple(need.split(".")[1] for need in declared[name].get("depends_on", []))
        symbol = f"{name}[{each['index']}]" if "index" in each else name
        properties = planned.get("body", {}).get("properties", planned)
        found.append(ReadResource(symbol, planned["type"], planned.get("name", ""), parent, properties, needs))
    return found


def _references(declared: dict[str, Any]) -> list[str]:
    found = declared["expressions"]["input"].get("references", [])
    return [each for each in found if each.startswith("terraform_data.")]


def run_terraform(folder: Path, *arguments: str) -> str:
    assert TERRAFORM is not None
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1", "TF_DATA_DIR": ".data"}
    done = subprocess.run(
        [TERRAFORM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout
