"""Reachability of a namespace's management side, and its clock, by a request without a token."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from sbpair.azure.http_client import HttpClient, NotHttp
from sbpair.azure.management_errors import translate_management_errors
from sbpair.errors import Unreachable

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
    """Request the namespace's properties without a token. Raises Unavailable; MachineLacks for a CA file."""
    with translate_management_errors("reach the management side", endpoint.name):
        async with asyncio.timeout(seconds), HttpClient(endpoint) as http:
            try:
                before = now()
                answer = await http.request("GET", "/$namespaceinfo?api-version=2021-05")
                after = now()
            except ssl.SSLError as error:
                raise Unreachable(
                    f"the management side of {endpoint.name} does not speak TLS, or its certificate is not trusted",
                    hint="set ca_file to the certificates to trust, or check that the port speaks TLS",
                ) from error
            except NotHttp as error:
                raise Unreachable(
                    f"the server at {http.netloc} for {endpoint.name} does not speak HTTP ({error})",
                    hint="check the address and the proxy",
                ) from error
            except TimeoutError:
                raise
            except OSError as error:
                raise Unreachable(
                    f"the management side of {endpoint.name} cannot be reached at {http.netloc}",
                    hint=f"let HTTPS out to {http.netloc}, or set HTTPS_PROXY to your proxy",
                ) from error
    return _health(answer.status, answer.headers.get("date"), before, after)


def _health(status: int, date: str | None, before: float, after: float) -> HealthResponse:
    margin = (after - before + DATE_STEP_SECONDS) / 2
    try:
        at = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return HealthResponse(status, None, margin)
    return HealthResponse(status, at + DATE_STEP_SECONDS / 2 - (before + after) / 2, margin)
