"""The verification of a run, from its files alone: neither Spark nor a namespace is asked.

Messages are counted by key, in slices, so that memory does not depend on their number. Rows become Python objects only
for messages that are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import StateRefused
from sbpair.replay.archive import value_counts
from sbpair.replay.archive_layout import DOUBTFUL, DRAINED_FILE, HELD, LEDGER, OUTCOMES, REMOVED_FILE, REPORT, SEGMENTS
from sbpair.replay.key_counts import (
    KINDS,
    Slice,
    count_copies,
    group_by_key,
    group_shared_keys,
    keys_table,
    marked_keys,
    ones,
)
from sbpair.replay.ledger import Key, check_chunks, read_held, table_keys, wrong_columns
from sbpair.replay.proof import BUCKETS, Proof, ProofBuilder
from sbpair.replay.schema import KEY, KEYS, OUTCOME, SEGMENT

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import ReplayRun

MAX_SLICE = 2_000_000
"""Upper bound on keys in memory."""


def verify(archive: Archive, run: ReplayRun) -> Proof:
    """Read every segment and every chunk. Raises StateRefused for a broken, foreign or missing one.

    For a direct run, `archived` is the number received as far as the files show, and `unsent` the number in doubt.
    """
    if archive.exists(REMOVED_FILE):
        raise messages_removed(archive)
    return _Verification(archive, run).run()


class _Verification:
    """One reading of a run's files.

    Chunks of a direct run are not synced: a loss of power may cut them short. They are then counted as `unreadable`.
    """

    def __init__(self, archive: Archive, run: ReplayRun) -> None:
        self._archive = archive
        self._run = run
        rows = check_segments(archive)
        chunk_rows, broken = check_chunks(archive, run.shards, synced=not run.direct)
        self._slices = 1 << (max(rows, chunk_rows) // MAX_SLICE).bit_length()
        self._builder = ProofBuilder(run, broken)
        self._files = {kind: [path for path in archive.files(kind) if path not in broken] for kind in KINDS}
        self._attempts = dict[Key, set[str]]()

    def run(self) -> Proof:
        self._attempts = self._held_by_attempts()
        for part in range(self._slices):
            counts = self._count_keys(Slice(self._slices, part))
            self._builder.copies += 0 if self._run.direct else count_copies(counts)
            self._count_outcomes(counts)
            self._list_doubled(_suspects(counts, self._attempts))
        self._list_unanswered()
        return self._builder.build(len(self._files[SEGMENTS]), remaining_at_drain(self._archive))

    def _held_by_attempts(self) -> dict[Key, set[str]]:
        """Return the attempts that held each message when they died.

        These files are not synced. If a loss of power has cut one short, only names are lost.
        """
        found: dict[Key, set[str]] = {}
        for path in self._archive.files(HELD):
            attempt = path.removeprefix(f"{HELD}/").partition(".")[0]
            try:
                for key in read_held(self._archive, path):
                    found.setdefault(key, set()).add(attempt)
            except StateRefused:
                self._builder.unreadable.append(path)
        return found

    def _count_keys(self, part: Slice) -> pa.Table:
        """Return a row per message: KEY, and for each of KINDS its number of rows in files.

        In a direct run, a message that any task has held counts as archived.
        """
        keys = {kind: [KEYS.empty_table()] for kind in KINDS}
        for path in self._files[SEGMENTS]:
            keys[SEGMENTS].append(part.keys(self._archive.read_table(path, list(KEY))))
        for kind in OUTCOMES:
            builder = self._builder
            counts, name = (builder.destinations, "destination") if kind == LEDGER else (builder.reasons, "reason")
            for path in self._files[kind]:
                rows = part.rows(self._read(path, [*KEY, name]))
                counts.update(value_counts(rows.column(name)))
                keys[kind].append(rows.select(list(KEY)).cast(KEYS))
        if not self._run.direct:
            return group_by_key(marked_keys(keys))
        keys[SEGMENTS].append(part.keys(keys_table(self._attempts)))
        found = group_shared_keys(marked_keys(keys))
        return found.set_column(found.column_names.index(SEGMENTS), SEGMENTS, ones(len(found)))

    def _read(self, path: str, columns: list[str]) -> pa.Table:
        """Read columns of a chunk. An unreadable chunk of a direct run counts as empty: it is all or nothing."""
        if not self._run.direct:
            return self._archive.read_table(path, columns)
        try:
            return self._archive.read_table(path).select(columns)
        except StateRefused:
            if path not in self._builder.unreadable:
                self._builder.unreadable.append(path)
            return OUTCOME.empty_table().select(columns)

    def _count_outcomes(self, counts: pa.Table) -> None:
        """Count messages by queue and outcome."""
        builder = self._builder
        known = pa.table(
            {"queue": counts.column("queue"), **{kind: pc.greater(counts.column(kind), 0) for kind in KINDS}}
        )
        grouped = known.group_by(["queue", *KINDS], use_threads=False).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            messages = row["count_all"]
            totals = builder.queues.setdefault(row["queue"], Counter())
            outcomes = [bucket for kind, bucket in BUCKETS.items() if row[kind]]
            for bucket in outcomes:
                totals[bucket] += messages
            builder.contradictions += messages * max(0, len(outcomes) - 1)
            if row[SEGMENTS]:
                totals["archived"] += messages
                totals["unsent"] += 0 if outcomes else messages
            else:
                builder.unknown += messages * len(outcomes)

    def _list_doubled(self, suspects: dict[Key, set[str]]) -> None:
        """List suspects that an attempt other than the dead one recorded, or that are recorded twice."""
        found: set[Key] = set()
        numbers = pa.array({key[1] for key in suspects}, pa.int64())
        for path in self._readable_chunks() if suspects else ():
            table = self._archive.read_table(path, [*KEY, "attempt", "destination"])
            table = table.filter(pc.is_in(table.column("sequence_number"), numbers))
            columns = (table.column(name).to_pylist() for name in ("attempt", "destination"))
            for key, attempt, destination in zip(table_keys(table), *columns, strict=True):
                if key in suspects and (key in found or suspects[key] - {attempt}):
                    self._builder.add_doubtful(key, destination)
                found.add(key)

    def _readable_chunks(self) -> Iterator[str]:
        unreadable = self._builder.unreadable
        return (path for kind in OUTCOMES for path in self._files[kind] if path not in unreadable)

    def _list_unanswered(self) -> None:
        """List messages that a task sent without an answer, and sent again."""
        for path in self._archive.files(DOUBTFUL):
            table = self._read(path, [*KEY, "destination"])
            for key, destination in zip(table_keys(table), table.column("destination").to_pylist(), strict=True):
                self._builder.add_doubtful(key, destination)


def _suspects(counts: pa.Table, attempts: dict[Key, set[str]]) -> dict[Key, set[str]]:
    """Return messages that may be in the primary twice: in the ledger twice, or held by a dead attempt.

    The latter may have arrived, whatever their outcome in the next attempt.
    """
    twice = counts.filter(pc.field(LEDGER) > 1)
    return {**{key: set() for key in table_keys(twice)}, **attempts}


def messages_removed(archive: Archive) -> StateRefused:
    """Return the error for a run whose messages `gc` has removed."""
    return StateRefused(
        f"the messages of run {archive.run} were removed by sbpair replay gc",
        hint=f"its receipt is in {archive.root}/{REPORT}",
    )


def check_segments(archive: Archive) -> int:
    """Return the number of messages in all segments. Raises StateRefused for a broken, foreign or missing one."""
    rows = 0
    for path in archive.files(SEGMENTS):
        footer = archive.footer(path)
        if footer.metadata.get("sbpair.run") != archive.run:
            raise StateRefused(
                f"{archive.root}/{path} belongs to run {footer.metadata.get('sbpair.run')}, not {archive.run}",
                hint="move it back to the run it belongs to",
            )
        if not footer.schema.equals(SEGMENT):
            raise wrong_columns(archive, path)
        rows += footer.rows
    drained, _remaining = _drained(archive)
    if rows < drained and not archive.exists(REMOVED_FILE):
        raise StateRefused(
            f"{archive.root}/{SEGMENTS} holds {rows} messages, and {drained} were drained into it",
            hint="restore the missing files from a copy: their messages left the backlog",
        )
    return rows


def remaining_at_drain(archive: Archive) -> dict[str, int]:
    """Return the messages that the drain could not receive, by queue: another receiver locked or deferred them."""
    return _drained(archive)[1]


def _drained(archive: Archive) -> tuple[int, dict[str, int]]:
    """Return (messages in segments, messages remaining in each queue) at the end of the drain."""
    try:
        report = archive.read_json(DRAINED_FILE)
        remaining = {str(queue): int(count) for queue, count in report.get("remaining_in_queues", {}).items()}
        return int(report.get("messages", 0)), remaining
    except FileNotFoundError:
        return 0, {}
    except (AttributeError, TypeError, ValueError) as error:
        raise archive.broken(DRAINED_FILE, "it does not have the drain's counts") from error
