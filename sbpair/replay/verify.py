"""The proof of a run, from its files alone: archived = acknowledged + expired + quarantined + deduplicated.

Messages are counted by key as Arrow tables, part by part, so that memory does not depend on their number. Each file is
read once. Rows become Python objects only for messages that are listed. The messages of a proved run may be removed:
only proved files are; the removal is recorded first, and from then on no resume sends from the run. Segments are
removed before the ledger: a run without its ledger alone would send everything again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import StateRefused, Unsafe, UsageError
from sbpair.operating_system.files import spooled_file
from sbpair.replay.archive import (
    BUCKETS,
    DOUBTFUL,
    DOUBTFUL_FILE,
    DRAINED_FILE,
    HELD,
    LEDGER,
    NAMESPACE,
    NOT_SENT,
    OUTCOMES,
    RECEIPT_FILE,
    REMOVABLE,
    REMOVED_FILE,
    SEGMENTS,
    Archive,
    value_counts,
)
from sbpair.replay.digests import CheckedFiles, Drained, check_files, for_each_file, messages_removed, read_drained
from sbpair.replay.key_parts import MAX_PART, KeyParts
from sbpair.replay.ledger import (
    KEY,
    KEYS,
    OUTCOME,
    Key,
    check_chunks,
    held_by_attempts,
    keyed_rows,
    read_accepted,
    table_keys,
)
from sbpair.replay.outcomes import PossibleDuplicate, Proof
from sbpair.replay.run_description import ReplayRun, load_run
from sbpair.replay.segment import SEGMENT

ELSEWHERE = "elsewhere"
KINDS = (SEGMENTS, *OUTCOMES, ELSEWHERE)
"""Where a message's key may occur: archived, with each outcome, and accepted by another namespace than the run's."""

SETTLED, JOURNAL = "settled", "journal"  # of segments whose attempt completed all it stored, and the syphon's journal

MAX_NAMED = 20_000  # upper bound on doubtful messages listed: as many as a dozen killed tasks hold
MAX_REASONS = 1_000  # upper bound on reasons listed, of MAX_KEPT_REASONS that are counted: each is free text
MAX_KEPT_REASONS, OTHER_REASONS = 5_000, "other reasons"
COUNTS = ("archived", *BUCKETS.values(), "unsent")


class Limits(NamedTuple):
    """Upper bounds on the rows that are counted together, aimed at, and on the doubtful messages listed."""

    part: int = MAX_PART
    named: int = MAX_NAMED


LIMITS = Limits()


def verify(
    archive: Archive, run: ReplayRun, limits: Limits = LIMITS, *, full: bool = False, save: bool = False
) -> Proof:
    """Read every segment and every chunk. Raises StateRefused for a broken, foreign or missing one.

    Of a run without digests, the receipt shows that chunks are missing.

    With `full`, all bytes are compared with the digests, too. With `save`, DOUBTFUL_FILE gets all possible duplicates.

    For a direct run, `archived` is the number received as far as the files show, and `unsent` the number in doubt.
    """
    if archive.exists(REMOVED_FILE):
        raise messages_removed(archive)
    with spooled_file() as rows, spooled_file() as lines:
        proof = _Verification(archive, run, rows, lines, limits, full=full).run()
        if not run.direct:  # whose ledger is not synced
            _check_acknowledged(archive, proof, proof.accepted_elsewhere if run.delivery.include_acknowledged else 0)
        if save and proof.doubtful_total:
            lines.seek(0)
            archive.write(DOUBTFUL_FILE, lines)
        elif save:
            archive.remove(DOUBTFUL_FILE)
        return proof


def prove_run(archive: Archive, *, full: bool = False) -> tuple[ReplayRun, Proof]:
    """Verify a run from its files alone. Raises UsageError for a direct run."""
    run = load_run(archive)
    if run.direct:
        raise UsageError(
            f"run {run.id} is direct: it archived no messages that would prove it",
            hint=f"see its ledger's counts with sbpair replay status {run.id}",
        )
    return run, verify(archive, run, full=full)


class _Verification:
    """One reading of a run's files. Chunks of a direct run that a loss of power has cut short count as `unreadable`."""

    def __init__(
        self, archive: Archive, run: ReplayRun, rows: IO[bytes], lines: IO[bytes], limits: Limits, *, full: bool
    ) -> None:
        self._archive, self._run, self._lines, self._max_named = archive, run, lines, limits.named
        self._checked = check_segments(archive, run, full=full)
        known = {path: each.rows for path, each in self._checked.digests.items()}
        chunk_rows, self._unreadable = check_chunks(archive, run.shards, known, synced=not run.direct)
        self._parts = KeyParts(rows, self._checked.messages + chunk_rows, limits.part)
        self._drained = read_drained(archive) or Drained()
        self._namespaces = Counter[str]()
        self._queues: dict[str, Counter[str]] = {queue: Counter() for queue in run.queues}
        self._totals, self._destinations, self._reasons = Counter[str](), Counter[str](), Counter[str]()
        self._seen: set[tuple[object, ...]] = set()
        self._named: list[PossibleDuplicate] = []

    def run(self) -> Proof:
        broken = {*self._unreadable}
        self._add_held()
        segments = self._archive.files(SEGMENTS)
        for path in segments:
            self._add_segment(path)
        for path in (path for kind in OUTCOMES for path in self._archive.files(kind) if path not in broken):
            self._add_chunk(path)
        for path in self._archive.files(DOUBTFUL):
            rows = self._read(path, [*KEY, "destination"])
            self._parts.add(DOUBTFUL, rows, destination=rows.column("destination"))
        self._add_journal()
        for part in self._parts:
            self._seen.clear()
            self._count(part)
        return Proof(
            **sum(self._queues.values(), self._totals),
            segments=len(segments),
            queues={queue: {name: counts[name] for name in COUNTS} for queue, counts in self._queues.items()},
            destinations=dict(sorted(self._destinations.items())),
            reasons=dict(self._reasons.most_common(MAX_REASONS)),
            namespaces={self._name(each): count for each, count in sorted(self._namespaces.items())},
            doubtful=self._named,
            remaining_in_queues=dict(self._drained.remaining),
            locked=self._drained.locked,
            unreadable=self._unreadable,
            not_adopted=list(self._checked.not_adopted),
            collected=self._checked.collected or None,
        )

    def _add_held(self) -> None:
        for attempt, keys in groupby(held_by_attempts(self._archive, self._unreadable), itemgetter(1)):
            rows = [dict(zip(KEY, key, strict=True)) for key, _ in keys]
            self._parts.add(HELD, pa.Table.from_pylist(rows, schema=KEYS), attempt=attempt)

    def _add_segment(self, path: str) -> None:
        """Add the keys of a segment. An attempt that completed all it stored has no message in another segment."""
        digest = self._checked.digests.get(path)
        settled = digest is not None and digest.attempt in self._drained.settled
        self._parts.add(SETTLED if settled else SEGMENTS, self._archive.read_table(path, list(KEY)))

    def _add_chunk(self, path: str) -> None:
        kind = path.partition("/")[0]
        rows = self._read(path, [*KEY, "destination", "reason", "attempt", NAMESPACE.name])
        if kind == LEDGER:
            names = pc.fill_null(rows.column(NAMESPACE.name), "")
            self._namespaces.update(value_counts(names))
            own = pc.equal(names, self._run.delivery.namespace)
            self._add_rows(LEDGER, rows.filter(own))
            self._add_rows(ELSEWHERE, rows.filter(pc.invert(own)))
            return
        for reason, count in value_counts(rows.column("reason")).items():
            is_kept = reason in self._reasons or len(self._reasons) < MAX_KEPT_REASONS
            self._reasons[reason if is_kept else OTHER_REASONS] += count
        self._add_rows(kind, rows)

    def _add_rows(self, kind: str, rows: pa.Table) -> None:
        if kind == LEDGER or (kind == ELSEWHERE and self._run.delivery.only is None):
            self._destinations.update(value_counts(rows.column("destination")))
        self._parts.add(kind, rows, **{name: rows.column(name) for name in ("destination", "attempt")})

    def _add_journal(self) -> None:
        """Add the messages that another namespace than the run's has accepted, by the syphon's journal."""
        for name, queue, keys in read_accepted(self._archive):
            if name != self._run.delivery.namespace:
                rows = [dict(zip(KEY, (queue, *key), strict=True)) for key in keys]
                self._parts.add(JOURNAL, pa.Table.from_pylist(rows, schema=KEYS), namespace=name)

    def _read(self, path: str, columns: list[str]) -> pa.Table:
        """Read columns of a chunk. An unreadable chunk of a direct run counts as empty: it is all or nothing."""
        if not self._run.direct:
            return self._archive.read_table(path, columns)
        try:
            return self._archive.read_table(path, [*OUTCOME.names, NAMESPACE.name]).select(columns)
        except StateRefused:
            if path not in self._unreadable:
                self._unreadable.append(path)
            return OUTCOME.append(NAMESPACE).empty_table().select(columns)

    def _count(self, part: pa.Table) -> None:
        counts = self._count_by_key(part)
        if not self._run.direct:
            for name, kind in {"copies": SEGMENTS, "unexplained_copies": SETTLED}.items():
                copies = pc.max_element_wise(pc.subtract(counts.column(kind), 1), 0)
                self._totals[name] += pc.sum(copies, min_count=0).as_py()
        self._count_outcomes(counts)
        unanswered = self._rows(part, [DOUBTFUL], "destination")
        for each in chain(self._accepted_twice(counts, part), self._doubled(counts, part), unanswered):
            self._add_doubtful(*each)

    def _count_by_key(self, part: pa.Table) -> pa.Table:
        """Return a row per message: KEY, and for each of KINDS and SETTLED its number of rows in files.

        In a direct run, a message that any task has held counts as archived.
        """
        counted = {each: [each] for each in (*KINDS, SETTLED)}
        counted[SEGMENTS] += [SETTLED, *([HELD] if self._run.direct else [])]
        rows = part.filter(self._is_of(part, *chain(*counted.values())))
        for each, kinds in counted.items():
            rows = rows.append_column(each, self._is_of(rows, *kinds).cast(pa.int8()))
        # Several threads would each build groups, and merging those costs five times as much.
        found = rows.group_by(list(KEY), use_threads=False).aggregate([(each, "sum") for each in counted])
        found = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
        if not self._run.direct:
            return found
        return found.drop_columns([SEGMENTS]).append_column(SEGMENTS, pa.repeat(pa.scalar(1, pa.int64()), len(found)))

    def _is_of(self, rows: pa.Table, *kinds: str) -> pa.ChunkedArray:
        numbers = pa.array([self._parts.number(each) for each in kinds], pa.int32())
        return pc.is_in(rows.column("kind"), numbers)

    def _count_outcomes(self, counts: pa.Table) -> None:
        present = {kind: pc.greater(counts.column(kind), 0) for kind in KINDS}
        known = pa.table({"queue": counts.column("queue"), **present})
        grouped = known.group_by(["queue", *KINDS], use_threads=False).aggregate([([], "count_all")])
        for row in self._parts.named(grouped).to_pylist():
            messages = row["count_all"]
            totals = self._queues.setdefault(row["queue"], Counter())
            outcomes = [bucket for kind, bucket in BUCKETS.items() if row[kind]]
            if row[ELSEWHERE] and not row[LEDGER]:
                self._totals["accepted_elsewhere"] += messages
                # A message that this run's namespace could not get has that outcome.
                if not outcomes and self._run.delivery.only is None:
                    outcomes = [BUCKETS[LEDGER]]
            for bucket in outcomes:
                totals[bucket] += messages
            self._totals["contradictions"] += messages * max(0, len(outcomes) - 1)
            if row[SEGMENTS]:
                totals["archived"] += messages
                if self._run.is_stream:
                    self._totals["streamed"] += messages
                else:
                    totals["unsent"] += 0 if outcomes else messages
            else:
                self._totals["unknown"] += messages * len(outcomes)

    def _rows(
        self, part: pa.Table, kinds: Iterable[str], *columns: str, of: Iterable[Key] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Iterate over a part's rows of some kinds, or those `of` some keys: the key, and values of these columns."""
        rows = part.filter(self._is_of(part, *kinds))
        if of is not None:
            numbers = pa.array({key[1] for key in of}, pa.int64())
            rows = rows.filter(pc.is_in(rows.column("sequence_number"), numbers))
        return keyed_rows(self._parts.named(rows), *columns)

    def _doubled(self, counts: pa.Table, part: pa.Table) -> Iterator[tuple[Key, str | None]]:
        """Iterate over messages in the ledger twice, or held by a dead attempt and recorded by another, or twice.

        Those may have arrived, whatever came of them later.
        """
        twice = counts.filter((pc.field(LEDGER) > 1) | (pc.field(ELSEWHERE) > 1))
        suspects: dict[Key, set[str]] = {key: set() for key in table_keys(self._parts.named(twice))}
        for key, attempt in self._rows(part, [HELD], "attempt"):
            suspects.setdefault(key, set()).add(attempt)
        found: set[Key] = set()
        rows = self._rows(part, [*OUTCOMES, ELSEWHERE], "attempt", "destination", of=suspects) if suspects else ()
        for key, attempt, destination in rows:
            if key in suspects and (key in found or suspects[key] - {attempt}):
                yield key, destination
            found.add(key)

    def _accepted_twice(self, counts: pa.Table, part: pa.Table) -> Iterator[tuple[Key, str | None, str]]:
        """Iterate over messages that this run's namespace accepted, and others, too: by the ledger or the journal."""
        both = counts.filter((pc.field(LEDGER) > 0) & (pc.field(ELSEWHERE) > 0))
        others = " and ".join(self._name(each) for each in self._namespaces if each != self._run.delivery.namespace)
        found = dict.fromkeys(table_keys(self._parts.named(both)), others)
        journal = dict(self._rows(part, [JOURNAL], "namespace"))
        rows = self._rows(part, [LEDGER], "destination", of=[*found, *journal]) if found or journal else ()
        for key, destination in rows:
            other = journal.get((key[0].lower(), *key[1:]))
            if (name := found.get(key) if other is None else self._name(other)) is not None:
                yield key, destination, f"also accepted by {name}"

    def _name(self, namespace: str) -> str:
        return namespace or self._run.pair.get("primary", "")

    def _add_doubtful(self, key: Key, destination: str | None, reason: str = "") -> None:
        """Count a message that may have arrived twice, and list it."""
        queue, number, _, message_id = key
        if (identity := (queue, number, message_id, destination)) in self._seen:
            return
        self._seen.add(identity)
        self._totals["doubtful_total"] += 1
        message = PossibleDuplicate(*identity, reason)
        if len(self._named) < self._max_named:
            self._named.append(message)
        line = {name: value for name, value in message._asdict().items() if value or name != "reason"}
        self._lines.write(json.dumps(line).encode() + b"\n")


def check_segments(archive: Archive, run: ReplayRun, *, full: bool = False) -> CheckedFiles:
    """Check the files of a run as `check_files` does, and the segments of a run without digests by their footers."""
    checked = check_files(archive, run, full=full)
    if run.digests or run.direct:
        return checked
    rows = for_each_file(
        lambda path: archive.check_footer(path, archive.footer(path), SEGMENT), archive.files(SEGMENTS)
    )
    drained = (read_drained(archive) or Drained()).messages
    if sum(rows.values()) < drained and not archive.exists(REMOVED_FILE):
        raise StateRefused(
            f"{archive.root}/{SEGMENTS} holds {sum(rows.values())} messages, and {drained} were drained into it",
            hint="restore the missing files from a copy: their messages left the backlog",
        )
    return replace(checked, rows=rows)


def _check_acknowledged(archive: Archive, proof: Proof, again: int) -> None:
    """Raise StateRefused if the ledger has fewer messages than the receipt: a resume would send the others again.

    `again` is how many it has that are sent again on purpose.
    """
    counted, accepted = 0, proof.acknowledged + again
    with suppress(FileNotFoundError, StateRefused):
        counted = archive.read_json(RECEIPT_FILE).get("acknowledged", 0)
    if isinstance(counted, int) and accepted < counted:
        raise StateRefused(
            f"{archive.root}/{LEDGER} has {accepted} messages, and the receipt {counted}",
            hint="restore the missing files from a copy: without them a resume sends those messages again",
        )


def invalidate_receipt(archive: Archive) -> None:
    """Remove the previous receipt, so that `gc` refuses the run until it is verified again."""
    try:
        receipt = archive.read(RECEIPT_FILE)
    except FileNotFoundError:
        return
    archive.remove(RECEIPT_FILE)
    if archive.exists(REMOVED_FILE):  # gc is removing its messages now
        archive.write(RECEIPT_FILE, receipt)
        raise messages_removed(archive)


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """The files to remove: paths by directory, and bytes. `kept` counts the messages that were not sent and stay."""

    run: ReplayRun
    places: dict[str, tuple[str, ...]]
    bytes: int
    kept: int

    @property
    def files(self) -> int:
        return sum(map(len, self.places.values()))


def plan_gc(archive: Archive, *, unsent: bool) -> GarbageCollection:
    """Return the files to remove; with `unsent`, also messages never sent. Raises Unsafe, StateRefused."""
    run = load_run(archive)
    if run.is_stream:
        hint = f"delete its old segments with sbpair replay gc {run.id} --older-than 7d"
        raise UsageError(f"run {run.id} is a stream, which has no end", hint=hint)
    # Before the proof: a file written later is in neither, or in the proof alone.
    sizes = {place: archive.sizes(place) for place in (*REMOVABLE, *(NOT_SENT if unsent else ()))}
    if not archive.exists(DRAINED_FILE) or not archive.exists(RECEIPT_FILE):
        raise _refused(archive, "has not ended: it may be running")
    if archive.exists(REMOVED_FILE):
        proved = archive.read_json(REMOVED_FILE).get("segments", [*sizes[SEGMENTS]])
        if not isinstance(proved, list):
            raise archive.broken(REMOVED_FILE, "it does not list the segments to remove")
        known = frozenset(map(str, proved))
        sizes[SEGMENTS] = {path: size for path, size in sizes[SEGMENTS].items() if path in known}
    else:
        _check(archive, verify(archive, run, full=True), unsent=unsent)
    kept = 0
    for path in (path for place in NOT_SENT for path in archive.files(place) if not unsent):
        with suppress(StateRefused):  # a loss of power has cut it short, which the proof has accepted
            kept += archive.row_count(path)
    places = {place: tuple(paths) for place, paths in sizes.items()}
    return GarbageCollection(run, places, sum(sum(paths.values()) for paths in sizes.values()), kept)


def remove_messages(archive: Archive, planned: GarbageCollection) -> None:
    """Remove the files. An interrupted removal is finished by the next. Raises Unsafe if the run was resumed."""
    removal = {"places": list(planned.places), "segments": list(planned.places[SEGMENTS])}
    archive.write_json(REMOVED_FILE, {"at_ms": int(time.time() * 1000), **removal})
    # A resume removes the receipt, and then checks for this file: one of the two sees the other.
    if not archive.exists(RECEIPT_FILE):
        archive.remove(REMOVED_FILE)
        raise _refused(archive, "was resumed")
    for place, paths in planned.places.items():
        archive.delete(place, paths)


def _check(archive: Archive, proof: Proof, *, unsent: bool) -> None:
    """Check the files, and the receipt that a run writes last: a run that is still going on has none."""
    if proof.unsent:
        raise _refused(archive, f"has {proof.unsent} unsent messages")
    if not proof.balanced:
        raise Unsafe(
            f"the files of run {archive.run} contradict each other; nothing was removed",
            hint=f"please report this, with the output of sbpair replay verify {archive.run}",
        )
    if archive.read_json(RECEIPT_FILE).get("balanced") is not True:
        raise _refused(archive, "was not proved when it ended: it may be running")
    if proof.not_adopted:
        raise _refused(archive, f"has {proof.not_adopted[0]}, whose task died before it stored the digest")
    if proof.unexplained_copies:
        raise Unsafe(
            f"run {archive.run} has {proof.unexplained_copies} messages in more segments than a crash explains;"
            " nothing was removed",
            hint=f"please report this, with the output of sbpair replay verify {archive.run}",
        )
    if proof.deduplicated and not unsent:
        raise Unsafe(
            f"run {archive.run} did not send {proof.deduplicated} duplicates by message id,"
            " and only the segments have their bodies",
            hint="--include-unsent removes them too, and expired and quarantined messages",
        )


def _refused(archive: Archive, why: str) -> Unsafe:
    return Unsafe(
        f"run {archive.run} {why}; nothing was removed",
        hint=f"continue with sbpair replay resume {archive.run}; add --all to send unselected messages, too",
    )
