"""Names: one meaning each, in the product and in the tests."""

import ast
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = sorted((ROOT / "sbpair").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TOP_LEVEL = {"sbpair", "tests", "completions", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
MAX_LINES = 600
MAX_TEST_NAME = 70
MAX_ATTRIBUTES = 12

# Every package may have these; a command, its options and its output are named after their library.
SHARED_MODULES = {"__init__", "__main__", "events", "sync", "aio"}
MIRRORING = ("cli/commands", "cli/options", "cli/render", "cli/results")


def classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def test_no_class_name_is_defined_twice() -> None:
    homes = defaultdict(list)
    for path in PRODUCT:
        for node in classes(path):
            homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_module_name_is_used_twice() -> None:
    modules = [path for path in PRODUCT if path.parent.relative_to(ROOT / "sbpair").as_posix() not in MIRRORING]
    names = Counter(path.stem for path in modules if path.stem not in SHARED_MODULES)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_file_is_too_long_to_read() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in PRODUCT}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_names_of_tests_fit_on_a_line() -> None:
    names = {
        node.name: path.relative_to(ROOT)
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert {name: path for name, path in names.items() if len(name) > MAX_TEST_NAME} == {}


def rebound_attributes(node: ast.ClassDef) -> set[str]:
    """Collect the attributes that methods other than `__init__` assign on self."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        target.attr
        for method in methods
        if method.name != "__init__"
        for each in ast.walk(method)
        if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for root in (each.targets if isinstance(each, ast.Assign) else [each.target])
        for target in ast.walk(root)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def test_a_class_with_much_mutable_state_gives_its_reason() -> None:
    """The reason is a sentence of the class's docstring that has the word "attributes"."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in PRODUCT
        for node in classes(path)
        if len(rebound_attributes(node)) > MAX_ATTRIBUTES and "attributes" not in (ast.get_docstring(node) or "")
    ]
    assert found == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")
def test_the_top_level_has_no_stray_file() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tops = {path.partition("/")[0] for path in listed.split("\0") if path}
    assert {top for top in tops if not top.startswith(".")} == TOP_LEVEL
