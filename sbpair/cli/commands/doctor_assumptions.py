"""`sbpair doctor --assumptions`: compares namespaces with ASSUMPTIONS.md, and prints or writes the result."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sbpair import __version__
from sbpair.cli.command_loop import run
from sbpair.cli.commands.runs import replaced_file
from sbpair.cli.next_command import with_options
from sbpair.cli.render.screen import Document, Screen
from sbpair.cli.render.table import GREEN, RED, coloured, columns
from sbpair.config import Survey
from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from sbpair.doctor import Check, Diagnosis
    from sbpair.doctor.assumptions import Assumption
    from sbpair.doctor.live_checks import LiveEvent

SCHEMA = "sbpair/assumptions/1"
CONFIRMED, NOT_CONFIRMED, NOT_CHECKED = "confirmed", "not_confirmed", "not_checked"
WORDS = {CONFIRMED: "confirmed", NOT_CONFIRMED: "not confirmed", NOT_CHECKED: "could not be checked"}


class Finding(NamedTuple):
    """An assumption in one namespace: its result, and what was seen or why it was not checked."""

    assumption: "Assumption"
    side: str
    result: str
    seen: str
    check: "Check | None"


def check_assumptions(
    survey: Survey,
    tag: str,
    *,
    seconds: float,
    slow: bool,
    write: Path | None,
    on_event: Callable[["LiveEvent"], object],
    screen: Screen,
) -> int:
    """Compare the configured namespaces with the assumptions, print the result, and return the exit code.

    Raises the error of the configuration if no namespace is configured, and MachineLacks if `write` cannot be written.
    """
    from sbpair.doctor import diagnosis_exit_code, live_checks

    with replaced_file(str(write)) if write else nullcontext() as target:
        asked = partial(live_checks.run_live, survey.endpoints, tag, seconds=seconds, slow=slow, assumptions=True)
        diagnosis = run(asked(on_event=on_event))
        findings = list(_findings(diagnosis, list(survey.endpoints)))
        document = {
            "version": __version__,
            "tiers": {side: check.reason for side, name, check in _named(diagnosis) if name == "tier"},
            "assumptions": [_entry(each) for each in findings],
        }
        if target is not None:
            target.write_text(json.dumps({"schema": SCHEMA, **document}, indent=2) + "\n", "utf-8")
    screen.result(SCHEMA, document, _table(findings), document["assumptions"])  # type: ignore[arg-type]
    for check in diagnosis.of(Outcome.FAILED):
        if check.name.endswith((".removed", ".asked")):
            screen.error(check.reason, with_options(check.detail.hint) if check.detail else "")
    return diagnosis_exit_code(diagnosis)


def _named(diagnosis: "Diagnosis") -> Iterator[tuple[str, str, "Check"]]:
    for check in diagnosis:
        _, side, name = check.name.split(".")
        yield side, name, check


def _findings(diagnosis: "Diagnosis", sides: Sequence[str]) -> Iterator[Finding]:
    """Yield the assumptions that one namespace can answer, in the order of the document, for each side."""
    from sbpair.doctor.assumptions import assumptions

    found = {(name, side): check for side, name, check in _named(diagnosis)}
    for name, assumption in assumptions().items():
        for side in sides if assumption.in_doctor else ():
            check, failure = found.get((name, side)), found.get(("asked", side))
            if check is None:
                because = failure.reason if failure else NOT_ASKED.get(name, "not asked")
                yield Finding(assumption, side, NOT_CHECKED, because, failure)
            elif check.detail and check.detail.assumed:
                result = CONFIRMED if check.outcome is Outcome.OK else NOT_CONFIRMED
                yield Finding(assumption, side, result, check.detail.observed, check)
            else:
                yield Finding(assumption, side, NOT_CHECKED, check.reason, check)


NOT_ASKED = {
    "idle_detach": "takes 10 minutes: add --include-idle-test",
    "unpartitioned": "concerns Premium namespaces",
    "timespan_max": "a Basic namespace cannot hold a backlog queue",
}
"""Why an assumption was not checked in a namespace that answered."""


def _entry(finding: Finding) -> Document:
    assumption, detail = finding.assumption, finding.check and finding.check.detail
    return {
        "name": assumption.name,
        "side": finding.side,
        "result": finding.result,
        "assumption": assumption.statement,
        "source": assumption.source,
        "if_false": assumption.if_false,
        "assumed": detail.assumed if detail else "",
        "observed": "" if finding.result == NOT_CHECKED else finding.seen,
        "reason": finding.seen if finding.result == NOT_CHECKED else "",
        "exit_code": finding.check.exit_code if finding.check else 0,
    }


def _table(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings, those that need attention first; sides with the same result share a row."""
    rows: dict[tuple[str, str, str], list[Finding]] = {}
    for each in sorted(findings, key=lambda each: list(WORDS).index(each.result) or len(WORDS)):
        rows.setdefault((each.assumption.name, each.result, each.seen), []).append(each)
    hints = [
        f"if false: {same[0].assumption.if_false}; source: {same[0].assumption.source}"
        if result == NOT_CONFIRMED
        else ""
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
