"""`sbpair doctor`: runs the checks of `sbpair.doctor`, and compares namespaces with ASSUMPTIONS.md."""

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from sbpair import __version__, config
from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.next_command import next_command, with_options
from sbpair.cli.options.common import STATE, PairSelection, duration, flag, option
from sbpair.cli.options.values import MOVERS_LEASE, Management, flags_of, group_of
from sbpair.cli.render.screen import Screen, plural, spoken
from sbpair.cli.render.table import GREEN, RED, coloured, columns, wrapped
from sbpair.config.file import file_setting
from sbpair.model.document import UNLESS_NONE, document, encoded
from sbpair.model.pair import SIDES, Side
from sbpair.model.report import Outcome, Report
from sbpair.operating_system.files import replaced_file

if TYPE_CHECKING:
    from sbpair.doctor import Check, Diagnosis
    from sbpair.doctor.live_checks import LiveEvent

MAX_SECONDS = 600.0
LIVE = "--live or --assumptions"
RECEIVES = "of a backlog queue where nothing moves, receives and releases a message"


class CheckEntry(NamedTuple):
    """A check."""

    name: Annotated[str, "Name of the check", {"examples": ["primary.sign_in"]}]
    outcome: Annotated[Outcome, "Outcome", {"enum": ["ok", "failed", "note", "unknown"]}]
    assumed: Annotated[str | None, "Assumed behaviour, of a live test", UNLESS_NONE]
    observed: Annotated[str | None, "Observed behaviour, of a live test", UNLESS_NONE]
    reason: Annotated[str, "What was found"]
    hint: Annotated[str, "What to do about it; may be empty"]
    exit_code: Annotated[int, "Exit code of the problem; 0 for none"]


@document("sbpair/doctor/1", "checks", "live")
class DoctorResult:
    """The checks of sbpair doctor. JSON Lines have one check each."""

    checks: Annotated[tuple[CheckEntry, ...], "Checks"]
    live: Annotated[tuple[CheckEntry, ...], "Live tests; empty without --live"]


def command(
    *,
    destination: str | None = option("--destination PATH", "Queue or topic of the primary to test claims on"),
    queue: str | None = option(
        "--queue PATH", "Queue of the secondary to test claims on [default: backlog queue 0]", complete=backlog_queues
    ),
    timeout: float = duration("--timeout DURATION", "Time limit of each check", default="15s", at_most=MAX_SECONDS),
    live: bool = flag("--live", "Also test assumptions about Service Bus, on temporary queues; find other receivers"),
    assumptions: bool = flag(
        "--assumptions",
        "Compare the namespaces with sbpair help assumptions, and check nothing else",
        excludes=("--live", "--queue", "--destination", "--via arm"),
    ),
    include_idle_test: bool = flag("--include-idle-test", "Also test an idle link, which takes 10 minutes", needs=LIVE),
    yes: bool = flag("--yes -y", "Create and delete the temporary entities without asking", needs=LIVE),
    write: Path | None = option(
        "--write FILE", "Write the result as JSON, for a bug report; replaces the file", needs="--assumptions"
    ),
    management: Management,
    lease: str | None = MOVERS_LEASE,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Find problems with the configuration, this machine and access.

    Checks names, ports, TLS, AMQP, HTTPS, clock, sign-in, claims, tiers and disabled queues of both namespaces, and
    the room for the state, with a hint for each failure. Where port 5671 is blocked, tries WebSockets on port 443.
    Claims that a syphon needs are Send on a destination of the primary and Listen on the backlog queues.
    Sends, receives and changes nothing. --live creates three queues called sbpair-doctor-… in each namespace and
    deletes them afterwards. It also finds other receivers of the backlog, such as an old syphon: of a queue where
    nothing moves, it receives and releases a message. --via arm also compares regions, tiers, capacity, networks
    and keys, as Azure Resource Manager describes them. --assumptions creates six queues and a topic, takes 25
    seconds, and uses every namespace that is configured.

    Examples:
      sbpair doctor
      sbpair doctor --live --yes
      sbpair doctor --assumptions --write assumptions.json

    Exit codes: 0 no problem; 3 problems; 2, 5, 6 or 7 if all problems have that exit code
    """
    group = group_of(management)
    flags = flags_of(connection, state=state)
    survey = config.survey(flags, os.environ)
    from sbpair.doctor import CheckSubject, diagnose, diagnosis_exit_code, live_checks

    tag = uuid.uuid4().hex[:12]
    if assumptions and not survey.endpoints:
        raise survey.errors[0]
    if (live or assumptions) and survey.endpoints:
        names = " and ".join(each.name for each in survey.endpoints.values())
        created = ", ".join(live_checks.queue_names(tag, assumptions=assumptions).values())
        plan = f"creates, uses and deletes in {names}: {created}" + f"; {RECEIVES}" * live
        screen.confirm("--assumptions" if assumptions else "--live", plan, next_command("doctor", "--yes"), yes=yes)
    on_event = partial(_show, screen)
    asked = partial(
        live_checks.run_live, survey.endpoints, tag, seconds=timeout, slow=include_idle_test, on_event=on_event
    )
    if assumptions:
        for error in survey.errors:
            screen.warn(f"{error.message}; the other namespace is checked")
        with replaced_file(str(write)) if write else nullcontext() as target:
            diagnosis = run(asked(assumptions=True))
            findings = list(_findings(diagnosis, [side for side in SIDES if side in survey.endpoints]))
            tiers = {side: check.reason for side, name, check in _named(diagnosis) if name == "tier"}
            compared = ComparedAssumptions(__version__, tiers, tuple(findings))
            if target is not None:
                target.write_text(json.dumps(encoded(compared), indent=2) + "\n", "utf-8")
        screen.show(compared, _assumptions_table(findings))
        for check in diagnosis.of(Outcome.FAILED):
            if check.name.endswith((".removed", ".asked")):
                screen.error(check.reason, _hint(check))
        return diagnosis_exit_code(diagnosis)
    subject = CheckSubject(
        survey.endpoints,
        Path(str(file_setting(flags, os.environ).value)),
        survey.profile.state_directory if survey.profile else None,
        {side: path for side, path in (("primary", destination), ("secondary", queue)) if path},
        group,
        lease,
    )
    *others, last = ["this machine", *(each.name for each in survey.endpoints.values())]
    screen.say(f"checking {' and '.join(filter(None, (', '.join(others), last)))}, at most {timeout:g} s each")
    diagnosis = run(diagnose(subject, seconds=timeout, on_event=on_event))
    diagnosis = Report((*_configuration(survey, config.unknown_variables(flags, os.environ)), *diagnosis))
    if live:
        diagnosis = Report((*diagnosis, *run(asked())))
    entries = tuple(map(_entry, diagnosis))
    answers = tuple(each for each in entries if each.name.startswith("live."))
    checks = tuple(each for each in entries if each not in answers)
    screen.show(DoctorResult(checks, answers), _table(diagnosis, verbose=screen.detailed))
    return diagnosis_exit_code(diagnosis)


def _configuration(survey: config.Survey, unknown: dict[str, str]) -> Iterator["Check"]:
    from sbpair.doctor.check import failed, note, of_error, ok

    for error in survey.errors:
        yield of_error("configuration", error)
    if survey.profile is not None:
        pair = survey.profile.pair
        yield ok("configuration", f"pair {pair.name}: {pair.primary.name} with {pair.secondary.name} as secondary")
    for variable, meant in unknown.items():
        what = f"{variable} is not a known variable, and has no effect"
        hint = f"did you mean {meant}?" if meant else "see sbpair help config"
        yield (failed if meant else note)("environment", what, hint)


def _entry(check: "Check") -> CheckEntry:
    detail = check.detail
    assumed, observed = (detail.assumed, detail.observed) if detail and detail.assumed else (None, None)
    return CheckEntry(check.name, check.outcome, assumed, observed, check.reason, _hint(check), check.exit_code)


def _table(diagnosis: "Diagnosis", *, verbose: bool) -> Iterator[str]:
    """Yield the problems, the other checks, and the number of problems; ok checks in one line each group."""
    outcomes = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.NOTE, *([Outcome.OK] if verbose else []))
    shown = [check for outcome in outcomes for check in diagnosis.of(outcome)]
    compared = [check for check in shown if check.detail and check.detail.assumed]
    checked = [check for check in shown if check not in compared]
    if checked:
        rows = [(_as_words(each.name), each.outcome, each.reason) for each in checked]
        yield from columns([("CHECK", "OUTCOME", "WHAT"), *rows], hints=list(map(_hint, checked)))
        yield ""
    if compared:
        live = [(_as_words(c.name), c.outcome, c.detail.assumed, c.detail.observed) for c in compared if c.detail]
        yield from columns([("QUESTION", "OUTCOME", "ASSUMED", "OBSERVED"), *live], hints=list(map(_hint, compared)))
        yield ""
    if not verbose:
        yield from _folded(diagnosis)
    failed, unknown = len(diagnosis.of(Outcome.FAILED)), len(diagnosis.of(Outcome.UNKNOWN))
    problems = coloured(plural(failed, "problem"), RED) if failed else coloured("no problems", GREEN)
    yield problems + (f"; {unknown} unknown" if unknown else "")


def _folded(diagnosis: "Diagnosis") -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for check in diagnosis.of(Outcome.OK):
        group, _, name = check.name.rpartition(".")
        groups.setdefault(_as_words(group) or "this machine", []).append(_as_words(name))
    for group, names in groups.items():
        first, *more = wrapped(f"ok  {group}: {', '.join(names)}")
        yield from (coloured("ok", GREEN) + first[2:], *more)
    if groups:
        yield ""


def _hint(check: "Check") -> str:
    return with_options(check.detail.hint) if check.detail else ""


def _as_words(name: str) -> str:
    return name.replace(".", " ").replace("_", " ")


def _show(screen: Screen, event: "LiveEvent") -> None:
    from sbpair.doctor.live_checks import CheckBegun, CheckPending

    match event:
        case CheckBegun(name):
            screen.say(f"testing: {_as_words(name)}")
        case CheckPending(name, seconds):
            screen.say(f"waiting for {_as_words(name)}, about {spoken(seconds)}")
        case _:
            screen.detail(f"{_as_words(event.name)}: {event.outcome}, {event.reason}")


Result = Literal["confirmed", "not_confirmed", "not_checked"]
CONFIRMED, NOT_CONFIRMED, NOT_CHECKED = get_args(Result)
WORDS = {CONFIRMED: "confirmed", NOT_CONFIRMED: "not confirmed", NOT_CHECKED: "could not be checked"}


class AssumptionFinding(NamedTuple):
    """An assumption in one namespace."""

    name: Annotated[str, "Its name in sbpair help assumptions", {"examples": ["lock_expires"]}]
    side: Annotated[Side, "Side of the namespace"]
    result: Annotated[Result, "Result"]
    assumption: Annotated[str, "The assumption"]
    evidence: Annotated[str, "Kind of its evidence", {"enum": ["recorded", "documented", "tested", "inferred"]}]
    source: Annotated[str, "The text, recording or test that shows it; for inferred ones what is known"]
    if_false: Annotated[str, "The effect on sbpair if it is false"]
    assumed: Annotated[str, "Observation if it is true; empty if not checked"]
    observed: Annotated[str, "Observation; empty if not checked"]
    reason: Annotated[str, "Why it could not be checked; empty if it was"]
    exit_code: Annotated[int, "Exit code of the problem; 0 for none"]


@document("sbpair/assumptions/1", "assumptions")
class ComparedAssumptions:
    """The result of sbpair doctor --assumptions. JSON Lines have one assumption each."""

    version: Annotated[str, "Version of sbpair"]
    tiers: Annotated[dict[str, str], "Tier of each namespace, by side"]
    assumptions: Annotated[tuple[AssumptionFinding, ...], "The assumptions that one namespace can answer"]


def _named(diagnosis: "Diagnosis") -> Iterator[tuple[str, str, "Check"]]:
    for check in diagnosis:
        _, side, name = check.name.split(".")
        yield side, name, check


def _findings(diagnosis: "Diagnosis", sides: Sequence[Side]) -> Iterator[AssumptionFinding]:
    """Yield the assumptions that one namespace can answer, in the order of the document, for each side."""
    from sbpair.doctor.assumptions import assumptions

    found = {(name, side): check for side, name, check in _named(diagnosis)}
    for name, each in assumptions().items():
        for side in sides if each.in_doctor else ():
            check = found.get((name, side)) or found.get(("asked", side))
            detail = check.detail if check else None
            result, assumed, observed, reason = NOT_CHECKED, "", "", ""
            if check and detail and detail.assumed:
                result = CONFIRMED if check.outcome is Outcome.OK else NOT_CONFIRMED
                assumed, observed = detail.assumed, detail.observed
            else:
                reason = check.reason if check else f"only {each.doctor.removeprefix('yes; ')}"
            yield AssumptionFinding(
                name,
                side,
                result,
                each.statement,
                each.evidence,
                each.source,
                each.if_false,
                assumed,
                observed,
                reason,
                check.exit_code if check else 0,
            )


def _assumptions_table(findings: Sequence[AssumptionFinding]) -> Iterator[str]:
    """Yield the findings, those that need attention first; sides with the same result share a row."""
    rows: dict[tuple[str, str, str], list[AssumptionFinding]] = {}
    for each in sorted(findings, key=lambda each: list(WORDS).index(each.result) or len(WORDS)):
        rows.setdefault((each.name, each.result, each.observed or each.reason), []).append(each)
    hints = [
        f"if false: {same[0].if_false}; {same[0].evidence}: {same[0].source}" if result == NOT_CONFIRMED else ""
        for (_, result, _), same in rows.items()
    ]
    cells = [
        (name, ", ".join(each.side for each in same), WORDS[result], seen)
        for (name, result, seen), same in rows.items()
    ]
    yield from columns([("ASSUMPTION", "SIDE", "OUTCOME", "SEEN"), *cells], hints=hints)
    yield ""
    counts = {result: sum(each.result == result for each in findings) for result in WORDS}
    parts = [f"{count} {WORDS[result]}" for result, count in counts.items() if count]
    yield coloured(", ".join(parts), RED if counts[NOT_CONFIRMED] else GREEN)
