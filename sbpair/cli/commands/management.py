"""`sbpair provision`, `audit` and `prune`: run `sbpair.management`, and print its reports of queues and entities."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair import backlog
from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.commands.pair_answers import PairAnswer, ask_all, pair_lines, print_answers
from sbpair.cli.commands.status import (
    TOTALS,
    mover_lines,
    say_lost,
    say_ways_on,
    total_cells,
    total_line,
)
from sbpair.cli.completion import findings
from sbpair.cli.next_command import next_command, not_confirmed, with_options
from sbpair.cli.options import values
from sbpair.cli.options.common import (
    COUNT,
    MAX_PEEK,
    STATE,
    PairSelection,
    duration,
    flag,
    option,
    peek_option,
)
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import NewDestinations
from sbpair.cli.progress.reporting import PeekProgress, print_control_event
from sbpair.cli.render.screen import Screen, plural, share, spoken
from sbpair.cli.render.table import PARTIAL, columns, limited, sampled, wrapped
from sbpair.cli.render.waiting import is_movable, mover_step, report_waiting, waiting_table
from sbpair.errors import ExitCode
from sbpair.management.calls import ControlEvent, QueueProvisioned
from sbpair.model.pair import Pair, Side
from sbpair.model.queues import AuditedQueue, QueueFinding, Utilisation
from sbpair.model.report import FAIL_ON, AuditFinding, Outcome, Report, ReportItem
from sbpair.operating_system.files import read_document

if TYPE_CHECKING:
    from sbpair.config import Profile
    from sbpair.management.audit_findings import Audit, DestinationSummary
    from sbpair.management.entities_file import EntitiesDocument
    from sbpair.management.provisioning import EntityItem, EntityReport
    from sbpair.status import LostPrimary

NO_MIRROR = ("--entities", "--to", "--map", "--via arm")
DESTINATIONS_SHOWN = 40
MIN_NOTED_IDLE_SECONDS = 86_400
DEFAULT_FINDINGS = ",".join(kind for kind in AuditFinding if kind in FAIL_ON)
FINDINGS = ", ".join((*AuditFinding, values.ALL, values.NONE))
MAX_SAMPLE_SECONDS = 3_600

QueueItem = ReportItem[AuditedQueue]


def provision_command(
    *,
    count: int | None = COUNT,
    entities: Path | None = option("--entities FILE", "Also create the entities of this TOML file in both namespaces"),
    side: Side | None = option("--side SIDE", "Only this namespace: primary or secondary", needs="--entities"),
    mirror: bool = flag(
        "--mirror", "Also create those of the primary's entities that the secondary lacks", excludes=NO_MIRROR
    ),
    dry_run: bool = flag("--dry-run", "Only print what would be created"),
    strict: bool = flag("--strict", "Exit 3 if an existing entity differs"),
    management: values.Management,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Create the missing backlog queues in the secondary namespace.

    Existing queues are compared and never changed. Needs Manage on the secondary namespace, with --entities on both.
    The TOML file describes queues, topics, subscriptions and rules that shall be there; sbpair entities lists those
    that are. --side creates them in one namespace, and does not contact the other one. With --mirror, they are those of
    the live primary, which needs Manage there; what refuses or alters messages comes first.

    Examples:
      sbpair provision --dry-run
      sbpair provision --count 10 --entities entities.toml
      sbpair provision --entities entities.toml --side secondary
      sbpair provision --mirror --dry-run

    Exit codes: 3 some were not created, or differ with --strict; 5 access denied; 130 interrupted

    See also: sbpair help management
    """
    group = values.group_of(management)
    pair = values.selected_pair(connection, screen, count=count)
    from sbpair.cli.results import management as results
    from sbpair.management import provisioning
    from sbpair.management.audit_findings import drift_mends
    from sbpair.management.exchanged_sides import find_exchanged

    requested = read_entities(entities)

    async def main(stop: asyncio.Event, _hurry: asyncio.Event) -> tuple[provisioning.EntityReport, bool, str]:
        report = await provisioning.provision(
            pair,
            group=group,
            entities=requested,
            side=side,
            mirror=mirror,
            dry_run=dry_run,
            stop=stop,
            on_event=partial(print_control_event, screen),
        )
        backlog_queues = [item for item in report if item.detail and item.detail.index is not None]
        are_new = {item.outcome for item in backlog_queues} <= {Outcome.CREATED, Outcome.WOULD_CREATE}
        asks = backlog_queues and are_new and not (group or side or stop.is_set())
        return report, stop.is_set(), await find_exchanged(pair.primary, pair.secondary) if asks else ""

    report, stopped, exchanged = run_gracefully(main)
    lines = tuple(results.ProvisionLine(item.outcome, item) for item in report)
    made = results.ProvisionResult(lines, report.lists(results.PROVISION_LISTS), dry_run)
    screen.show(made, _entities_table(report))
    if exchanged:
        screen.warn(f"{exchanged}; right if each is the other's secondary")
    drifted = report.of(Outcome.DRIFTED)
    for item in drifted:
        screen.warn(f"{_title_of(item)} differs: {item.reason}{_altering(item)}")
    for namespace in dict.fromkeys(item.detail.namespace for item in drifted if item.detail):
        here = [item for item in drifted if item.detail and item.detail.namespace == namespace]
        for mend in drift_mends(here, namespace):
            screen.say(with_options(mend))
    if strict and drifted:
        screen.warn(f"exit code {ExitCode.PARTIAL_OR_FINDINGS} for --strict: {len(drifted)} differ")
    for item in report.of(Outcome.FAILED):
        screen.warn(f"{_title_of(item)} was not created: {item.reason}")
    if left := len(report.of(Outcome.NOT_TRIED)):
        screen.warn(f"{left} not tried: continue with {next_command('provision')}")
    if stopped and report.of(Outcome.NOT_TRIED, Outcome.FAILED):
        raise KeyboardInterrupt
    return provisioning.provision_exit_code(report, strict=strict)


def _entities_table(report: "EntityReport") -> list[str]:
    """Return the report as text; namespace and kind are shown only beside other entities than backlog queues."""
    if not report.items:
        return []
    mixed = any(item.detail and item.detail.index is None for item in report)
    rows = [["NAMESPACE", "KIND", "NAME", "OUTCOME", "NOTE"] if mixed else ["QUEUE", "OUTCOME", "NOTE"]]
    for item in report:
        place = [item.detail.namespace, item.detail.kind] if mixed and item.detail else []
        rows.append([*place, item.name, _outcome(item), _note(item)])
    return columns(rows)


def read_entities(path: Path | None) -> "EntitiesDocument":
    from sbpair.management import entities_file

    if path is None:
        return entities_file.NO_ENTITIES
    text = read_document(path, option="--entities", hint="name a TOML file")
    return entities_file.parse_entities(text, str(path))


def _title_of(item: "EntityItem") -> str:
    own = item.detail and item.detail.index is None
    return f"{item.detail.kind} {item.name} of {item.detail.namespace}" if own and item.detail else item.name


def audit_command(
    *,
    count: int | None = COUNT,
    fail_on: frozenset[AuditFinding] = option(
        "--fail-on KIND[,KIND]",
        f"Findings that exit 3: {FINDINGS}",
        complete=findings,
        default=DEFAULT_FINDINGS,
        parse=partial(values.findings_of, tuple(AuditFinding)),
    ),
    idle: float | None = duration("--idle DURATION", "Report queues unused for this long, as in 30d"),
    peek: int = peek_option(MAX_PEEK),
    sample: float = duration(
        "--sample DURATION",
        "Time between two samples of a queue's growth; 0 for one sample",
        default="5s",
        at_least=0,
        at_most=MAX_SAMPLE_SECONDS,
    ),
    mirror: bool = flag("--mirror", "Also compare other entities with those of the primary", excludes=NO_MIRROR),
    delivery: NewDestinations,
    management: values.Management,
    lease: str | None = values.MOVERS_LEASE,
    state: Path | None = STATE,
    all_pairs: bool = values.ALL_PAIRS,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Compare backlog queues with the expected ones; count messages.

    Reports missing, extra and drifted queues, stranded messages, their age and destinations, and queue growth. Messages
    in archives of interrupted or running replays count as well. Changes and locks nothing. Needs Manage on the
    secondary for counts and properties, and Listen to peek messages; with Listen alone, it shows what it peeked. Any
    right on the primary, or on a destination there, shows which destinations exist. With --to, it looks for them in
    that namespace, and does not contact the primary. With --mirror, the application's queues, topics, subscriptions
    and rules in the secondary are compared with those in the primary, which needs Manage on both; what refuses or
    alters messages comes first.

    Examples:
      sbpair audit
      sbpair audit --to secondary
      sbpair audit --fail-on missing,extra --sample 1m
      sbpair audit --mirror --fail-on mirror

    Exit codes: 0 no finding of --fail-on; 3 at least one, or unknown; 5 access denied, also by the primary

    See also: sbpair help management
    """
    group = values.group_of(management)
    from sbpair.cli.results.management import audit_result
    from sbpair.cli.results.status import AuditPairs
    from sbpair.management import auditing
    from sbpair.management.audit_findings import (
        MAX_PEEK_DEAD_LETTERS,
        Unseen,
        audit_exit_code,
        audit_mends,
        unknown_findings,
    )
    from sbpair.status import read_lost_primary, read_side

    async def read(profile: "Profile", **routes: Any) -> "tuple[Audit, str, LostPrimary | None]":
        state = profile.state_directory
        routes["max_peek_dead_letters"] = max(peek, MAX_PEEK_DEAD_LETTERS)
        routes |= {"group": group, "idle_seconds": idle, "max_peek": peek, "sample_seconds": sample, "state": state}
        destination = routes.get("to") or profile.pair.primary
        auditing_all = auditing.audit(profile.pair, **routes, mirror=mirror, lease=lease, on_event=progress)
        found, side = await asyncio.gather(auditing_all, read_side(destination))
        health = "up" if any(each.found for each in found.destinations) else side.health
        if side.error and health == "refused" and not found.denied:
            refused = Unseen(side.endpoint.name, f"the destinations: {side.error.message} ({side.error.hint})")
            others = [each for each in found.unseen if each.name != refused.name]
            found = replace(found, unseen=(*others, refused), denied=True)
        return found, health, None if routes.get("to") else await read_lost_primary(profile.pair, state)

    async def answer(name: str, profile: "Profile") -> PairAnswer:
        found, _, lost = await read(profile)
        cells = (*total_cells(found.total), ", ".join(sorted(found.findings)))
        return PairAnswer(name, audit_exit_code(found, fail_on), cells, [audit_result(found, lost)])

    with PeekProgress(screen) as progress:
        if all_pairs:
            answers = run(ask_all(values.all_profiles(connection, screen), answer))
        else:
            reach = reach_of(connection, screen, count=count, state=state)
            routes = delivery.settings(reach)
            found, health, lost = run(read(reach.profile, **routes))
    if all_pairs:
        return print_answers(screen, AuditPairs, pair_lines((*TOTALS, "FINDINGS"), answers), answers)
    to = routes["to"]
    screen.show(audit_result(found, lost, to.name if to else None), _audit_table(found))
    for each in found.unseen:
        screen.warn(f"skipped {each.name}: {each.reason}")
    report_waiting(screen, found.waiting)
    for mend in audit_mends(found, reach.profile.pair.secondary.name):
        screen.say(with_options(mend))
    if is_movable(found.total, found.waiting) and not found.mover.moving:
        step = mover_step(
            found.mover, "refused" if found.denied else health, found.waiting, lost=lost is not None and lost.declared
        )
        screen.say(f"stranded messages: {step}")
    say_lost(screen, lost)
    if foreign := sorted({(backlog.primary_of(each.name) or "").lower() for each in found.of(Outcome.FOREIGN)}):
        whose = "the backlog of another pair, or of a former primary that was lost: see sbpair help runbook"
        screen.say(f"queues of {', '.join(foreign)}: {whose}")
    missing = [each.name for each in found.destinations if each.found is False]
    say_ways_on(screen, found.total, reach.profile.pair, routes, missing)
    values.failed_on(screen, found.found, fail_on, unknown_findings(found))
    return audit_exit_code(found, fail_on)


def _audit_table(audit: "Audit") -> Iterator[str]:
    yield from wrapped(total_line(audit.total))
    yield from mover_lines(audit.mover, audit.total)
    if audit.items:
        yield ""
        yield from columns([(*COUNTED, "OLDEST", "FULL", "NOTE"), *map(_audited_row, audit)])
    if audit.destinations:
        yield ""
        titles = ("DESTINATION", "MESSAGES", "FOUND", "DUPLICATES", "NOTE")
        yield from limited([titles, *map(_destination_row, audit.destinations)], DESTINATIONS_SHOWN)
    yield from waiting_table(audit.waiting)
    if differing := [item for item in audit.mirror if item.outcome is not Outcome.OK]:
        yield ""
        yield from limited([("KIND", "ENTITY", "OUTCOME", "NOTE"), *map(_mirror_row, differing)], DESTINATIONS_SHOWN)
    elif audit.mirror:
        yield from ("", f"{len(audit.mirror)} entities of the primary and the secondary are the same")
    if not audit.complete and any(item.detail and item.detail.fill and item.detail.fill.peeked for item in audit):
        yield from ("", *wrapped(PARTIAL))


def _mirror_row(item: "EntityItem") -> tuple[object, ...]:
    return item.detail.kind if item.detail else "", item.name, _outcome(item), f"{_note(item)}{_altering(item)}"


def _altering(item: "EntityItem") -> str:
    """Return which differences alter messages; only some of them may."""
    names = [each.property for each in item.detail.differences if each.alters] if item.detail else []
    return f"; altering messages: {', '.join(names)}" if names else ""


def _audited_row(item: QueueItem) -> list[object]:
    counts, fill = (item.detail.counts, item.detail.fill) if item.detail else (None, None)
    dead = counts.dead_letter + counts.transfer_dead_letter if counts else 0
    notes = (f"{dead} dead-lettered" if dead else "", _note(item), *(_fill_notes(fill) if fill else ()))
    oldest = "" if fill is None or fill.oldest_seconds is None else spoken(fill.oldest_seconds)
    cells = _counted(item, item.detail)
    if counts is None and fill is not None and fill.peeked is not None:
        cells[COUNTED.index("ACTIVE")] = sampled(fill.peeked, exact=fill.complete)
    return [
        *cells,
        oldest,
        share(fill.fill_ratio) if fill else "",
        "; ".join(filter(None, notes)),
    ]


def _fill_notes(fill: Utilisation) -> Iterator[str]:
    from sbpair.management.audit_findings import is_full

    if fill.idle or (fill.idle_seconds or 0) >= MIN_NOTED_IDLE_SECONDS:
        yield f"unused for {spoken(fill.idle_seconds or 0)}"
    if fill.full_in_seconds is not None:
        yield f"full in {spoken(fill.full_in_seconds)} at this rate{': move it now' if is_full(fill) else ''}"
    elif fill.bytes_per_second is not None:
        yield "not growing"
    if fill.peeked is not None and not fill.complete:
        yield f"peeked only the first {fill.peeked}"


def _destination_row(each: "DestinationSummary") -> tuple[object, ...]:
    found = {True: "topic" if each.topic else "yes", False: "no", None: "?"}[each.found]
    duplicates = {True: "detected", False: "not detected", None: "?" if each.found else ""}[each.detects_duplicates]
    name = {"": "(none)", "*": "(others)"}.get(each.name, each.name)
    return (name, sampled(each.messages, exact=each.exact), found, duplicates, each.reason)


def prune_command(
    *,
    count: int | None = COUNT,
    dry_run: bool = flag("--dry-run", "Only print the queues that would be deleted", excludes="--yes"),
    yes: bool = flag("--yes -y", "Delete without asking"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Delete empty backlog queues beyond --count.

    A queue that holds any message is kept. Each queue is set SendDisabled, must refuse a ping, and is counted again
    before it is deleted. Make sure that no client of the pair uses a higher count. Needs Manage, Send and Listen on the
    secondary namespace.

    Examples:
      sbpair prune --count 5 --dry-run
      sbpair prune --count 5 --yes

    Exit codes: 0 deleted, or --dry-run; 3 some were kept; 4 not confirmed, or all were kept, since they hold
    messages

    See also: sbpair help management
    """
    pair = values.selected_pair(connection, screen, count=count)
    from sbpair.management import pruning

    if yes:
        return _remove(pair, screen, None)
    report = run(pruning.prune(pair, on_event=partial(print_control_event, screen)))
    _show(screen, report, dry_run=True)
    planned = [item.name for item in report.of(Outcome.WOULD_REMOVE)]
    if not planned:
        return 0
    number = plural(len(planned), "queue")
    command = next_command("prune", "--yes", without=["dry_run"])
    if dry_run:
        screen.say(f"nothing was deleted; delete {number} with {command}")
        return 0
    is_shown = sys.stdout is not None and sys.stdout.isatty()
    if is_shown and screen.asks(f"Delete {number}?"):
        return _remove(pair, screen, planned)
    raise not_confirmed("deleted", command)


def _remove(pair: Pair, screen: Screen, only: list[str] | None) -> int:
    from sbpair.management import pruning

    done: list[QueueProvisioned] = []

    def on_event(event: ControlEvent) -> None:
        print_control_event(screen, event)
        if isinstance(event, QueueProvisioned):
            done.append(event)

    try:
        report = run(pruning.prune(pair, dry_run=False, only=only, on_event=on_event))
    except KeyboardInterrupt:
        for each in done:
            screen.warn(f"{each.path}: {each.outcome}, before the interruption")
        raise
    _show(screen, report, dry_run=False)
    if report.of(Outcome.KEPT):
        screen.say(f"kept queues hold messages: move all but dead letters with {next_command('syphon', '--once')}")
    return pruning.prune_exit_code(report)


def _show(screen: Screen, report: Report[QueueFinding], *, dry_run: bool) -> None:
    from sbpair.cli.results.management import PRUNE_LISTS, PruneLine, PruneResult

    rows = [(*_counted(item, item.detail), _note(item)) for item in report]
    lines = tuple(PruneLine(item.outcome, item) for item in report)
    found = PruneResult(lines, report.lists(PRUNE_LISTS), dry_run)
    screen.show(found, columns([(*COUNTED, "NOTE"), *rows]) if rows else [])
    if not rows:
        screen.say("nothing to delete: no backlog queue beyond --count")


COUNTED = ("QUEUE", "OUTCOME", "ACTIVE", "DEAD", "SCHEDULED", "TOTAL")


def _counted(item: ReportItem[Any], detail: QueueFinding | None) -> list[object]:
    """Return the cells of COUNTED."""
    counts = detail.counts if detail else None
    numbers = [counts.active, counts.dead_letter, counts.scheduled, counts.total] if counts else ["", "", "", ""]
    return [item.name, _outcome(item), *numbers]


def _outcome(item: ReportItem[Any]) -> str:
    return item.outcome.replace("_", " ")


def _note(item: ReportItem[Any]) -> str:
    return "; ".join(filter(None, (item.reason, "partitioned" if item.detail and item.detail.partitioned else "")))
