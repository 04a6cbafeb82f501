"""A Spark action run to its end with progress events; its failure becomes an sbpair error.

Invariant: a signal or a lost lease lets the tasks finish the messages they hold; nothing is cut off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbpair import errors
from sbpair.errors import SbpairError, Unavailable
from sbpair.replay.archive_layout import STOP_FILE
from sbpair.replay.progress import OnEvent, PhaseWatcher, ReplayPhase
from sbpair.replay.spark import unreadable_segment

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.task_lease import HeldLease

POLL_SECONDS = 1.0


def run_action(
    watcher: PhaseWatcher, archive: Archive, action: Callable[[], Any], held: HeldLease, on_event: OnEvent
) -> None:
    """Run an action in a thread, and report progress. Raises its tasks' error, or LeaseLost."""
    failure: list[BaseException] = []
    over = threading.Event()

    def act() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  it is raised below, in the waiting thread
            failure.append(error)
        finally:
            over.set()

    threading.Thread(target=act, name="spark action", daemon=True).start()
    while True:
        try:
            # Not join(): after a signal during join, Python believes that the thread has ended.
            ended = over.wait(POLL_SECONDS)
            _stop_if_lost(held, archive)
            on_event(watcher.sample())
            if ended:
                break
        except KeyboardInterrupt:
            if archive.stop_requested():
                raise
            archive.write(STOP_FILE, b"")
            on_event(ReplayPhase("stop", "finishing the messages in flight; a second signal ends at once"))
    held.check()
    if failure:
        raise translate_failure(failure[0], archive) from failure[0]


def _stop_if_lost(held: HeldLease, archive: Archive) -> None:
    """Request a stop if the lease is lost."""
    try:
        held.check()
    except SbpairError as error:
        held.lost = error
        if not archive.stop_requested():
            archive.write(STOP_FILE, b"")


def translate_failure(error: BaseException, archive: Archive) -> BaseException:
    """Return the sbpair error that a task raised. Spark sends its traceback as text, so its name identifies it."""
    text = str(error)
    if (path := unreadable_segment(text)) is not None:
        return archive.broken(path, "Spark cannot read it")
    resume = f"'sbpair replay resume {archive.run}'"
    for line in reversed(text.splitlines()):
        name, _, message = line.strip().removeprefix("sbpair.errors.").partition(": ")
        kind = getattr(errors, name, None)
        if "sbpair.errors." in line and isinstance(kind, type) and issubclass(kind, SbpairError):
            return kind(message or name, hint=f"correct that, then {resume}: nothing is lost")
    if isinstance(error, (KeyboardInterrupt, SbpairError)):
        return error
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return Unavailable(f"Spark failed: {first}", hint=f"{resume} continues; nothing is lost")
