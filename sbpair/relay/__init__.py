"""Azure Relay in two namespaces: a listener on both, and a client that turns to the other one if one fails.

The public names, imported when they are first used. `sbpair.relay.aio` has the same for asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.errors import BothFailed as BothFailed
    from sbpair.errors import InDoubt as InDoubt
    from sbpair.errors import RelayRejected as RelayRejected
    from sbpair.relay.control_messages import RelayAnswer as RelayAnswer
    from sbpair.relay.relay_blocking import RelayClient as RelayClient
    from sbpair.relay.relay_blocking import RelayListener as RelayListener
    from sbpair.relay.relay_endpoint import RelayEndpoint as RelayEndpoint
    from sbpair.relay.relay_endpoint import RelayPair as RelayPair
    from sbpair.relay.relay_settings import load_relay_pair as load_relay_pair

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.errors": "BothFailed, InDoubt, RelayRejected",
        "sbpair.relay.control_messages": "RelayAnswer",
        "sbpair.relay.relay_blocking": "RelayClient, RelayListener",
        "sbpair.relay.relay_endpoint": "RelayEndpoint, RelayPair",
        "sbpair.relay.relay_settings": "load_relay_pair",
    },
)
__all__ = list(__dir__())
