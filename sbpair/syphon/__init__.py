"""The syphon: moves messages from the backlog queues back to the primary.

Public names, imported on first use: `result = await sbpair.syphon.run(pair, once=True)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.move.message.route import TimeToLive
    from sbpair.syphon.limits import MoveLimits
    from sbpair.syphon.preview import make_forecast
    from sbpair.syphon.runner import SyphonResult, run

__all__ = ["MoveLimits", "SyphonResult", "TimeToLive", "make_forecast", "run"]

_HOMES = {
    "MoveLimits": "sbpair.syphon.limits",
    "SyphonResult": "sbpair.syphon.runner",
    "TimeToLive": "sbpair.move.message.route",
    "make_forecast": "sbpair.syphon.preview",
    "run": "sbpair.syphon.runner",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
