"""What was found out of one thing: it is well, it failed with a hint, it is worth a note, or nobody can tell. Pure.

A check that failed has the exit code of what is wrong; notes and what is unknown have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from sbpair.errors import ExitCode, SbpairError
from sbpair.model.report import Outcome, Report, ReportItem

if TYPE_CHECKING:
    from collections.abc import Iterable


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CheckNote:
    """What to do about a check; of what was tried on a namespace also what is assumed of it, and what was seen."""

    hint: str = ""
    assumed: str = ""
    observed: str = ""


Check: TypeAlias = ReportItem[CheckNote]
Diagnosis: TypeAlias = Report[CheckNote]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Event: one thing was looked at."""

    check: Check


Tell: TypeAlias = Callable[[Check], Check]
"""Takes a check in, tells of it, and gives it back."""

UNREACHABLE = ExitCode.UNAVAILABLE


def well(name: str, what: str) -> Check:
    return ReportItem(name, Outcome.OK, what)


def note(name: str, what: str, hint: str = "") -> Check:
    return ReportItem(name, Outcome.NOTE, what, CheckNote(hint))


def unknown(name: str, what: str, hint: str = "") -> Check:
    return ReportItem(name, Outcome.UNKNOWN, what, CheckNote(hint))


def failed(name: str, what: str, hint: str, code: int = ExitCode.PARTIAL_OR_FINDINGS) -> Check:
    return ReportItem(name, Outcome.FAILED, what, CheckNote(hint), code)


def of_error(name: str, error: SbpairError) -> Check:
    """An error as a check that failed: what it says, and its hint as the hint."""
    return failed(name, error.message, error.hint, error.exit_code)


def skipped(names: Iterable[str], because: str) -> list[Check]:
    """What cannot be looked at while `because` is as it is."""
    return [unknown(name, f"cannot be told before {because} is well") for name in names]


def diagnosis_exit_code(diagnosis: Diagnosis) -> int:
    """0 with all well; what failed has one exit code, then that; else 3."""
    return Report(tuple(diagnosis.of(Outcome.FAILED))).exit_code_for()


AGAIN = "try again, with a longer --timeout"
INSIST_SECONDS = 0.5


async def bounded(
    name: str, seconds: float, action: Coroutine[object, object, str | Check], *, hint: str = AGAIN
) -> Check:
    """The check that `action` comes to, a text meaning well, or what it failed with, in so many seconds at most.

    `hint` is for what has not answered by then.
    """
    try:
        found = await within(seconds, action)
    except TimeoutError:
        return failed(name, f"no answer within {seconds:g} s", hint, UNREACHABLE)
    except SbpairError as error:
        return of_error(name, error)
    return well(name, found) if isinstance(found, str) else found


async def within(seconds: float, action: Coroutine[object, object, Result]) -> Result:
    """What `action` comes to. Raises TimeoutError after so many seconds, and insists until it has really ended.

    Some clean up for longer than anybody wants to wait: an identity whose provider does not answer, for one.
    """
    task = asyncio.ensure_future(action)
    patience = seconds
    ended: TimeoutError | asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=patience)
            ended = ended if task.done() else ended or TimeoutError()
        except asyncio.CancelledError as error:
            ended = error
        if not task.done():
            task.cancel()
            patience = INSIST_SECONDS
    if ended is not None:
        task.cancelled() or task.exception()  # whatever it was, nobody waits for it any more
        raise ended
    return task.result()
