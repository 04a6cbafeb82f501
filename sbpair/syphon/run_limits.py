"""The limits that a run keeps, by the tiers of its namespaces; the cost of a message. Unknown tiers are Standard."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from sbpair.errors import NetworkRefused, NotAuthorized, SbpairError, Unavailable
from sbpair.move.rate_limit import RateLimiter, credits_of

if TYPE_CHECKING:
    from sbpair.azure.destinations import DestinationCache
    from sbpair.syphon.run_request import RunRequest

log = logging.getLogger(__name__)

DEFAULT_TIER = "Standard"
ASSUMED_FILTERS = 1  # filters per message, assumed without permission to count them


@dataclass(frozen=True, slots=True)
class EndTiers:
    """None without permission to ask: Standard is assumed."""

    source: Annotated[str | None, "Source"] = None
    destination: Annotated[str | None, "Destination"] = None


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """Limits that a run keeps: messages a second, and credits a second of each namespace. None is no limit."""

    rate: Annotated[float | None, "Messages a second"] = None
    source_credits: Annotated[float | None, "Credits a second of the source"] = None
    destination_credits: Annotated[float | None, "Credits a second of the destination"] = None

    def shared(self) -> EffectiveLimits:
        """Return the limits of a run whose ends are one namespace, with one supply of credits."""
        half = self.source_credits and self.source_credits / 2
        return replace(self, source_credits=half, destination_credits=half)

    def rate_limiter(self, now: float) -> RateLimiter | None:
        """Create the limiter that all workers of a run share; None without any limit."""
        if self == EffectiveLimits():
            return None
        return RateLimiter(now, rate=self.rate, source=self.source_credits, destination=self.destination_credits)


def effective_limits(request: RunRequest, tiers: EndTiers) -> EffectiveLimits:
    limits = EffectiveLimits(
        request.rate, *(credits_of(request.credits, tier) for tier in (tiers.source, tiers.destination))
    )
    if request.keep is not None:
        return replace(limits, destination_credits=None)
    return limits.shared() if request.ends.same else limits


async def tier_of(control: DestinationCache) -> str | None:
    """Return a namespace's tier; None without permission or an answer."""
    try:
        return await control.tier()
    except (NetworkRefused, NotAuthorized, Unavailable) as error:
        log.info("the tier is not known: %s", error.message)
        return None


@dataclass
class SendCosts:
    """Credits of the destination per message, by destination: one, and one for each filter of its subscriptions."""

    control: DestinationCache
    may_ask: bool = True

    async def of(self, destination: str) -> int:
        """Return the credits of one message. Never raises: it assumes one filter instead."""
        try:
            if self.may_ask:
                return 1 + ((await self.control.get(destination)).filters or 0)
        except NotAuthorized:
            self.may_ask = False
        except SbpairError as error:
            log.info("the filters of %s are not known: %s", destination, error.message)
        return 1 + ASSUMED_FILTERS
