"""One of Spark's actions, run to its end, and told of meanwhile; its failure in words of our own.

The law: a signal, or a lease that is lost, has the tasks finish what they have in hand; nothing is cut off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbpair import errors
from sbpair.errors import SbpairError, Unavailable
from sbpair.replay import spark as sparks
from sbpair.replay.archive import STOP_FILE, Archive
from sbpair.replay.progress import PhaseWatcher, ReplayPhase, Tell

if TYPE_CHECKING:
    from sbpair.replay.task_lease import HeldLease

LOOK_SECONDS = 1.0


def watched(watch: PhaseWatcher, archive: Archive, action: Callable[[], Any], held: HeldLease, tell: Tell) -> None:
    """Tell how far the archive is meanwhile. Raises what its tasks raised, LeaseLost."""
    failure: list[BaseException] = []
    over = threading.Event()

    def act() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  it is raised below, in the thread that waits
            failure.append(error)
        finally:
            over.set()

    threading.Thread(target=act, name="spark action", daemon=True).start()
    while True:
        try:
            # Not by joining it: a signal in the midst of that has Python take the thread for one that has ended.
            ended = over.wait(LOOK_SECONDS)
            _stop_without(held, archive)
            tell(watch.look())
            if ended:
                break
        except KeyboardInterrupt:
            if archive.stopped():
                raise
            archive.write(STOP_FILE, b"")
            tell(ReplayPhase("stop", "finishing what is in hand; a second signal does not wait for it"))
    held.check()
    if failure:
        raise translated(failure[0], archive) from failure[0]


def _stop_without(held: HeldLease, archive: Archive) -> None:
    """Have the tasks stop where the right to move messages is lost."""
    try:
        held.check()
    except SbpairError as error:
        held.lost = error
        if not archive.stopped():
            archive.write(STOP_FILE, b"")


def translated(error: BaseException, archive: Archive) -> BaseException:
    """What a task has raised is known by its name alone: Spark sends its traceback as text."""
    text = str(error)
    if (path := sparks.unreadable(text)) is not None:
        return archive.broken(path, "Spark cannot read it")
    for line in reversed(text.splitlines()):
        name, _, said = line.strip().removeprefix("sbpair.errors.").partition(": ")
        kind = getattr(errors, name, None)
        if "sbpair.errors." in line and isinstance(kind, type) and issubclass(kind, SbpairError):
            message, hint = said or name, f"put that right, then 'sbpair replay resume {archive.run}': nothing is lost"
            return kind(message, hint=hint)
    if isinstance(error, (KeyboardInterrupt, SbpairError)):
        return error
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return Unavailable(f"Spark gave up: {first}", hint=f"'sbpair replay resume {archive.run}' goes on; nothing is lost")
