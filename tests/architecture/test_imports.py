"""Who may import whom: downwards only, never sideways, no cycles, and foreign packages behind their doors."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sbpair

ROOT = Path(sbpair.__file__).parent

# Top first. A part may import what lies below its own level, and nothing of that level but itself.
LEVELS: list[set[str]] = [
    {"cli"},
    {"service"},
    {"drill", "doctor", "metrics", "spark", "status"},
    {"gateway", "replay", "message_io", "planning"},
    {"replication", "relay"},
    {"failover"},
    {"syphon", "management", "emulator"},
    {"move"},
    {"runs"},
    {"azure"},
    {"amqp_client"},
    {"amqp_server", "backlog", "rules"},
    {"amqp"},
    {"http_tunnel"},
    {"model", "bounded_xml"},
    {"operating_system", "sync_async", "template", "timespan"},
    {"errors", "public_names"},
]
LEVEL = {part: depth for depth, parts in enumerate(LEVELS) for part in parts}

# These stand beside the levels, and say themselves whom they know.
SPECIAL = {
    # A key may be in a secret manager.
    "config": {"azure", "model", "operating_system", "errors", "timespan"},
    "__main__": {"cli", "model", "operating_system", "errors"},
    # The public modules only name what others define.
    "__init__": {
        *("aio", "config", "errors", "events", "failover", "management", "model", "replication", "status", "syphon"),
        *("public_names", "testing"),
    },
    "aio": {"failover", "public_names", "replication"},
    "events": {"failover", "management", "model", "move", "public_names", "relay", "replay", "replication"},
    # The server's half of AMQP knows no entity and no message: two servers are above it.
    "amqp_server": {"amqp", "operating_system", "errors", "timespan"},
    # It must not share this project's opinions on backlogs, or one bug would hide in both.
    "emulator": {"amqp", "amqp_server", "bounded_xml", "operating_system", "errors", "rules", "timespan"},
    "testing": {"emulator", "errors", "public_names", "timespan"},
}
USERS_OF_CONFIG = {"cli", "relay", "spark", "__init__"}

DOORS = {
    # A drill of the gateway plays an application.
    "azure": {"azure", "drill", "failover", "replication", "message_io"},
    "aiohttp": {"azure", "cli", "emulator", "relay"},
    "cryptography": {"amqp_server"},
    "websockets": {"amqp_client", "amqp_server", "emulator", "relay"},
    "jmespath": {"cli"},
    "lark": {"rules"},
    "pyspark": {"replay", "spark"},
    "pyarrow": {"replay", "spark"},
    "pandas": {"replay"},
    "typer": {"cli"},
    "rich": {"cli"},
    "platformdirs": {"operating_system"},
    "jinja2": {"template"},
    "opentelemetry": {"failover", "metrics"},
    "prometheus_client": {"metrics"},
    "pytest": {"testing"},
    "click": set(),
}


@dataclass(frozen=True)
class Import:
    """One import of a module, as `a.b`; `typing_only` where it is not made when the program runs."""

    importer: str
    imported: str
    line: int
    typing_only: bool

    @property
    def where(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = ["sbpair", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def part_of(module: str) -> str:
    """`bus` for `sbpair.azure.atom`; `__init__` for the package itself."""
    return ([*module.split("."), "__init__"])[1]


def imports_of(module: str) -> Iterator[Import]:
    yield from _walk(module, ast.parse(MODULES[module].read_text()), typing_only=False)


def _walk(module: str, node: ast.AST, *, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, typing_only)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module}:{child.lineno} imports relatively"
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                yield Import(
                    module, submodule if submodule in MODULES else str(child.module), child.lineno, typing_only
                )
        yield from _walk(module, child, typing_only=typing_only or guarded)


@cache
def all_imports() -> list[Import]:
    return [each for module in MODULES for each in imports_of(module)]


@cache
def own_imports() -> list[Import]:
    return [each for each in all_imports() if each.imported.split(".")[0] == "sbpair"]


def allowed(importer: str, imported: str) -> bool:
    """Whether one part may import another."""
    if importer == imported or imported == "__init__":
        return True
    if imported == "config":
        return importer in USERS_OF_CONFIG
    if importer in SPECIAL:
        return imported in SPECIAL[importer]
    return imported in LEVEL and LEVEL[importer] < LEVEL[imported]


def test_every_part_has_its_place() -> None:
    assert {part_of(module) for module in MODULES} <= LEVEL.keys() | SPECIAL.keys()


def test_imports_go_downwards_only() -> None:
    assert [each.where for each in own_imports() if not allowed(part_of(each.importer), part_of(each.imported))] == []


def test_entities_import_no_frontend_and_no_server() -> None:
    inside = [each for each in own_imports() if each.importer.startswith("sbpair.emulator.entities")]
    assert [
        each.where
        for each in inside
        if each.imported.startswith(("sbpair.emulator.frontends", "sbpair.emulator.server"))
    ] == []


def test_there_is_no_cycle_of_modules() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for each in own_imports():
        # A package is imported before its modules, which is no dependence of the one on the other.
        if each.imported != each.importer and not each.importer.startswith(f"{each.imported}."):
            graph[each.importer].add(each.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("package", DOORS)
def test_a_foreign_package_is_imported_behind_its_door_alone(package: str) -> None:
    found = [each for each in all_imports() if each.imported.split(".")[0] == package]
    assert [each.where for each in found if part_of(each.importer) not in DOORS[package]] == []


SYSTEM_MODULES = {"fcntl", "grp", "msvcrt", "pty", "pwd", "resource", "signal", "termios", "tty", "winreg"}
SYSTEM_WORDS = re.compile(
    r"\b(sys\.platform|os\.name|os\.(O_|fork|gete?[ug]id|kill|set[su]id)|SO_REUSEADDR|AF_UNIX|add_signal_handler"
    r"|start_new_session|clock_gettime|XDG_\w+_HOME\", \")"
)


def test_only_one_package_knows_the_operating_system() -> None:
    users = {part_of(each.importer) for each in all_imports() if each.imported in SYSTEM_MODULES}
    users |= {part_of(module) for module, path in MODULES.items() if SYSTEM_WORDS.search(path.read_text())}
    assert users == {"operating_system"}


def test_modules_are_imported_by_name_in_few_places_only() -> None:
    others = ("importlib.metadata", "importlib.resources")
    by_name = [
        each for each in all_imports() if each.imported.startswith("importlib") and not each.imported.startswith(others)
    ]
    users = {each.importer for each in by_name}
    assert users == {"sbpair.public_names", "sbpair.cli.app", "sbpair.cli.schemas"}


@pytest.mark.parametrize(
    ("importer", "imported", "may"),
    [
        ("syphon", "move", True),
        ("syphon", "management", False),
        ("amqp", "backlog", False),
        ("emulator", "model", False),
        ("emulator", "amqp_server", True),
        ("amqp_server", "emulator", False),
        ("amqp_server", "rules", False),
        ("syphon", "config", False),
        ("cli", "config", True),
    ],
)
def test_the_rule_itself(importer: str, imported: str, may: bool) -> None:
    assert allowed(importer, imported) is may
