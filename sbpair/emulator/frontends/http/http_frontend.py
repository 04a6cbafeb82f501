"""The HTTP frontend: passes each request to the control API, the managed identity, Resource Manager or Atom.

Invariant: nothing that a peer sends is logged, because it could hold a token or a key.
"""

from __future__ import annotations

import asyncio
import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from sbpair.emulator.frontends.arm.arm_frontend import ArmFrontend
from sbpair.emulator.frontends.arm.arm_request import is_arm
from sbpair.emulator.frontends.atom.atom_frontend import AtomFrontend
from sbpair.emulator.frontends.http import control_frontend, identity_frontend
from sbpair.emulator.frontends.http.control_frontend import ControlFrontend
from sbpair.emulator.service_errors import InternalError, ServiceError, log_bug

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.server import Emulator

logger = logging.getLogger(__name__)


class QuietLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log without content: invalid HTTP is reported as information, anything else as a bug."""

    def log(self, level: int, msg: object, *args: object, exc_info: Any = None, **others: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self.info("Refused a request that is not HTTP: %s.", type(exc_info).__name__)
        elif isinstance(exc_info, Exception) and level >= logging.ERROR:
            log_bug(self.logger, "request", exc_info)
        else:
            super().log(level, msg, *args, exc_info=exc_info, **others)


def http_server(emulator: Emulator, namespace: Namespace) -> web.Server:
    atom, arm, control = AtomFrontend(namespace), ArmFrontend(emulator.namespaces), ControlFrontend(emulator)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.lower().lstrip("/").replace("%24", "$")
        if path.startswith(control_frontend.PREFIX):
            return await control.handle(request)
        if emulator.identity is not None and path.startswith(identity_frontend.PREFIX):
            return emulator.identity.handle(request)
        if namespace.is_down:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        if is_arm(request.raw_path):
            return await answer(arm, request)
        if namespace.fault_points.latency_seconds:
            await asyncio.sleep(namespace.fault_points.latency_seconds)
        response = await answer(atom, request)
        # The emulator's clock can be ahead of the machine's.
        response.headers[hdrs.DATE] = formatdate(namespace.clock.now_ms() / 1000, usegmt=True)
        return response

    return web.Server(handle, access_log=None, logger=QuietLog(logger))


async def answer(frontend: AtomFrontend | ArmFrontend, request: web.BaseRequest) -> web.Response:
    """Answer a management request. Every error becomes an error response."""
    try:
        return await frontend.answer(request)
    except ServiceError as error:
        return frontend.error_response(request, error)
    except Exception as error:  # noqa: BLE001  # a bug fails its request only
        log_bug(logger, f"{request.method} request", error)
        return frontend.error_response(request, InternalError())
