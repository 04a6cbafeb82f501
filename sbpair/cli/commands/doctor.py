"""`sbpair doctor`: options into calls of `sbpair.doctor`, and what it found into output."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import config
from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.options.common import Display, PairSelection, StateDirectory, options
from sbpair.cli.options.pairs import flags_of
from sbpair.cli.render.screen import Document, Screen, clean, columns, spoken
from sbpair.errors import Unsafe, UsageError
from sbpair.model.durations import TICKS_PER_SECOND, ticks
from sbpair.model.report import Outcome, Report

if TYPE_CHECKING:
    from sbpair.doctor import Check, CheckResult, Diagnosis
    from sbpair.doctor.live_questions import LiveEvent

SCHEMA = "sbpair/doctor/1"
MAX_SECONDS = 600.0


@options
def command(
    *,
    destination: Annotated[
        str | None,
        typer.Option("--destination", metavar="PATH", help="A queue or topic of the primary to try the claims on"),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="PATH",
            help="A queue of the secondary to try the claims on (backlog queue 0)",
            autocompletion=backlog_queues,
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long each check may take (15s)")
    ] = "15s",
    live: Annotated[
        bool,
        typer.Option("--live", help="Also compare what sbpair assumes of Service Bus with what these namespaces do"),
    ] = False,
    slow: Annotated[
        bool, typer.Option("--slow", help="With --live: also the question that takes ten minutes, of an idle link")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --live: make its queues without asking, and delete them")
    ] = False,
    state: StateDirectory = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Find out what keeps sbpair from working here, and what to do about it.

    Looks at the configuration, at this machine, and at the way to both namespaces: name, port, TLS, AMQP, HTTPS, clock,
    sign-in, the claims Send, Listen and Manage, and the tier. Sends, receives and changes nothing: for a claim, a link
    is opened and closed, without a message or credit. What fails has a hint; a note is nothing to hint.

    --live makes three queues called sbpair-doctor-… in each namespace, deletes them again, and shows what is observed
    beside what is assumed.

    JSON; the outcome is "ok", "failed", "note" or "unknown", and "live" is empty without --live:

      {"schema": "sbpair/doctor/1", "checks": [{"name": "", "outcome": "", "what": "", "hint": "", "exit_code": 0}],
       "live": [{"name": "", "outcome": "", "assumed": "", "observed": "", "what": "", "hint": "", "exit_code": 0}]}

    Exit codes: 0 all is well; 3 something is not; 2, 5, 6 or 7 where all that is wrong has that exit code.
    """
    screen = Screen(display)
    seconds = _seconds(timeout)
    if (slow or yes) and not live:
        raise UsageError(f"{'--slow' if slow else '--yes'} goes with --live only", hint="add --live, or leave it out")
    flags = flags_of(connection, state=state)
    survey = config.survey(flags, os.environ)
    from sbpair.doctor import CheckSubject, diagnose, diagnosis_exit_code
    from sbpair.doctor import live_questions as questions

    tag = questions.new_doctor_tag()
    if live and survey.endpoints:
        _agree(screen, [each.name for each in survey.endpoints.values()], questions.queue_names(tag), yes=yes)
    subject = CheckSubject(
        survey.endpoints,
        Path(str(config.file_setting(flags, os.environ).value)),
        survey.profile.state_directory if survey.profile else None,
        {side: path for side, path in (("primary", destination), ("secondary", queue)) if path},
    )
    screen.say(f"looking at {_named(survey)}, for at most {seconds:g} s a check")
    diagnosis = run(lambda _stop: diagnose(subject, seconds=seconds, on_event=lambda event: _show(screen, event)))
    diagnosis = Report((*configuration(survey), *diagnosis))
    if live:
        answers = run(
            lambda _stop: questions.ask_live(
                survey.endpoints, tag, seconds=seconds, slow=slow, on_event=lambda event: _show(screen, event)
            )
        )
        diagnosis = Report((*diagnosis, *answers))
    entries = [entry(check) for check in diagnosis]
    screen.result(document(entries), [{"schema": SCHEMA, **each} for each in entries], table(diagnosis))
    return diagnosis_exit_code(diagnosis)


def configuration(survey: config.Survey) -> Iterator["Check"]:
    """What there is to say of the configuration, and of variables that nobody reads."""
    from sbpair.doctor.check import failed, of_error, ok

    for error in survey.errors:
        yield of_error("configuration", error)
    if survey.profile is not None:
        pair = survey.profile.pair
        yield ok("configuration", f"pair {pair.name}: {pair.primary.name}, and {pair.secondary.name} behind it")
    for variable, meant in config.misspelt(os.environ).items():
        yield failed("environment", f"nobody reads {variable}", f"did you mean {meant}?")


def entry(check: "Check") -> Document:
    """One check of the JSON contract."""
    remark = check.detail
    compared = {"assumed": remark.assumed, "observed": remark.observed} if remark and remark.assumed else {}
    return {
        "name": check.name,
        "outcome": str(check.outcome),
        **compared,
        "what": check.reason,
        "hint": remark.hint if remark else "",
        "exit_code": check.exit_code,
    }


def document(entries: list[Document]) -> Document:
    """The JSON contract; what was asked of the namespaces live is apart."""
    live = [each for each in entries if str(each["name"]).startswith("live.")]
    return {"schema": SCHEMA, "checks": [each for each in entries if each not in live], "live": live}


def table(diagnosis: "Diagnosis") -> Iterator[str]:
    """The same for people: a line a check, and a line for what to do about it."""
    compared = [check for check in diagnosis if check.detail and check.detail.assumed]
    looked = [check for check in diagnosis if check not in compared]
    yield from _with_mends(looked, [("CHECK", "OUTCOME", "WHAT"), *((_spoken(c), c.outcome, c.reason) for c in looked)])
    if compared:
        yield ""
        rows = [(_spoken(c), c.outcome, c.detail.assumed, c.detail.observed) for c in compared if c.detail]
        yield from _with_mends(compared, [("QUESTION", "OUTCOME", "ASSUMED", "OBSERVED"), *rows])
    wrong, untold = len(diagnosis.of(Outcome.FAILED)), len(diagnosis.of(Outcome.UNKNOWN))
    yield ""
    yield (f"{wrong} to be mended" if wrong else "all is well") + (f"; {untold} could not be told" if untold else "")


def _with_mends(checks: list["Check"], rows: list[tuple[object, ...]]) -> Iterator[str]:
    heading, *texts = columns(rows)
    yield heading
    for check, text in zip(checks, texts, strict=True):
        yield text
        if check.detail and check.detail.hint:
            yield columns([(f"  -> {check.detail.hint}",)])[0]


def _spoken(check: "Check") -> str:
    return _as_words(check.name)


def _as_words(name: str) -> str:
    return name.replace(".", " ").replace("_", " ")


def _show(screen: Screen, event: "CheckResult | LiveEvent") -> None:
    from sbpair.doctor.live_questions import QuestionAsked, QuestionPending

    match event:
        case QuestionAsked(name):
            screen.say(f"asking: {_as_words(name)}")
        case QuestionPending(name, seconds):
            screen.say(f"waiting for {_as_words(name)}, about {spoken(seconds)}")
        case _:
            screen.detail(f"{_spoken(event.check)}: {event.check.outcome}, {event.check.reason}")


def _agree(screen: Screen, namespaces: list[str], queues: tuple[str, ...], *, yes: bool) -> None:
    """Say what is about to be made; go on where somebody agrees."""
    screen.warn(f"--live makes, uses and deletes in {' and '.join(namespaces)}: {', '.join(queues)}")
    if yes:
        return
    if not all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise UsageError("--live makes queues, and there is nobody to ask", hint="say --yes, where that may be")
    if not screen.asks("Go on?"):
        raise Unsafe("nothing was made: nobody agreed", hint="leave --live out to look only")


def _named(survey: config.Survey) -> str:
    names = [each.name for each in survey.endpoints.values()]
    return " and ".join(["this machine", *names]) if len(names) < 2 else f"this machine, {names[0]} and {names[1]}"


def _seconds(text: str) -> float:
    try:
        seconds = ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"--timeout: {error.message}", hint=error.hint) from None
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"--timeout {clean(text)} is not more than 0 and at most 10m", hint="15s is the default")
    return seconds
