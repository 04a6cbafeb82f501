"""The driver's obedience to requests of other processes: a pause ends its tasks, and they start again afterwards.

Invariant: once a pause is confirmed, no task runs until the run resumes. A pause ends tasks by the file of a stop; the
content of the file tells one from the other, and a stop replaces a pause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING

from sbpair.errors import SbpairError
from sbpair.replay.archive_layout import PAUSE, STOP_FILE
from sbpair.replay.progress import PauseChanged, ReplayPhase
from sbpair.runs.control import Wanted

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.progress import OnEvent
    from sbpair.replay.task_lease import HeldLease
    from sbpair.runs.control import RunControl

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
WAIT_SECONDS = 1.0
JOIN_SECONDS = 5.0


class Pauses:
    """Those of one run. Without `obeying` there are none."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._wanted = self._confirmed = Wanted.RUNNING
        self._working = self._interrupted = False
        self._changed = threading.Condition()
        self._ended = threading.Event()

    @contextmanager
    def obeying(self, opening: Callable[[], AbstractContextManager[RunControl]], on_event: OnEvent) -> Iterator[None]:
        """Follow requests within the block, in a thread: the driver may wait for Spark."""
        context = copy_context()  # the invocation, whose options are in the commands that are printed
        arguments = (self._run, opening, on_event)
        thread = threading.Thread(target=context.run, args=arguments, name="obey requests", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(JOIN_SECONDS)

    @contextmanager
    def tasks(self, held: HeldLease, on_event: OnEvent) -> Iterator[None]:
        """Run tasks within the block, after the end of a pause. Raises LeaseLost."""
        with self._changed:
            try:
                while self._wanted is Wanted.PAUSED and not self._archive.stops_for_good():
                    held.check()
                    self._changed.wait(WAIT_SECONDS)
            except KeyboardInterrupt:
                self._archive.write(STOP_FILE, b"")
                on_event(ReplayPhase("stop", "stopping; a second signal ends at once"))
            self._working, self._interrupted = True, False
        try:
            yield
        finally:
            with self._changed:
                self._working = False

    @property
    def interrupted(self) -> bool:
        """Whether a pause has ended the tasks of the last block, which start again unless the run stops."""
        return self._interrupted and not self._archive.stops_for_good()

    def _run(self, opening: Callable[[], AbstractContextManager[RunControl]], on_event: OnEvent) -> None:
        failed = False
        try:
            with opening() as control:
                while not self._ended.wait(POLL_SECONDS):
                    try:
                        self._step(control, on_event)
                    except SbpairError as error:
                        if not failed:
                            log.warning("run %s does not know of requests: %s", self._archive.run, error.message)
                        failed = True
        except SbpairError as error:
            log.warning("run %s cannot be paused: %s", self._archive.run, error.message)

    def _step(self, control: RunControl, on_event: OnEvent) -> None:
        wanted, run = control.wanted(), self._archive.run
        with self._changed:
            if wanted is not self._wanted:
                self._change(wanted)
                self._wanted = wanted
                self._changed.notify_all()
                on_event(PauseChanged(wanted.value if wanted is not Wanted.PAUSED else "pausing", run))
            if wanted is Wanted.PAUSED and self._working and not self._archive.stop_requested():
                self._archive.write(STOP_FILE, PAUSE)
                self._interrupted = True
            quiet = wanted is Wanted.RUNNING or not self._working
        if wanted is not self._confirmed and quiet and wanted is not Wanted.CANCELLED:
            control.confirm(wanted)
            self._confirmed = wanted
            if wanted is Wanted.PAUSED:
                on_event(PauseChanged("paused", run))

    def _change(self, wanted: Wanted) -> None:
        if wanted is Wanted.CANCELLED:
            self._archive.write(STOP_FILE, b"")
        elif wanted is Wanted.RUNNING and self._archive.pause_requested():
            self._archive.remove(STOP_FILE)
