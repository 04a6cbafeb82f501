"""An emulator in the background: its process, its log and how to connect to it, in a directory of this user.

Invariant: its process has locked the file with its id until it ends, however it ends. So no record is stale.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sbpair.errors import ExitCode, MachineLacks, SbpairError, TimedOut, UsageError
from sbpair.operating_system import detached, file_lock, files
from sbpair.runs.database import make_directory, unusable
from sbpair.runs.file_lease import is_locked

if TYPE_CHECKING:
    import subprocess

DIRECTORY = ".emulator"
"""Beside the state directories of pairs, whose names begin with a letter or a digit."""

START_SECONDS, STOP_SECONDS, STEP_SECONDS = 60.0, 20.0, 0.05


class BackgroundEmulator:
    """The one emulator that a user may have in the background."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = files.user_directory("state", environ)[0] / DIRECTORY
        files_of_it = (self._directory / each for each in ("log", "ready.json", "process", "options"))
        self.log, self._ready, self._process, self._options = files_of_it
        self._started: subprocess.Popen[bytes] | None = None
        self._asked = ""

    @property
    def process(self) -> int:
        """The id of its process. Raises ValueError while it is not known."""
        return int(self._process.read_text("utf-8"))

    def start(self, words: Sequence[str]) -> bool:
        """Start it with these words after `sbpair`. Returns whether it was not running. Raises MachineLacks."""
        make_directory(self._directory)
        self._asked = shlex.join(words[1:])
        with self._locked() as lock, suppress(BlockingIOError):
            file_lock.lock(lock)
            os.ftruncate(lock, 0)
            for each in (self._ready, self.log, self._options):
                each.unlink(missing_ok=True)
            with os.fdopen(files.open_new(self._options), "w", encoding="utf-8") as file:
                file.write(self._asked)
            with os.fdopen(files.open_new(self.log), "wb") as log:
                started = detached.start([*words, "--ready-file", str(self._ready)], log, lock)
            os.write(lock, str(started.pid).encode())
            self._started = started
            return True
        return False

    def wait(self) -> dict[str, Any]:
        """Return its document once it is ready. Raises its own error if it ends instead, and TimedOut.

        Raises UsageError for one that runs with other options than those asked for.
        """

        def document() -> dict[str, Any] | None:
            with suppress(FileNotFoundError):
                found: dict[str, Any] = json.loads(self._ready.read_text("utf-8"))
                if self._asked and (own := self._options.read_text("utf-8")) != self._asked:
                    raise UsageError(
                        f"another emulator runs in the background, started with {own or 'no options'}",
                        hint="stop it first with --stop, or leave the options out to use it",
                    )
                return found
            if not is_locked(self._process):
                raise self._failure()
            return None

        found: dict[str, Any] = self._until(document, START_SECONDS, "is not ready")
        if self._started is not None:
            self._started.returncode = 0  # it outlives this process, which need not wait for it
        return found

    def stop(self) -> bool:
        """Stop it, and wait until it has ended. Returns whether it was running. Raises TimedOut."""
        if not is_locked(self._process):
            return False
        self.wait()
        detached.end(self.process)
        self._until(lambda: not is_locked(self._process), STOP_SECONDS, "does not end")
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            lock = file_lock.open_lock_file(self._process, create=True)
        except OSError as error:
            raise unusable(self._process, error) from error
        try:
            yield lock
        finally:
            os.close(lock)

    def _until(self, found: Callable[[], Any], seconds: float, problem: str) -> Any:
        deadline = time.monotonic() + seconds
        while not (answer := found()):
            if time.monotonic() > deadline:
                raise TimedOut(f"the emulator in the background {problem} after {seconds:g} s", hint=f"see {self.log}")
            time.sleep(STEP_SECONDS)
        return answer

    def _failure(self) -> SbpairError:
        """Return the error with which it has ended, as its log has it."""
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        said = dict(each.partition(": ")[::2] for each in lines)
        what = said.get("error", "the emulator in the background has ended")
        error = MachineLacks(what, hint=said.get("hint", f"see {self.log}"))
        if self._started is not None:
            error.exit_code = ExitCode(self._started.wait(STOP_SECONDS) or ExitCode.MACHINE)
        return error
