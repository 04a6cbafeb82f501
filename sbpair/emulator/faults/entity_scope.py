"""The paths that a fault for one entity covers."""

from __future__ import annotations


def is_within(path: str, entity: str) -> bool:
    """Return whether `path` is `entity`, or a node, sub-queue or subscription of it. "" covers every path.

    Both are in lower case. An entity `a/b` is not within `a`.
    """
    if not entity or path == entity:
        return True
    return path.startswith((f"{entity}/$", f"{entity}/subscriptions/"))
