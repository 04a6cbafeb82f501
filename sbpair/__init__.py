"""Azure Service Bus paired namespaces: syphon, send availability, replication, management, and an emulator.

The public names, imported when they are first used. There is no logic here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import __version__, lazy_names

if TYPE_CHECKING:
    from sbpair import aio, errors, events, management, testing
    from sbpair.config import load_pair
    from sbpair.failover.clients import PairedClient
    from sbpair.failover.entity_states import State
    from sbpair.failover.failover_send import Delivered, OnFailure, ShortTimeout
    from sbpair.failover.failures import FailoverOn
    from sbpair.failover.outbox import OutboxDepth, outbox_depths
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.model.pair import Endpoint, Identity, Pair, SasKey, SasToken
    from sbpair.replication.receivers import DedupReceiver
    from sbpair.replication.senders import ActiveSender, PassiveSender
    from sbpair.status import read_status
    from sbpair.syphon.preview import make_forecast as preview_syphon
    from sbpair.syphon.run_request import RunRequest, syphon_request
    from sbpair.syphon.run_result import SyphonResult
    from sbpair.syphon.runner import run as run_syphon

__all__ = [
    "ActiveSender",
    "DedupReceiver",
    "Delivered",
    "Endpoint",
    "FailoverOn",
    "Identity",
    "OnFailure",
    "OutboxDepth",
    "Pair",
    "PairedClient",
    "PassiveSender",
    "RunRequest",
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
    "syphon_request",
    "testing",
]


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair": "aio, errors, events, management, testing",
        "sbpair.config": "load_pair",
        "sbpair.failover.entity_states": "State",
        "sbpair.failover.failover_send": "Delivered, OnFailure, ShortTimeout",
        "sbpair.failover.failures": "FailoverOn",
        "sbpair.failover.outbox": "OutboxDepth, outbox_depths",
        "sbpair.failover.simulated_outage": "SimulatedOutage",
        "sbpair.failover.clients": "PairedClient",
        "sbpair.model.pair": "Endpoint, Identity, Pair, SasKey, SasToken",
        "sbpair.replication.receivers": "DedupReceiver",
        "sbpair.replication.senders": "ActiveSender, PassiveSender",
        "sbpair.status": "read_status",
        "sbpair.syphon.preview": "make_forecast as preview_syphon",
        "sbpair.syphon.run_request": "RunRequest, syphon_request",
        "sbpair.syphon.run_result": "SyphonResult",
        "sbpair.syphon.runner": "run as run_syphon",
    },
)
