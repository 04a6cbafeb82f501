"""The size of the code base: `python -m tests.architecture.size [--draw] [CHECKOUT]`.

`--draw` prints the packages and modules at the top, the least dependent last, with their lines and what they import.
Otherwise it prints lines, modules, classes, functions and circles of the product, and lines and modules of the tests.
Lines are those of Python files, with blank ones, comments and docstrings. A circle is a set of modules that all import
each other, by imports for annotations too.
"""

import ast
import sys
from collections.abc import Container, Iterator
from pathlib import Path


def main(checkout: Path) -> None:
    product = _trees(checkout / "sbpair")
    nodes = [node for tree in product.values() for node in ast.walk(tree)]
    circles = _circles({name: set(_imports(tree, product)) for name, tree in product.items()})
    rows = {
        "product lines": _lines(checkout / "sbpair"),
        "product modules": len(product),
        "modules of at most 60 lines": sum(_length(path) <= 60 for path in (checkout / "sbpair").rglob("*.py")),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        "circles of imports": len(circles),
        "modules in circles": sum(map(len, circles)),
        "test lines": _lines(checkout / "tests"),
        "test modules": len(list((checkout / "tests").rglob("*.py"))),
    }
    for name, value in rows.items():
        print(f"{name:<28}{value:>8}")  # noqa: T201  # the result of this command


def draw(checkout: Path) -> None:
    product = _trees(checkout / "sbpair")
    lines, imported = dict[str, int](), dict[str, set[str]]()
    for name, tree in product.items():
        part = _part(name)
        lines[part] = lines.get(part, 0) + max((getattr(node, "end_lineno", 0) for node in tree.body), default=0)
        found = {_part(each) for each in _imports(tree, product)}
        imported.setdefault(part, set()).update(found - {part})
    reached = {part: len(_reached(imported, part)) for part in imported}
    for part in sorted(imported, key=lambda part: (-reached[part], part)):
        print(f"{part:<18}{lines[part]:>7}  {' '.join(sorted(imported[part]))}")  # noqa: T201  # the result, too


def _part(module: str) -> str:
    return ([*module.split("."), "__init__"])[1]


def _length(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def _lines(folder: Path) -> int:
    return sum(map(_length, folder.rglob("*.py")))


def _trees(package: Path) -> dict[str, ast.Module]:
    """Parse the modules of a package; by name, as `sbpair.move.mover`."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_bytes()
        )
        for path in package.rglob("*.py")
    }


def _imports(tree: ast.Module, modules: Container[str]) -> Iterator[str]:
    """Yield what a module imports of `modules`. To import a submodule is no dependence on its package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found = f"{node.module}.{alias.name}"
                if (name := found if found in modules else node.module) in modules:
                    yield name


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected sets of at least two modules."""
    reached = {name: _reached(graph, name) for name in graph}
    circles: list[set[str]] = []
    for name in graph:
        circle = {other for other in reached[name] if name in reached[other]} | {name}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        waiting += (new := graph[waiting.pop()] - found)
        found |= new
    return found


if __name__ == "__main__":
    words = sys.argv[1:]
    show = draw if "--draw" in words else main
    show(next((Path(word) for word in words if word != "--draw"), Path(__file__).parents[2]))
