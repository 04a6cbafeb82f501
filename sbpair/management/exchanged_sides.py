"""A pair whose two sides are exchanged: the primary has the backlog queues."""

from contextlib import suppress
from typing import Final

from sbpair import backlog
from sbpair.azure.atom import open_atom
from sbpair.errors import SbpairError
from sbpair.model.pair import Endpoint

CALL_SECONDS: Final = 10.0
"""How long a call may take: this question is an aside."""


async def find_exchanged(primary: Endpoint, secondary: Endpoint) -> str:
    """Return how to mend a pair whose primary has the backlog queues; "" if it has none, or cannot be read."""
    with suppress(SbpairError):
        async with open_atom(primary, call_seconds=CALL_SECONDS) as namespace:
            paths = [each.spec.path for each in await namespace.list_under("")]
        if any(backlog.under_prefix(each.name, path) for each in (primary, secondary) for path in paths):
            has = f"{primary.name} has backlog queues of this pair, which belong in {secondary.name}"
            sides = "SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING"
            return f"{has}: exchange {sides}, or the two sides in the configuration file"
    return ""
