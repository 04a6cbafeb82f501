"""Results of `sbpair emulator`."""

from pathlib import Path
from typing import Annotated, NamedTuple

from sbpair.emulator.server import Ready
from sbpair.model.document import SPREAD, UNLESS_NONE, document


class BackgroundProcess(NamedTuple):
    """Of --detach."""

    process: Annotated[int, "Id of its process"]
    log: Annotated[Path, "File of its log"]


@document("sbpair/emulator/1")
class ReadyEmulator:
    """How to connect to the emulator, on one line."""

    ready: Annotated[Ready, SPREAD]
    background: Annotated[BackgroundProcess | None, "Of --detach", UNLESS_NONE] = None
