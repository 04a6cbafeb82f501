"""The proof of a run, from its files alone: archived = acknowledged + expired + quarantined + deduplicated.

Messages are counted by key as Arrow tables, in slices, so that memory does not depend on their number. Rows become
Python objects only for messages that are listed. The messages of a proved run may be removed: only proved files are;
the removal is recorded first, and from then on no resume sends from the run. Segments are removed before the ledger: a
run without its ledger alone would send everything again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import StateRefused, Unsafe, UsageError
from sbpair.replay.archive import (
    BUCKETS,
    DOUBTFUL,
    DRAINED_FILE,
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

MAX_SLICE = 2_000_000  # upper bound on keys in memory
MAX_NAMED = 20_000  # upper bound on doubtful messages listed: as many as a dozen killed tasks hold
MAX_REASONS = 1_000  # upper bound on reasons listed
COUNTS = ("archived", *BUCKETS.values(), "unsent")


def verify(
    archive: Archive, run: ReplayRun, max_slice: int = MAX_SLICE, max_named: int = MAX_NAMED, *, full: bool = False
) -> Proof:
    """Read every segment and every chunk. Raises StateRefused for a broken, foreign or missing one.

    With `full`, all bytes are compared with the digests, too.

    For a direct run, `archived` is the number received as far as the files show, and `unsent` the number in doubt.
    """
    if archive.exists(REMOVED_FILE):
        raise messages_removed(archive)
    return _Verification(archive, run, max_slice, max_named, full=full).run()


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

    def __init__(self, archive: Archive, run: ReplayRun, max_slice: int, max_named: int, *, full: bool) -> None:
        self._archive, self._run, self._max_named = archive, run, max_named
        self._checked = check_segments(archive, run, full=full)
        known = {path: each.rows for path, each in self._checked.digests.items()}
        chunk_rows, self._unreadable = check_chunks(archive, run.shards, known, synced=not run.direct)
        self._slices = 1 << (max(self._checked.messages, chunk_rows) // max_slice).bit_length()
        self._files = {
            kind: [path for path in archive.files(kind) if path not in self._unreadable] for kind in KINDS[:-1]
        }
        own = run.delivery.namespace
        self._journal = {key: name for name, keys in read_accepted(archive).items() if name != own for key in keys}
        self._namespaces = Counter[str]()
        self._queues: dict[str, Counter[str]] = {queue: Counter() for queue in run.queues}
        self._totals, self._destinations, self._reasons = Counter[str](), Counter[str](), Counter[str]()
        self._named: dict[tuple[object, ...], PossibleDuplicate] = {}

    def run(self) -> Proof:
        attempts = held_by_attempts(self._archive, self._unreadable)
        for part in range(self._slices):
            counts = self._count_keys(Slice(self._slices, part), attempts)
            if not self._run.direct:
                self._count_copies(counts, Slice(self._slices, part))
            self._count_outcomes(counts)
            self._list_accepted_twice(counts)
            # In the ledger twice; or held by a dead attempt, and then it may have arrived, whatever came of it later.
            twice = table_keys(counts.filter((pc.field(LEDGER) > 1) | (pc.field(ELSEWHERE) > 1)))
            self._list_doubled({**{key: set() for key in twice}, **attempts})
        self._list_unanswered()
        drained = read_drained(self._archive) or Drained()
        return Proof(
            **sum(self._queues.values(), self._totals),
            segments=len(self._files[SEGMENTS]),
            queues={queue: {name: counts[name] for name in COUNTS} for queue, counts in self._queues.items()},
            destinations=dict(sorted(self._destinations.items())),
            reasons=dict(self._reasons.most_common(MAX_REASONS)),
            namespaces={self._name(each): count for each, count in sorted(self._namespaces.items())},
            doubtful=list(self._named.values()),
            remaining_in_queues=dict(drained.remaining),
            locked=drained.locked,
            unreadable=self._unreadable,
            not_adopted=list(self._checked.not_adopted),
        )

    def _count_copies(self, counts: pa.Table, part: Slice) -> None:
        """Count copies, and those among them of which each is of an attempt that completed all it stored.

        A message comes again only if it was not completed.
        """
        copies = pc.sum(pc.max_element_wise(pc.subtract(counts.column(SEGMENTS), 1), 0), min_count=0).as_py()
        self._totals["copies"] += copies
        settled = (read_drained(self._archive) or Drained()).settled if copies else frozenset()
        numbers = counts.filter(pc.field(SEGMENTS) > 1).column("sequence_number")
        found = [KEYS.empty_table()]
        for path, digest in self._checked.digests.items():
            if digest.attempt in settled and path.startswith(SEGMENTS):
                keys = part.keys(self._archive.read_table(path, list(KEY)))
                found.append(keys.filter(pc.is_in(keys.column("sequence_number"), numbers.combine_chunks())))
        by_key = pa.concat_tables(found).group_by(list(KEY), use_threads=False).aggregate([([], "count_all")])
        self._totals["unexplained_copies"] += len(pa.concat_tables(found)) - len(by_key)

    def _count_keys(self, part: Slice, held: Iterable[Key]) -> pa.Table:
        """Return a row per message: KEY, and for each of KINDS its number of rows in files.

        In a direct run, a message that any task has held counts as archived.
        """
        keys = {kind: [KEYS.empty_table()] for kind in KINDS}
        for path in self._files[SEGMENTS]:
            keys[SEGMENTS].append(part.keys(self._archive.read_table(path, list(KEY))))
        for kind in OUTCOMES:
            for path in self._files[kind] if kind != LEDGER else ():
                rows = part.rows(self._read(path, [*KEY, "reason"]))
                self._reasons.update(value_counts(rows.column("reason")))
                keys[kind].append(rows.select(list(KEY)).cast(KEYS))
        for path in self._files[LEDGER]:
            self._add_accepted(keys, part.rows(self._read_accepted(path, [*KEY, "destination"])))
        if not self._run.direct:
            return _count_by_key(keys)
        held_rows = [dict(zip(KEY, key, strict=True)) for key in held]
        keys[SEGMENTS].append(part.keys(pa.Table.from_pylist(held_rows, schema=KEYS)))
        found = _count_by_key(keys)
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(found))
        return found.set_column(found.column_names.index(SEGMENTS), SEGMENTS, ones)

    def _read_accepted(self, path: str, columns: list[str]) -> pa.Table:
        """Read columns of a chunk, and the namespace of each row: "" is the pair's primary."""
        table = self._read(path, [*columns, NAMESPACE.name])
        return table.set_column(len(columns), NAMESPACE.name, pc.fill_null(table.column(NAMESPACE.name), ""))

    def _add_accepted(self, keys: Mapping[str, list[pa.Table]], rows: pa.Table) -> None:
        self._namespaces.update(value_counts(rows.column(NAMESPACE.name)))
        own = pc.equal(rows.column(NAMESPACE.name), self._run.delivery.namespace)
        for kind, part in ((LEDGER, rows.filter(own)), (ELSEWHERE, rows.filter(pc.invert(own)))):
            keys[kind].append(part.select(list(KEY)).cast(KEYS))
            if kind == LEDGER or self._run.delivery.only is None:
                self._destinations.update(value_counts(part.column("destination")))

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

    def _count_outcomes(self, counts: pa.Table) -> None:
        present = {kind: pc.greater(counts.column(kind), 0) for kind in KINDS}
        known = pa.table({"queue": counts.column("queue"), **present})
        grouped = known.group_by(["queue", *KINDS], use_threads=False).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
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
                totals["unsent"] += 0 if outcomes else messages
            else:
                self._totals["unknown"] += messages * len(outcomes)

    def _list_doubled(self, suspects: dict[Key, set[str]]) -> None:
        """List suspects that an attempt other than the dead one recorded, or that are recorded twice."""
        found: set[Key] = set()
        numbers = pa.array({key[1] for key in suspects}, pa.int64())
        chunks = (path for kind in OUTCOMES for path in self._files[kind] if path not in self._unreadable)
        for path in chunks if suspects else ():
            table = self._archive.read_table(path, [*KEY, "attempt", "destination"])
            table = table.filter(pc.is_in(table.column("sequence_number"), numbers))
            for key, attempt, destination in keyed_rows(table, "attempt", "destination"):
                if key in suspects and (key in found or suspects[key] - {attempt}):
                    self._add_doubtful(key, destination)
                found.add(key)

    def _list_accepted_twice(self, counts: pa.Table) -> None:
        """List messages that this run's namespace accepted, and others, too: by the ledger or by the journal."""
        mine = counts.filter(pc.field(LEDGER) > 0)
        both = mine.filter(pc.field(ELSEWHERE) > 0)
        others = " and ".join(self._name(each) for each in self._namespaces if each != self._run.delivery.namespace)
        found = dict.fromkeys(table_keys(both.slice(0, self._max_named)), others)
        self._totals["doubtful_total"] += len(both) - len(found)
        numbers = pa.array({key[1] for key in self._journal}, pa.int64())
        for key in table_keys(mine.filter(pc.is_in(mine.column("sequence_number"), numbers))):
            if (name := self._journal.get((key[0].lower(), *key[1:]))) is not None:
                found[key] = self._name(name)
        numbers = pa.array({key[1] for key in found}, pa.int64())
        for path in self._files[LEDGER] if found else ():
            table = self._read_accepted(path, [*KEY, "destination"])
            table = table.filter(pc.is_in(table.column("sequence_number"), numbers))
            for key, destination, name in keyed_rows(table, "destination", NAMESPACE.name):
                if key in found and name == self._run.delivery.namespace:
                    self._add_doubtful(key, destination, f"also accepted by {found[key]}")

    def _name(self, namespace: str) -> str:
        return namespace or self._run.pair.get("primary", "")

    def _list_unanswered(self) -> None:
        for path in self._archive.files(DOUBTFUL):
            for key, destination in keyed_rows(self._read(path, [*KEY, "destination"]), "destination"):
                self._add_doubtful(key, destination)

    def _add_doubtful(self, key: Key, destination: str | None, reason: str = "") -> None:
        """Count a message that may have arrived twice, and list it if there is room."""
        queue, number, _, message_id = key
        if (identity := (queue, number, message_id, destination)) not in self._named:
            self._totals["doubtful_total"] += 1
            if len(self._named) < self._max_named:
                self._named[identity] = PossibleDuplicate(*identity, reason)


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


def check_acknowledged(archive: Archive, proof: Proof, again: int = 0) -> None:
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


class Slice(NamedTuple):
    """One of `of` parts that messages are divided into: a power of two, by the last bits of the sequence number."""

    of: int
    part: int

    def rows(self, table: pa.Table) -> pa.Table:
        if self.of == 1:
            return table
        return table.filter(pc.equal(pc.bit_wise_and(table.column("sequence_number"), self.of - 1), self.part))

    def keys(self, table: pa.Table) -> pa.Table:
        return self.rows(table).select(list(KEY)).cast(KEYS)


def _count_by_key(keys: Mapping[str, Sequence[pa.Table]]) -> pa.Table:
    """Return one row per key, with its number of rows for each of KINDS."""
    found = []
    for kind, tables in keys.items():
        rows = pa.concat_tables(tables)
        for each in KINDS:
            rows = rows.append_column(each, pa.repeat(pa.scalar(int(each == kind), pa.int8()), len(rows)))
        found.append(rows)
    rows = pa.concat_tables(found)
    # Queues are few: encoded as numbers they cost a fifth.
    queues = rows.column("queue").combine_chunks().dictionary_encode()
    rows = rows.set_column(0, "queue", queues.indices)
    # Several threads would each build groups, and merging those costs five times as much.
    counted = rows.group_by(list(KEY), use_threads=False).aggregate([(kind, "sum") for kind in KINDS])
    columns = {kind: counted.column(f"{kind}_sum") for kind in KINDS}
    names = queues.dictionary.take(counted.column("queue").combine_chunks())
    return pa.table({"queue": names, **{name: counted.column(name) for name in KEY[1:]}, **columns})


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
