"""The outcomes of checks as text, JSON or Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tests.conformance.registry import AREAS, ASSUMPTIONS, LANGUAGES, Check

FORMATS = ("text", "json", "markdown")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check: `error` is None if the service does what the source says."""

    area: str
    name: str
    language: str
    source: str
    error: str | None

    @classmethod
    def of(cls, check: Check, error: str | None) -> Outcome:
        return cls(check.area, check.name, check.language, check.source, error)


def render(outcomes: Sequence[Outcome], output: str) -> str:
    return {"text": _text, "json": _json, "markdown": markdown}[output](outcomes)


def failed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.error is not None for outcome in outcomes)


def _text(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        state = "ok" if outcome.error is None else "FAILED"
        lines.append(f"{state:<7} {outcome.area:<12} {outcome.language:<11} {outcome.name}")
        if outcome.error is not None:
            lines += [f"        {line}" for line in (*outcome.error.splitlines(), f"source: {outcome.source}")]
    number = failed(outcomes)
    return "\n".join([*lines, f"{len(outcomes)} checks: {len(outcomes) - number} passed, {number} failed"])


def _json(outcomes: Sequence[Outcome]) -> str:
    checks = [{**asdict(outcome), "passed": outcome.error is None} for outcome in outcomes]
    number = failed(outcomes)
    return json.dumps({"passed": len(outcomes) - number, "failed": number, "checks": checks}, indent=2)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row per area: how many checks pass by language, and their sources. Then what failed."""
    lines = [f"| area | {' | '.join(LANGUAGES)} | sources |", f"|---|{'---|' * len(LANGUAGES)}---|"]
    for area in AREAS:
        found = [outcome for outcome in outcomes if outcome.area == area]
        if found:
            columns = [area, *(_passed(found, language) for language in LANGUAGES), _sources(found)]
            lines.append(f"| {' | '.join(columns)} |")
    missed = [f"- failed: {each.name} ({each.language}, {each.source})" for each in outcomes if each.error is not None]
    return "\n".join([*lines, "", *missed] if missed else lines)


def _passed(outcomes: Sequence[Outcome], language: str) -> str:
    here = [outcome for outcome in outcomes if outcome.language == language]
    return f"{len(here) - failed(here)} of {len(here)}" if here else "none"


def _sources(outcomes: Sequence[Outcome]) -> str:
    if outcomes[0].area == ASSUMPTIONS:
        return "[their evidence](../ASSUMPTIONS.md)"
    sources = dict.fromkeys(outcome.source for outcome in outcomes)
    return ", ".join(f"[{number}]({source})" for number, source in enumerate(sources, 1))
