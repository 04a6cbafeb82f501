"""Limits on a run's rate, and on the time to live of its messages, for two namespaces of known tiers.

Asks a namespace only for its tier and its filters. Without permission, it assumes the safer of two values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sbpair.errors import NetworkRefused, NotAuthorized, SbpairError, Unavailable
from sbpair.move.message.route import TimeToLive
from sbpair.move.rate_limit import RateLimiter, credits_of

if TYPE_CHECKING:
    from sbpair.azure.destinations import DestinationCache

log = logging.getLogger(__name__)

DEFAULT_TIER = "Standard"
ASSUMED_FILTERS = 1  # filters per message, assumed without permission to count them


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """Limits that the user sets: `rate` in messages a second, `credits` in credits a second, infinity for no limit.

    Without `credits`, a run spends half of a Standard namespace's credits, and is not limited in a Premium one.
    """

    rate: float | None = None
    credits: float | None = None
    ttl: TimeToLive = TimeToLive.ORIGINAL


@dataclass(frozen=True, slots=True)
class PairTiers:
    """None without permission to ask: Standard is assumed."""

    primary: str | None = None
    secondary: str | None = None


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """Limits that a run keeps: messages a second, and credits a second of each namespace. None is no limit."""

    rate: float | None = None
    primary_credits: float | None = None
    secondary_credits: float | None = None

    def shared(self) -> EffectiveLimits:
        """Return the limits of a run whose ends are one namespace, with one supply of credits."""
        half = self.primary_credits and self.primary_credits / 2
        return replace(self, primary_credits=half, secondary_credits=half)

    def rate_limiter(self, now: float) -> RateLimiter | None:
        """Create the limiter that all workers of a run share; None without any limit."""
        if self == EffectiveLimits():
            return None
        return RateLimiter(now, rate=self.rate, primary=self.primary_credits, secondary=self.secondary_credits)


def effective_limits(limits: MoveLimits, tiers: PairTiers) -> EffectiveLimits:
    return EffectiveLimits(
        limits.rate, credits_of(limits.credits, tiers.primary), credits_of(limits.credits, tiers.secondary)
    )


async def tier_of(control: DestinationCache) -> str | None:
    """Return a namespace's tier; None without permission or an answer."""
    try:
        return await control.tier()
    except (NetworkRefused, NotAuthorized, Unavailable) as error:
        log.info("the tier is not known: %s", error.message)
        return None


@dataclass
class SendCosts:
    """Credits of the primary per message, by destination: one, and one for each filter of its subscriptions."""

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
