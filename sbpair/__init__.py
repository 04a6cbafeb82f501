"""Azure Service Bus paired namespaces, for everyone who still needs them.

The public names, imported when they are first used; there is no logic here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair import aio, errors
    from sbpair.config import load_pair
    from sbpair.failover.sync import PairedClient
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.replication.sync import ActiveSender, DedupReceiver, PassiveSender

__version__ = "0.1.0"
__all__ = [
    "ActiveSender",
    "DedupReceiver",
    "Endpoint",
    "Pair",
    "PairedClient",
    "PassiveSender",
    "__version__",
    "aio",
    "errors",
    "load_pair",
]

_HOMES = {
    "ActiveSender": "sbpair.replication.sync",
    "DedupReceiver": "sbpair.replication.sync",
    "Endpoint": "sbpair.model.pair",
    "Pair": "sbpair.model.pair",
    "PairedClient": "sbpair.failover.sync",
    "PassiveSender": "sbpair.replication.sync",
    "load_pair": "sbpair.config",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in ("aio", "errors"):
        return import_module(f"sbpair.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
