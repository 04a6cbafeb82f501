"""What a run is told about pace and time to live, and what follows from it for two namespaces of known tiers.

Asks a namespace at most for its tier and its filters; where nobody may say, it assumes what is the safer of two.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import NotAuthorized, SbpairError, Unavailable
from sbpair.move.message.route import TimeToLive
from sbpair.move.rate_limit import RateLimiter, credits_of

if TYPE_CHECKING:
    from sbpair.azure.interfaces import DestinationControl

log = logging.getLogger(__name__)

DEFAULT_TIER = "Standard"
ASSUMED_FILTERS = 1
"""Filters that a message is taken to meet where nobody may count them."""


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """What a run is told: `rate` is messages a second, `credits` credits a second, infinity for no limit.

    Without `credits`, a namespace that is not Premium gives half of what Standard has.
    """

    rate: float | None = None
    credits: float | None = None
    ttl: TimeToLive = TimeToLive.ORIGINAL


@dataclass(frozen=True, slots=True)
class PairTiers:
    """None where nobody may ask for it: then Standard is assumed."""

    primary: str | None = None
    secondary: str | None = None


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """What a run goes by: messages a second, credits a second of each namespace; None is no limit."""

    rate: float | None = None
    primary_credits: float | None = None
    secondary_credits: float | None = None

    def rate_limiter(self, now: float) -> RateLimiter:
        """The governor that all lanes of a run share."""
        return RateLimiter(now, rate=self.rate, primary=self.primary_credits, secondary=self.secondary_credits)


def effective_limits(limits: MoveLimits, tiers: PairTiers) -> EffectiveLimits:
    return EffectiveLimits(
        limits.rate, credits_of(limits.credits, tiers.primary), credits_of(limits.credits, tiers.secondary)
    )


async def tier_of(control: DestinationControl) -> str | None:
    """None where nobody may ask, or nobody answers."""
    try:
        return await control.tier()
    except (NotAuthorized, Unavailable) as error:
        log.info("the tier is not known: %s", error.message)
        return None


class SendCosts:
    """How many credits of the primary a message costs, by destination: one, and one for each filter that it meets."""

    def __init__(self, control: DestinationControl) -> None:
        self._control = control
        self._may_ask = True

    async def of(self, destination: str) -> int:
        """Never raises: where nobody says, one filter is assumed."""
        try:
            if self._may_ask:
                return 1 + await self._control.filters_of(destination)
        except NotAuthorized:
            self._may_ask = False
        except SbpairError as error:
            log.info("the filters of %s are not known: %s", destination, error.message)
        return 1 + ASSUMED_FILTERS
