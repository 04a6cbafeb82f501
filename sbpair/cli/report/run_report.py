"""The report of a run: its content, made from the record of the run, and its forms.

One form is an HTML file without scripts, which loads nothing; the other is GitHub-flavoured Markdown, for tickets.

Invariant: no text of a message can become markup. In Markdown it stands in code, where none is read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sbpair.cli.logs import utc
from sbpair.cli.render.receipt import OPERATIONS, PROOF_BUCKETS, discards
from sbpair.cli.render.screen import clean, grouped, size, spoken
from sbpair.cli.report.plots import COUNTED, NARROW, WIDE, Plot, ages_of, draw, plots_of, timeline_rows
from sbpair.model.cost import Operations, estimate
from sbpair.move.receipt import BUCKETS
from sbpair.runs.run_record import LIVE, RunOutcome
from sbpair.template import filled

if TYPE_CHECKING:
    from sbpair.replay.archive import ArchiveFiles
    from sbpair.runs.run_log import Sample
    from sbpair.runs.run_record import RunRecord

ROWS_SHOWN = 200
"""How many rows a table has at most: the JSON of `sbpair runs show` has all of them."""

MAX_TEXT = 300
DEFAULT_TIER = "Standard"
REPLAY_COST = (
    "Estimated from the counts, for messages of at most 64 KB: each is received, completed and sent once. Renewals of"
    " locks, counts and peeks are not included."
)
NOT_SET = {"rate": "no limit", "credits": "no limit", "tier": "unknown"}

Cell = str | int
"""A text, or a number that is aligned to the right."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a section. `more` were left out. `shares` adds a bar to each number of the second column.

    `cards`: where the page is narrow, each row is a card, since its texts are long.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    shares: bool = False
    cards: bool = False

    @property
    def largest(self) -> int:
        return max((int(row[1]) for row in self.rows), default=0)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers, such as rates, or `-` for unknown ones: it is aligned to the right."""
        cells = [[row[at] for row in self.rows] for at in range(len(self.columns))]
        return tuple(
            any(map(_is_number, each)) and all(_is_number(cell) or cell == "-" for cell in each) for each in cells
        )


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report. `notes` are sentences in front of its tables."""

    title: str
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[str, ...] = ()


def sections_of(
    run: RunRecord,
    samples: Sequence[Sample],
    plots: Sequence[Plot],
    seconds: float,
    archive: ArchiveFiles | str | None,
) -> tuple[Section, ...]:
    """Return the sections of a run that took so many seconds."""
    receipt: Mapping[str, Any] = run.receipt or {}
    found = (
        _destinations(receipt, plots, seconds),
        _ages(samples),
        _not_sent(receipt) if run.kind == "replay" else _dead_letters(receipt),
        _ramp(run, receipt),
        _stayed(run, receipt),
        _backing_off(run, receipt),
        _discards(receipt),
        _in_doubt(run),
        _queues(receipt),
        *_archive(archive, receipt),
        _configuration(run.settings),
        _cost(run, receipt),
    )
    return tuple(each for each in found if each is not None)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int) or bool(re.fullmatch(r"\d+\.\d", cell))


def short(value: object) -> str:
    """Return a text of a message or a service on one line, cut after MAX_TEXT characters."""
    text = clean(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def ends_in_words(run: RunRecord) -> tuple[str, str]:
    """Return the source and the destination of a run."""
    return (
        ("source", "destination") if run.settings.get("source") else ("backlog", str(run.settings.get("to", "primary")))
    )


def _table(columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]], *, total: int = 0, **form: bool) -> Table:
    """Return the first rows, of at least `total`."""
    shown = tuple(tuple(each if isinstance(each, int) else short(each) for each in row) for row in rows[:ROWS_SHOWN])
    return Table(columns, shown, max(len(rows), total) - len(shown), **form)


def _destinations(receipt: Mapping[str, Any], plots: Sequence[Plot], seconds: float) -> Section:
    sent = sorted(receipt.get("destinations", {}).items(), key=lambda each: (-each[1], each[0]))
    if not sent:
        return Section("Destinations", ("No message was sent.",))
    peaks = next((plot.peaks for plot in plots if plot.peaks), {})
    rows = [
        (
            name,
            int(number),
            f"{number / seconds:.1f}" if seconds > 0 else "-",
            f"{peaks[name]:.1f}" if name in peaks else "-",
        )
        for name, number in sent
    ]
    return Section("Destinations", (), (_table(("destination", "sent", "a second", "at most"), rows, shares=True),))


def _ages(samples: Sequence[Sample]) -> Section | None:
    ages = [(at_ms, age) for at_ms, age in ages_of(samples) if age is not None]
    if not ages:
        return None
    chosen = {"at first": ages[0], "at most": max(ages, key=lambda each: each[1]), "at last": ages[-1]}
    rows = [(name, spoken(age), utc(at_ms / 1000)) for name, (at_ms, age) in chosen.items()]
    return Section("Age of the oldest message", (), (_table(("", "age", "time"), rows),))


def _dead_letters(receipt: Mapping[str, Any]) -> Section:
    number = int(receipt.get("dead_lettered", 0)) + int(receipt.get("expired", 0))
    if not number:
        return Section("Dead letters", ("No message was dead-lettered.",))
    reasons = sorted(receipt.get("dead_letter_reasons", {}).items(), key=lambda each: (-each[1], each[0]))
    tables = (_table(("reason", "messages"), reasons, shares=True),) if reasons else ()
    named = _named(receipt.get("dead_letters", ()), "description", number)
    return Section("Dead letters", (), (*tables, named))


def _ramp(run: RunRecord, receipt: Mapping[str, Any]) -> Section | None:
    """Return the steps of a ramp, and the messages that came back; None without a ramp."""
    ramp = receipt.get("ramp")
    if not ramp:
        return None
    state, destination = ramp["state"], ends_in_words(run)[1]
    notes = [
        {
            "passed": "No moved message came back in any step: the rest was sent at full speed.",
            "stopped": "Messages came back as dead letters, or others grew in number: the run sent no more.",
        }.get(state, "The last step had not ended.")
    ]
    if ramp["other_dead_letters"]:
        number = grouped(int(ramp["other_dead_letters"]))
        notes.append(f"{number} other dead letters came to the {destination}, or had no message id to tell.")
    steps = [
        (f"up to {grouped(each['total'])}", each["sent"], spoken(each["observed_seconds"]), each["came_back"])
        for each in ramp["steps"]
    ]
    steps += [(f"up to {grouped(total)}", "-", "-", "-") for total in ramp["totals"][len(steps) :]]
    tables = [_table(("step", "sent", "observed", "came back"), steps)] if steps else []
    if named := ramp["came_back"]:
        tables.append(_named(named, "reason", int(ramp["came_back_total"])))
    return Section("Ramp", tuple(notes), tuple(tables))


def _stayed(run: RunRecord, receipt: Mapping[str, Any]) -> Section | None:
    """Return the messages that a run left in its source on purpose; None if it left nothing, and had no filter."""
    skipped, where = int(receipt.get("skipped", 0)), receipt.get("where")
    if not skipped and not where:
        return None
    notes = []
    if where:
        whole = grouped(int(where["chosen"]) + int(where["skipped"]))
        notes.append(f"The filter chose {grouped(int(where['chosen']))} of {whole} messages: {short(where['text'])}")
        if where.get("failed"):
            notes.append(
                f"It could not be calculated for {grouped(int(where['failed']))}: {short(where['first_failure'])}"
            )
    place = f"in the {ends_in_words(run)[0]}"
    if skipped and run.outcome == RunOutcome.RUNNING:
        notes.append(f"Skipped messages stay {place}, locked until this run ends.")
    elif skipped and run.outcome in (RunOutcome.DONE, RunOutcome.PARTIAL, RunOutcome.STOPPED, RunOutcome.PAUSED):
        notes.append(f"Skipped messages are {place}, unlocked, with the delivery counts that they had.")
    elif skipped:
        notes.append(
            f"Skipped messages are {place}. Locks that were left end by themselves, and raise delivery counts."
        )
    others = skipped - int(where["skipped"] if where else 0)
    named = receipt.get("stayed", [])
    tables = (_named(named, "reason", others),) if named else ()
    return Section("Skipped messages", tuple(notes), tables)


def _backing_off(run: RunRecord, receipt: Mapping[str, Any]) -> Section | None:
    """Return the destinations that took no more; None if there are none."""
    found = receipt.get("backing_off")
    if not found:
        return None
    rows = [(each["destination"], int(each["messages"]), each["reason"], each["hint"] or "-") for each in found]
    columns, total = ("destination", "went back", "last error", "next step"), int(receipt["backing_off_total"])
    note = f"Messages for these destinations went back to the {ends_in_words(run)[0]}."
    return Section("Destinations that took no more", (note,), (_table(columns, rows, total=total, cards=True),))


def _discards(receipt: Mapping[str, Any]) -> Section | None:
    """Return messages that topics discarded, or that a replay found to be discarded; None without any."""
    notes = (*discards(receipt), *map(short, receipt.get("notes", ())))
    return Section("Topics that discard messages", notes) if notes else None


def _named(messages: Iterable[Mapping[str, Any]], reason: str, total: int) -> Table:
    named = ((str(each.get("message_id") or each["sequence_number"]), each) for each in messages)
    rows = [(name, each["queue"], each["destination"] or "-", each["reason"]) for name, each in named]
    return _table(("message", "queue", "destination", reason), rows, total=total, cards=True)


def _not_sent(proof: Mapping[str, Any]) -> Section:
    reasons = list(proof.get("reasons", {}).items())
    if not reasons:
        return Section("Messages that were not sent", ("None, except for those that the equation names.",))
    table = _table(("reason", "messages"), reasons, shares=True)
    return Section("Messages that were not sent", ("They stay in the archive.",), (table,))


def _in_doubt(run: RunRecord) -> Section:
    found, total = [asdict(each) for each in run.doubtful()], run.counts.doubtful_total
    if not total:
        return Section("Possible duplicates", ("None: no message may have arrived twice.",))
    note = f"The {ends_in_words(run)[1]} may have these messages, and may have them twice."
    return Section("Possible duplicates", (note,), (_named(found, "reason", total),))


def _queues(receipt: Mapping[str, Any]) -> Section | None:
    found = {name: counts for name, counts in receipt.get("queues", {}).items() if any(counts.values())}
    if not found:
        return None
    names = [name for name in next(iter(found.values())) if any(counts.get(name) for counts in found.values())]
    rows = [(queue, *(int(counts.get(name, 0)) for name in names)) for queue, counts in found.items()]
    remaining = receipt.get("remaining_in_queues") or {}
    notes = tuple(f"{grouped(number)} remain in {short(queue)}." for queue, number in remaining.items())
    if receipt.get("locked"):
        notes += (f"{grouped(int(receipt['locked']))} were left locked.",)
    return Section("Queues", notes, (_table(("queue", *(name.replace("_", " ") for name in names)), rows, cards=True),))


def _archive(archive: ArchiveFiles | str | None, proof: Mapping[str, Any]) -> Iterable[Section]:
    if archive is None:
        return
    place = short(proof.get("archive", ""))
    if isinstance(archive, str):
        yield Section("Archive", (f"The archive {place} was not read: {short(archive)}",))
        return
    rows = [(each.name, each.files, size(each.bytes), each.sha256 or "-") for each in archive.directories]
    note = f"{place} holds the files of this run. A checksum covers the names and the contents of a directory's files."
    check = f"cd {shlex.quote(archive.root)} && find ledger -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    table = _table(("directory", "files", "size", "SHA-256"), rows, cards=True)
    yield Section("Archive", (note,), (table,), (check,) if archive.is_local else ())


def _configuration(settings: Mapping[str, object]) -> Section:
    if not settings:
        return Section("Configuration", ("An earlier version of sbpair recorded this run without its options.",))
    shown = {name: value for name, value in settings.items() if name != "source" or value is not None}
    rows = [(_option(name, settings), _setting(name, value)) for name, value in shown.items()]
    return Section("Configuration", (), (_table(("option", "value"), rows),))


def _option(name: str, settings: Mapping[str, object]) -> str:
    """Return the name of an option: a move has a source and a destination instead of a secondary and a primary."""
    if settings.get("source") or settings.get("to"):
        name = f"{name} namespace" if name in ("primary", "secondary") else name
        name = name.replace("primary", "destination").replace("secondary", "source")
    return name.replace("_", " ")


def _setting(name: str, value: object) -> str:
    if value is None:
        return next((text for end, text in NOT_SET.items() if name.endswith(end)), "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cost(run: RunRecord, receipt: Mapping[str, Any]) -> Section:
    spent = receipt.get("operations") or _replayed_operations(receipt)
    if not spent:
        return Section("Cost", ("The operations of this run were not recorded.",))
    known = {each.name for each in fields(Operations)}
    operations = Operations(**{name: int(number) for name, number in spent.items() if name in known})
    tiers = {side: str(run.settings.get(f"{side}_tier") or "") for side in ("primary", "secondary")}
    found = estimate(operations, **{side: tier or DEFAULT_TIER for side, tier in tiers.items()})
    rows = [(text, int(spent[name])) for name, text in OPERATIONS.items() if name in spent]
    notes = [] if all(tiers.values()) else [f"{DEFAULT_TIER} is assumed where the tier is unknown."]
    if not receipt.get("operations"):
        notes.append(REPLAY_COST)
    if found.by_sbpair is not None:
        money = [f"{each.quantize(Decimal('0.01'))}" for each in (found.by_sbpair.minimum, found.by_sbpair.maximum)]
        span = money[0] if money[0] == money[1] else f"{money[0]} to {money[1]}"
        notes.insert(0, f"{span} {found.currency}, by the prices of {found.dated}.")
    rows.append(("all operations", found.operations.by_sbpair))
    return Section("Cost", tuple(notes), (_table(("billable operations", "number"), rows),))


def _replayed_operations(proof: Mapping[str, Any]) -> dict[str, int]:
    """Return the operations of a replay as its counts imply them; {} without a proof."""
    if "acknowledged" not in proof:
        return {}
    whole = int(proof.get("received" if proof.get("mode") == "direct" else "archived") or 0)
    return {"received": 2 * whole, "sent": int(proof["acknowledged"])}


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
    last_ms = max(run.started_ms, samples[-1].at_ms if samples else 0)
    end_ms = run.ended_ms or (now_ms if run.outcome in LIVE else last_ms)
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
        tuple(_tiles(run, receipt, end_ms)),
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


def _alerts(run: RunRecord, samples: Sequence[Sample]) -> Iterable[tuple[str, str]]:
    if run.outcome in LIVE:
        yield "note", "This run is still going on: all figures are those so far."
    if run.outcome == RunOutcome.CRASHED:
        yield "bad", "This run ended without recording its end. Its figures are the last ones it wrote."
    if run.error and run.outcome != RunOutcome.STOPPED:
        yield "bad", f"It failed: {short(run.error)}"
    if run.outcome == RunOutcome.PARTIAL:
        yield "warn", "Some messages need attention: the exit code was 3."
    if run.outcome == RunOutcome.STOPPED:
        yield "warn", f"This run was {run.error or 'stopped'} before it had finished."
    if (left := run.counts.remaining) is not None:
        is_known = left.exact or left.messages
        number = f"{'' if left.exact else 'At least '}{grouped(left.messages)}" if is_known else "An unknown number"
        yield "warn", f"{number} are left over."
    if in_doubt := run.counts.in_doubt:
        yield "warn", f"{grouped(in_doubt)} were sent without an answer, and are in doubt until a run settles them."
    if not samples:
        yield "note", "This run has no timeline: it ended too early, or an earlier version of sbpair recorded it."


def _tiles(run: RunRecord, receipt: Mapping[str, Any], end_ms: int) -> Iterable[tuple[str, str]]:
    counts, is_archived = run.counts, "archived" in receipt and receipt.get("mode") != "direct"
    yield ("archived" if is_archived else "received"), grouped(counts.received or 0)
    yield "sent", grouped(counts.sent or 0)
    seconds = (end_ms - run.started_ms) / 1000
    yield "sent a second", f"{(counts.sent or 0) / seconds:.1f}" if seconds > 0 else "-"
    if receipt.get("bytes_sent"):
        yield "data sent", size(int(receipt["bytes_sent"]))
    yield ("not sendable" if run.kind == "replay" else "dead-lettered"), grouped(counts.undeliverable or 0)
    if counts.stayed:
        yield "stayed", grouped(counts.stayed)
    yield "possible duplicates", grouped(counts.doubtful_total)


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


# The forms.

_UNSAFE = set("`|\\")
_PLAIN = re.compile(r"[A-Za-z0-9 .,;:()'%/+-]*")
_LINK = re.compile(r"://|www\.", re.IGNORECASE)


def render_html(report: RunReport) -> str:
    """Return the page."""
    drawings = [(plot, draw(plot, WIDE), draw(plot, NARROW)) for plot in report.plots]
    return filled("sbpair.cli.report", "page.html", report=report, drawings=drawings, grouped=grouped)


def render_markdown(report: RunReport) -> str:
    """Return the text of the report."""
    return filled("sbpair.cli.report", "page.markdown", report=report, code=code, prose=prose, grouped=grouped)


def code(text: str) -> str:
    """Return a text as code: no markup, link or mention. Some characters need HTML, in which every mark is a number."""
    if not text:
        return "-"
    if text == text.strip() and not _UNSAFE & set(text):
        return f"`{text}`"
    return f"<code>{''.join(each if each.isalnum() else f'&#{ord(each)};' for each in text)}</code>"


def prose(text: str) -> str:
    """Return a sentence as it is if nothing in it could be markup, else as code."""
    return text if _PLAIN.fullmatch(text) and not _LINK.search(text) else code(text)


RENDERERS = {"html": render_html, "markdown": render_markdown}
