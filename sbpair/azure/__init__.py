"""The narrow waist to Azure's SDKs: nothing else of this package, the paired senders aside, imports azure."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.azure.arm import ArmNamespace
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.pair import Endpoint, ResourceGroup

NamespaceControl: TypeAlias = "AtomNamespace | ArmNamespace"
"""Entities of every kind in one namespace, over Atom or Resource Manager.

Their methods raise only errors of `sbpair.errors`, and may be called by several coroutines at the same time. Entities
are read with durations as ISO 8601 text, forwards as paths, and the chosen size, not 16 times that.
"""


@asynccontextmanager
async def open_namespace(endpoint: Endpoint, group: ResourceGroup | None = None) -> AsyncIterator[NamespaceControl]:
    """Open the management side of `endpoint`: Resource Manager's where a `group` is given, which contains it.

    Nothing is connected before the first call. Raises UsageError where no Resource Manager is known for the namespace.
    """
    # Each client takes half a second to load, and one is enough.
    if group is None:
        from sbpair.azure.atom import open_atom

        async with open_atom(endpoint) as namespace:
            yield namespace
    else:
        from sbpair.azure.arm import open_arm

        async with open_arm(endpoint, group) as namespace:
            yield namespace
