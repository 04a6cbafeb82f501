"""The content of a report, made from the record of a run. Pure: the pages only render it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbpair.cli.logs import utc
from sbpair.cli.render.receipt import PROOF_BUCKETS
from sbpair.cli.render.screen import grouped, size, spoken
from sbpair.cli.report.sections import Section, Table, ends_in_words, sections_of, short
from sbpair.cli.report.series import COUNTED, Plot, plots_of, timeline_rows
from sbpair.move.receipt import BUCKETS
from sbpair.runs.run_log import LIVE, RunOutcome

if TYPE_CHECKING:
    from sbpair.replay.checksums import ArchiveFiles
    from sbpair.runs.run_log import RunRecord, Sample

UNFINISHED = (*LIVE, RunOutcome.CRASHED)


@dataclass(frozen=True, slots=True)
class Equation:
    """The equation of a receipt: `whole` equals the sum of `parts`. `verdict` is good, open or bad, with its text."""

    whole: tuple[str, int]
    parts: tuple[tuple[str, int], ...]
    verdict: str
    text: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """All facts of a run. `alerts` come first, each with its tone: bad, warn or note."""

    title: str
    subtitle: str
    run: str
    outcome: str
    tone: str
    when: str
    alerts: tuple[tuple[str, str], ...]
    tiles: tuple[tuple[str, str], ...]
    identity: Equation | None
    plots: tuple[Plot, ...]
    timeline: Table | None
    sections: tuple[Section, ...]
    footer: str


def report_of(
    run: RunRecord, samples: Sequence[Sample], *, now_ms: int, version: str, archive: ArchiveFiles | str | None = None
) -> RunReport:
    """Return the report. `archive` are the files of a replay, or why they cannot be read."""
    receipt: Mapping[str, Any] = run.receipt or {}
    replayed = run.kind == "replay"
    end_ms = run.ended_ms or (now_ms if run.outcome in LIVE else _last_ms(run, samples))
    identity = _proved(receipt) if replayed else _identity(run, receipt)
    labels = {**COUNTED, "received": "archived"} if replayed and run.settings.get("mode") == "archive" else COUNTED
    plots = plots_of(run.started_ms, end_ms, samples, labels)
    rows = timeline_rows(run.started_ms, end_ms, samples, labels)
    return RunReport(
        f"sbpair {run.command}",
        _between(run),
        run.id,
        run.outcome.value,
        {RunOutcome.DONE: "good", RunOutcome.PARTIAL: "warn", **dict.fromkeys(LIVE, "note")}.get(run.outcome, "bad"),
        _when(run, end_ms),
        tuple(_alerts(run, samples)),
        tuple(_tiles(run, receipt, samples, end_ms)),
        identity,
        plots,
        Table(rows[0], rows[1]) if rows else None,
        sections_of(run, samples, plots, (end_ms - run.started_ms) / 1000, archive),
        f"Times are in UTC. Written by sbpair {version} at {utc(now_ms / 1000)}.",
    )


# The head.


def _between(run: RunRecord) -> str:
    primary, secondary = run.settings.get("primary"), run.settings.get("secondary")
    if not (primary and secondary):
        return ""
    return f"in {short(primary)}" if primary == secondary else f"from {short(secondary)} to {short(primary)}"


def _when(run: RunRecord, end_ms: int) -> str:
    spent = spoken((end_ms - run.started_ms) / 1000)
    started = utc(run.started_ms / 1000)
    if run.ended_ms is not None:
        return f"{started} to {utc(end_ms / 1000)}, {spent}"
    return f"since {started}, {spent} " + ("so far" if run.outcome in LIVE else "until its last figures")


def _last_ms(run: RunRecord, samples: Sequence[Sample]) -> int:
    return max(run.started_ms, samples[-1].at_ms if samples else 0)


def _alerts(run: RunRecord, samples: Sequence[Sample]) -> Iterable[tuple[str, str]]:
    if run.outcome in LIVE:
        yield "note", "This run is still going on: all figures are those so far."
    if run.outcome == RunOutcome.CRASHED:
        yield "bad", "This run ended without recording its end. Its figures are the last ones it wrote."
    if run.error:
        yield "bad", f"It failed: {short(run.error)}"
    if run.outcome == RunOutcome.PARTIAL:
        yield "warn", "Some messages need attention: the exit code was 3."
    if run.outcome == RunOutcome.STOPPED:
        yield "warn", "This run was stopped before it had finished."
    if not samples:
        yield "note", "This run has no timeline: it ended too early, or an earlier version of sbpair recorded it."


def _tiles(
    run: RunRecord, receipt: Mapping[str, Any], samples: Sequence[Sample], end_ms: int
) -> Iterable[tuple[str, str]]:
    last = samples[-1].figures.counts if samples else {}
    replayed = run.kind == "replay"
    whole = receipt.get("archived") or receipt.get("received") or last.get("received", 0)
    sent = int(receipt.get("acknowledged" if replayed else "sent", last.get("sent", 0)))
    yield ("archived" if replayed and receipt.get("mode") != "direct" else "received"), grouped(int(whole))
    yield "sent", grouped(sent)
    seconds = (end_ms - run.started_ms) / 1000
    yield "sent a second", f"{sent / seconds:.1f}" if seconds > 0 else "-"
    if receipt.get("bytes_sent"):
        yield "data sent", size(int(receipt["bytes_sent"]))
    dead = ("expired", "quarantined") if replayed else ("expired", "dead_lettered")
    yield ("not sendable" if replayed else "dead-lettered"), grouped(sum(int(receipt.get(name, 0)) for name in dead))
    if receipt.get("skipped"):
        yield "skipped", grouped(int(receipt["skipped"]))
    twice = (len(run.doubts), len(receipt.get("doubtful", [])), int(receipt.get("doubtful_total", 0)))
    yield "possible duplicates", grouped(max(twice))


# The identity.


def _identity(run: RunRecord, receipt: Mapping[str, Any]) -> Equation | None:
    if "received" not in receipt:
        return None
    parts = [(name.replace("_", " "), int(receipt.get(name, 0))) for name in BUCKETS]
    whole = int(receipt["received"])
    held = whole - sum(number for _, number in parts)
    if run.outcome in UNFINISHED and held > 0:
        text = f"{grouped(held)} were held then: they are in the {ends_in_words(run)[0]}, unless they were sent."
        return Equation(("received", whole), (*parts, ("held", held)), "open", text)
    return _judged(("received", whole), parts, balanced=not held)


def _proved(proof: Mapping[str, Any]) -> Equation | None:
    if "acknowledged" not in proof:
        return None
    whole, rest = ("received", "in_doubt") if proof.get("mode") == "direct" else ("archived", "unsent")
    parts = [(name, int(proof.get(name) or 0)) for name in (*PROOF_BUCKETS, rest)]
    total = int(proof.get(whole) or 0)
    sound = not (proof.get("contradictions") or proof.get("unknown"))
    named = [(name.replace("_", " "), number) for name, number in parts]
    return _judged((whole, total), named, balanced=sound and total == sum(number for _, number in parts))


def _judged(whole: tuple[str, int], parts: Iterable[tuple[str, int]], *, balanced: bool) -> Equation:
    text = "Each message is accounted for." if balanced else "The counts do not add up: please report this."
    return Equation(whole, tuple(parts), "good" if balanced else "bad", text)
