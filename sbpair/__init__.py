"""Azure Service Bus paired namespaces: syphon, send availability, replication, management, and an emulator.

The public names, imported when they are first used. There is no logic here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair import aio, errors, events, management, testing
    from sbpair.config import load_pair
    from sbpair.failover.base import ShortTimeout
    from sbpair.failover.entity_states import State
    from sbpair.failover.failover_send import Delivered, OnFailure
    from sbpair.failover.failures import FailoverOn
    from sbpair.failover.outbox import OutboxDepth, outbox_depths
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.failover.sync import PairedClient
    from sbpair.model.pair import Endpoint, Identity, Pair, SasKey, SasToken
    from sbpair.replication.sync import ActiveSender, DedupReceiver, PassiveSender
    from sbpair.status import read_status
    from sbpair.syphon.limits import MoveLimits
    from sbpair.syphon.preview import make_forecast as preview_syphon
    from sbpair.syphon.runner import SyphonResult
    from sbpair.syphon.runner import run as run_syphon

__version__ = "0.1.0"
__all__ = [
    "ActiveSender",
    "DedupReceiver",
    "Delivered",
    "Endpoint",
    "FailoverOn",
    "Identity",
    "MoveLimits",
    "OnFailure",
    "OutboxDepth",
    "Pair",
    "PairedClient",
    "PassiveSender",
    "SasKey",
    "SasToken",
    "ShortTimeout",
    "SimulatedOutage",
    "State",
    "SyphonResult",
    "__version__",
    "aio",
    "errors",
    "events",
    "load_pair",
    "management",
    "outbox_depths",
    "preview_syphon",
    "read_status",
    "run_syphon",
    "testing",
]


def lazy_names(module: str, homes: dict[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module whose names live in `homes`: "module", or "module:name"."""

    def get(name: str) -> object:
        from importlib import import_module

        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, original = homes[name].partition(":")
        return getattr(import_module(home), original) if original else import_module(home)

    return get, lambda: sorted(homes)


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ActiveSender": "sbpair.replication.sync:ActiveSender",
        "DedupReceiver": "sbpair.replication.sync:DedupReceiver",
        "Delivered": "sbpair.failover.failover_send:Delivered",
        "Endpoint": "sbpair.model.pair:Endpoint",
        "FailoverOn": "sbpair.failover.failures:FailoverOn",
        "Identity": "sbpair.model.pair:Identity",
        "MoveLimits": "sbpair.syphon.limits:MoveLimits",
        "OnFailure": "sbpair.failover.failover_send:OnFailure",
        "OutboxDepth": "sbpair.failover.outbox:OutboxDepth",
        "Pair": "sbpair.model.pair:Pair",
        "PairedClient": "sbpair.failover.sync:PairedClient",
        "PassiveSender": "sbpair.replication.sync:PassiveSender",
        "SasKey": "sbpair.model.pair:SasKey",
        "SasToken": "sbpair.model.pair:SasToken",
        "ShortTimeout": "sbpair.failover.base:ShortTimeout",
        "SimulatedOutage": "sbpair.failover.simulated_outage:SimulatedOutage",
        "State": "sbpair.failover.entity_states:State",
        "SyphonResult": "sbpair.syphon.runner:SyphonResult",
        "aio": "sbpair.aio",
        "errors": "sbpair.errors",
        "events": "sbpair.events",
        "load_pair": "sbpair.config:load_pair",
        "management": "sbpair.management",
        "outbox_depths": "sbpair.failover.outbox:outbox_depths",
        "preview_syphon": "sbpair.syphon.preview:make_forecast",
        "read_status": "sbpair.status:read_status",
        "run_syphon": "sbpair.syphon.runner:run",
        "testing": "sbpair.testing",
    },
)
