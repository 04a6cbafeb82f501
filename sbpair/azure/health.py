"""Reachability of a namespace's management side, and its clock, by a request without a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from sbpair.azure.http_client import HttpClient, NotHttp
from sbpair.azure.management_route import silence_reported
from sbpair.errors import Unreachable
from sbpair.model.reachability import DOCTOR_HINT, REACH_HINT, unreachable

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

DATE_STEP_SECONDS = 1.0
"""The precision of a Date header."""


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """An HTTP status, and the seconds by which the namespace's clock is ahead, with an error of `margin_seconds`.

    `ahead_seconds` is None for a response without a date.
    """

    status: int
    ahead_seconds: float | None
    margin_seconds: float


async def check_health(endpoint: Endpoint, *, seconds: float, now: Callable[[], float] = time.time) -> HealthResponse:
    """Request the namespace's properties without a token. Raises as HttpClient does, but Unavailable for an OSError."""
    side = f"the management side of {endpoint.name}"
    async with HttpClient(endpoint) as http:
        try:
            before = now()
            with silence_reported(http.netloc, seconds):
                async with asyncio.timeout(seconds):
                    answer = await http.request("GET", "/$namespaceinfo?api-version=2021-05")
            after = now()
        except NotHttp as error:
            raise Unreachable(
                f"the server at {http.netloc} for {endpoint.name} does not speak HTTP ({error})",
                hint="check the address and the proxy",
            ) from error
        except TimeoutError:
            raise unreachable(side, http.netloc, seconds) from None
        except OSError as error:
            raised = unreachable(side, http.netloc, error)
            if raised.hint == REACH_HINT and endpoint.tls:
                raised.hint = f"let HTTPS out to {http.netloc}, or set HTTPS_PROXY to your proxy{DOCTOR_HINT}"
            raise raised from error
    return _health(answer.status, answer.headers.get("date"), before, after)


def _health(status: int, date: str | None, before: float, after: float) -> HealthResponse:
    margin = (after - before + DATE_STEP_SECONDS) / 2
    try:
        at = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return HealthResponse(status, None, margin)
    return HealthResponse(status, at + DATE_STEP_SECONDS / 2 - (before + after) / 2, margin)
