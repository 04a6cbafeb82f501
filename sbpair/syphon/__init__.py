"""The syphon: moves messages from the backlog queues back to the primary.

Public names, imported on first use: `result = await sbpair.syphon.run(syphon_request(pair, once=True))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.move.filter import MessageFilter as MessageFilter
    from sbpair.move.message.route import TimeToLive as TimeToLive
    from sbpair.syphon.preview import make_forecast as make_forecast
    from sbpair.syphon.run_request import RampPlan as RampPlan
    from sbpair.syphon.run_request import RunRequest as RunRequest
    from sbpair.syphon.run_request import syphon_request as syphon_request
    from sbpair.syphon.run_result import SyphonResult as SyphonResult
    from sbpair.syphon.runner import run as run

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.move.filter": "MessageFilter",
        "sbpair.move.message.route": "TimeToLive",
        "sbpair.syphon.preview": "make_forecast",
        "sbpair.syphon.run_request": "RampPlan, RunRequest, syphon_request",
        "sbpair.syphon.run_result": "SyphonResult",
        "sbpair.syphon.runner": "run",
    },
)
__all__ = list(__dir__())
