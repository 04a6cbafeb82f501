"""The version, and names that the public modules import on first use."""

from __future__ import annotations

from collections.abc import Callable

__version__ = "0.1.0"


def lazy_names(module: str, homes: dict[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module of names from `homes`: {"its.home": "one, other as name"}."""
    found: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for each in names.split(", "):
            original, _, name = each.partition(" as ")
            found[name or original] = home, original

    def get(name: str) -> object:
        from importlib import import_module

        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, original = found[name]
        return import_module(f"{home}.{name}") if home == module else getattr(import_module(home), original)

    return get, lambda: sorted(found)
