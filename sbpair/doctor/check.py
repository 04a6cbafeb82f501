"""The result of one check: ok, failed (with a hint), note, or unknown.

A failed check has the exit code of its error; notes and unknown results have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from sbpair.errors import ExitCode, SbpairError
from sbpair.model.connect_errors import DOCTOR_HINT
from sbpair.model.report import Outcome, Report, ReportItem

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CheckNote:
    """The hint of a check; of a live check also the assumed and the observed behaviour."""

    hint: str = ""
    assumed: str = ""
    observed: str = ""


Check: TypeAlias = ReportItem[CheckNote]
Diagnosis: TypeAlias = Report[CheckNote]


Emit: TypeAlias = Callable[[Check], Check]
"""Reports a check as an event, and returns it."""

UNREACHABLE = ExitCode.UNAVAILABLE


def ok(name: str, what: str) -> Check:
    return ReportItem(name, Outcome.OK, what)


def note(name: str, what: str, hint: str = "") -> Check:
    return ReportItem(name, Outcome.NOTE, what, CheckNote(hint))


def unknown(name: str, what: str, hint: str = "") -> Check:
    return ReportItem(name, Outcome.UNKNOWN, what, CheckNote(hint))


def failed(name: str, what: str, hint: str, code: int = ExitCode.PARTIAL_OR_FINDINGS) -> Check:
    return ReportItem(name, Outcome.FAILED, what, CheckNote(hint), code)


def of_error(name: str, error: SbpairError) -> Check:
    """Return an error as a failed check, without the hint to run the doctor."""
    return failed(name, error.message, error.hint.removesuffix(DOCTOR_HINT), error.exit_code)


def skipped(names: Iterable[str], because: str) -> list[Check]:
    """Return unknown checks, which depend on the failed check `because`."""
    return [unknown(name, f"unknown until {because} is ok") for name in names]


def diagnosis_exit_code(diagnosis: Diagnosis) -> int:
    """Return 0 without failures, the exit code that all failures share, or 3."""
    return Report(tuple(diagnosis.of(Outcome.FAILED))).exit_code_for()


AGAIN = "try again, with a longer --timeout"
CANCEL_SECONDS = 0.5


async def bounded(
    name: str, seconds: float, action: Coroutine[object, object, str | Check], *, hint: str = AGAIN
) -> Check:
    """Run a check for at most so many seconds. A text from `action` means ok; an error is a failed check.

    `hint` is that of a timeout.
    """
    try:
        found = await within(seconds, action)
    except TimeoutError:
        return failed(name, f"no answer within {seconds:g} s", hint, UNREACHABLE)
    except SbpairError as error:
        return of_error(name, error)
    return ok(name, found) if isinstance(found, str) else found


async def within(
    seconds: float, action: Coroutine[object, object, Result], *, cancel_seconds: float = CANCEL_SECONDS
) -> Result:
    """Run `action`. Raises TimeoutError after so many seconds, and cancels every `cancel_seconds` until it ends.

    Some actions clean up for long, such as an identity whose provider does not answer.
    """
    task = asyncio.ensure_future(action)
    wait = seconds
    ended: TimeoutError | asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=wait)
            ended = ended if task.done() else ended or TimeoutError()
        except asyncio.CancelledError as error:
            ended = error
        if not task.done():
            task.cancel()
            wait = cancel_seconds
    if ended is not None:
        task.cancelled() or task.exception()  # mark the exception as retrieved: there is no waiter
        raise ended
    return task.result()
