"""The same names as `sbpair`'s own where what they stand for is awaited, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.paired.aio import PairedClient

__all__ = ["PairedClient"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sbpair.paired import aio

    return getattr(aio, name)


def __dir__() -> list[str]:
    return sorted(__all__)
