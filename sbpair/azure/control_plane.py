"""Which management side speaks for a namespace: its own, over Atom, or Azure Resource Manager.

The one place where that is chosen; what comes of it answers alike.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.azure.interfaces import NamespaceControl
    from sbpair.model.pair import Endpoint, ResourceGroup


@asynccontextmanager
async def open_namespace(endpoint: Endpoint, group: ResourceGroup | None = None) -> AsyncIterator[NamespaceControl]:
    """The management side of `endpoint`: Resource Manager's where a `group` is given, which the namespace is in.

    Nothing is connected before the first call. Raises UsageError where no Resource Manager is known for the namespace.
    """
    # Each client takes half a second to load, and nobody needs both.
    if group is None:
        from sbpair.azure import atom

        async with atom.open_namespace(endpoint) as namespace:
            yield namespace
    else:
        from sbpair.azure import arm

        async with arm.open_namespace(endpoint, group) as namespace:
            yield namespace
