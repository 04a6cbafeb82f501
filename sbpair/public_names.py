"""The version, and names that the public modules import on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

__version__ = "0.1.0"


def lazy_names(module: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module. Its names are those that it imports under `if TYPE_CHECKING:`.

    They are read from its source. They are its `__all__`, too, if it has none.
    """

    @cache
    def found() -> dict[str, tuple[str, str]]:
        import ast
        import linecache  # it reads from a zip, too

        variables = vars(sys.modules[module])
        tree = ast.parse("".join(linecache.getlines(variables["__file__"], variables)))
        blocks = [each for each in tree.body if isinstance(each, ast.If)]
        imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
        return {each.asname or each.name: (str(one.module), each.name) for one in imports for each in one.names}

    def get(name: str) -> object:
        from importlib import import_module

        if name == "__all__":
            return sorted(found())
        if name not in found():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, original = found()[name]
        return import_module(f"{home}.{name}") if home == module else getattr(import_module(home), original)

    return get, lambda: sorted(found())
