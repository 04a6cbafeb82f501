"""`sbpair replay gc`: what would go, a question where somebody can answer it, and then it goes."""

import sys
from typing import Annotated

import typer

from sbpair.cli.options.common import Display, Output, options
from sbpair.cli.options.replay import ArchiveUrl, RunId, opened
from sbpair.cli.render.screen import Screen, size

SCHEMA = "sbpair/replay-gc/1"


@options
def command(
    *,
    run_id: RunId,
    archive: ArchiveUrl,
    unsent: Annotated[
        bool,
        typer.Option("--unsent", help="Remove what was expired, quarantined or deduplicated too: it is nowhere else"),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it, and do not ask")] = False,
    display: Display,
) -> int:
    """Remove the messages of a run that is done and proved from the archive; its receipt stays.

    The run is proved anew from its files first. One that is running, was not proved, or has messages left, is refused.
    What was expired or quarantined stays, bodies and all, unless --unsent; and where messages were deduplicated, whose
    bodies are in the segments alone, the run is refused without it. Without --yes this says what would go, and on a
    terminal asks; off a terminal it removes nothing.

    What is cut short is finished by calling it again. A run whose messages are gone can be neither resumed nor proved.

    JSON; "kept" is how many messages stay that were not sent:

      {"schema": "sbpair/replay-gc/1", "run": "", "removed": true, "files": 0, "bytes": 0, "kept": 0}

    Exit codes: 0 removed, or only told; 2 there is no such run; 4 refused: it is not done, or not proved, or a file is
    broken; 7 the archive cannot be written to.
    """
    screen = Screen(display)
    place = opened(archive, run_id)
    from sbpair.replay import gc

    planned = gc.plan(place, unsent=unsent)
    what = f"{planned.files} files of run {run_id}, {size(planned.bytes)}"
    removes = planned.files > 0 and (yes or (_answers(screen) and screen.asks(f"Remove {what}{_lost(unsent=unsent)}?")))
    if removes:
        gc.sweep(place, planned)
    told = {"schema": SCHEMA, "run": run_id, "removed": removes, "files": planned.files, "bytes": planned.bytes}
    told["kept"] = planned.kept
    stays = f"; what was not sent stays: {planned.kept} of its messages" if planned.kept else ""
    screen.result(told, [told], [f"{'removed' if removes else 'would remove'} {what}{stays}"])
    if not removes:
        screen.say("nothing was removed" + (f": sbpair replay gc {run_id} --yes does" if planned.files else ""))
    return 0


def _lost(*, unsent: bool) -> str:
    return ", and with them all that was not sent" if unsent else ""


def _answers(screen: Screen) -> bool:
    """Whether somebody is there who sees the question and can answer."""
    streams = (sys.stdin, sys.stderr)
    return screen.output is Output.TABLE and all(stream is not None and stream.isatty() for stream in streams)
