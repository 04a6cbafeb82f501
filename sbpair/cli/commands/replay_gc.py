"""`sbpair replay gc`: plans a deletion, asks for confirmation and deletes."""

from typing import Annotated

from sbpair.cli.options.common import Display, option, options
from sbpair.cli.options.replay import ArchiveUrl, RunId, open_archive
from sbpair.cli.render.screen import Screen, size

SCHEMA = "sbpair/replay-gc/1"


@options
def command(
    *,
    run_id: RunId,
    archive: ArchiveUrl,
    include_unsent: Annotated[
        bool, option("--include-unsent", "Also delete expired, quarantined and deduplicated messages")
    ] = False,
    yes: Annotated[bool, option("--yes -y", "Delete without asking")] = False,
    display: Display,
) -> int:
    """Delete the messages of a finished and proved run from the archive.

    The run is proved again first, and its receipt stays. Messages that were not sent stay unless --include-unsent.
    Without --yes it prints the plan and, on a terminal, asks.

    Examples:
      sbpair replay gc 20261122-101500-3f2a --archive /mnt/archive
      sbpair replay gc 20261122-101500-3f2a --archive /mnt/archive --yes

    Exit codes: 0 deleted, or only planned; 4 refused: the run is unfinished or not proved
    """
    screen = Screen(display)
    place = open_archive(archive, run_id)
    from sbpair.replay import gc

    planned = gc.plan_gc(place, unsent=include_unsent)
    what = f"{planned.files} files of run {run_id}, {size(planned.bytes)}"
    unsent = ", including all unsent messages" if include_unsent else ""
    deletes = planned.files > 0 and (yes or (screen.can_ask and screen.asks(f"Delete {what}{unsent}?")))
    if deletes:
        gc.remove_messages(place, planned)
    result = {"schema": SCHEMA, "run": run_id, "removed": deletes, "files": planned.files, "bytes": planned.bytes}
    result["kept"] = planned.kept
    kept = f"; {planned.kept} unsent messages stay" if planned.kept else ""
    screen.result(result, [result], [f"{'deleted' if deletes else 'would delete'} {what}{kept}"])
    if not deletes:
        screen.say("nothing was deleted" + (f": confirm with sbpair replay gc {run_id} --yes" if planned.files else ""))
    return 0
