"""What the management side of a namespace says to whoever comes without a token: that it is there, and what time it is.

Nothing is signed in to, read or changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import aiohttp

from sbpair.azure.management_errors import translate_management_errors
from sbpair.azure.transport import http_route, session_for
from sbpair.errors import Unreachable

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

DATE_STEP_SECONDS = 1.0
"""How exact a Date header is."""


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """An HTTP status, and by how many seconds the clock there is ahead of ours, within `margin_seconds` of the truth.

    `ahead_seconds` is None where the answer has no date.
    """

    status: int
    ahead_seconds: float | None
    margin_seconds: float


async def check_health(endpoint: Endpoint, *, seconds: float, now: Callable[[], float] = time.time) -> HealthResponse:
    """Ask for the namespace's properties, without a token. Raises Unavailable; MachineLacks for a CA file."""
    road = http_route(endpoint)
    url = f"{road.scheme}://{road.netloc}/$namespaceinfo?api-version=2021-05"
    options = {"headers": {"Host": road.authority}, "server_hostname": road.server_hostname, "allow_redirects": False}
    with translate_management_errors("reach the management side", endpoint.name):
        try:
            async with asyncio.timeout(seconds), session_for(endpoint) as session:
                before = now()
                async with session.get(url, **options) as answer:  # type: ignore[arg-type]
                    after = now()
                    return _greeting(answer.status, answer.headers.get("Date"), before, after)
        except aiohttp.ClientSSLError as error:
            raise Unreachable(
                f"the management side of {endpoint.name} does not speak TLS, or its certificate is not trusted",
                hint="give the certificates to trust as ca_file, or check whether the port speaks TLS at all",
            ) from error
        except aiohttp.ClientConnectionError as error:
            raise Unreachable(
                f"the management side of {endpoint.name} cannot be reached at {road.netloc}",
                hint=f"let HTTPS out to {road.netloc}, or set HTTPS_PROXY where a proxy is the way",
            ) from error
        except aiohttp.ClientError as error:
            raise Unreachable(
                f"what answers as {endpoint.name} at {road.netloc} does not speak HTTP ({type(error).__name__})",
                hint="check the address and the proxy",
            ) from error


def _greeting(status: int, date: str | None, before: float, after: float) -> HealthResponse:
    margin = (after - before + DATE_STEP_SECONDS) / 2
    try:
        said = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return HealthResponse(status, None, margin)
    return HealthResponse(status, said + DATE_STEP_SECONDS / 2 - (before + after) / 2, margin)
