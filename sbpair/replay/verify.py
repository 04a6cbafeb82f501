"""The proof, from the files alone: archived = acknowledged + expired + quarantined + deduplicated.

Neither Spark nor a namespace is asked. What is counted are messages, told apart by their keys, and looked at in slices,
so that memory does not depend on how many there are. Rows become Python's objects only where a message is to be named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import ExitCode, StateRefused
from sbpair.replay.archive import (
    DEDUPLICATED,
    DOUBTFUL,
    DRAINED,
    EXPIRED,
    LEDGER,
    OUTCOMES,
    QUARANTINE,
    REPORT,
    SEGMENTS,
    SENDING,
    SWEPT,
    Archive,
    counted,
)
from sbpair.replay.ledger import Key, check_shards, foreign, keys_of, read_held
from sbpair.replay.schema import KEY, KEYS, OUTCOME, SEGMENT

if TYPE_CHECKING:
    from sbpair.replay.run import ReplayRun

MAX_SLICE = 2_000_000
"""How many keys are held at once."""

MAX_LISTED = 1_000
"""How many reasons are told."""

MAX_NAMED = 20_000
"""How many messages are named that may be there twice: as many as a dozen tasks have in hand when they are killed."""

BUCKETS = {LEDGER: "acknowledged", EXPIRED: "expired", QUARANTINE: "quarantined", DEDUPLICATED: "deduplicated"}

KINDS = (SEGMENTS, *OUTCOMES)
"""What may be known of a message: that it was archived, and every end that it has come to."""


@dataclass
class Proof:
    """Counts are messages. `copies` are rows beyond the first of a message; `unsent` have come to no end yet.

    `contradictions` have come to two different ends, and `unknown` to one without being in a segment. `doubtful` names
    those that may be in the primary twice, at most MAX_NAMED of `doubtful_total`; `unreadable` are files
    that would name more of them: those that are not synced may be cut short by a loss of power. `remaining_in_queues`
    were in the backlog when the run began, and still were when it was drained: {queue: how many}.
    """

    archived: int = 0
    acknowledged: int = 0
    expired: int = 0
    quarantined: int = 0
    deduplicated: int = 0
    copies: int = 0
    unsent: int = 0
    contradictions: int = 0
    unknown: int = 0
    segments: int = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    destinations: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    named: dict[tuple[object, ...], dict[str, object]] = field(default_factory=dict)
    doubtful_total: int = 0
    unreadable: list[str] = field(default_factory=list)
    remaining_in_queues: dict[str, int] = field(default_factory=dict)

    @property
    def doubtful(self) -> list[dict[str, object]]:
        return list(self.named.values())

    @property
    def balanced(self) -> bool:
        ended = self.acknowledged + self.expired + self.quarantined + self.deduplicated
        return self.archived == ended and not (self.contradictions or self.unknown)

    @property
    def exit_code(self) -> int:
        """0 where all of it has arrived; 3 where somebody has to look, or to resume; 1 where it is wrong."""
        if self.contradictions or self.unknown:
            return ExitCode.BUG
        unfinished = self.unsent or self.expired or self.quarantined or self.remaining_in_queues
        return ExitCode.PARTIAL_OR_FINDINGS if unfinished else ExitCode.DONE


def verify(archive: Archive, run: ReplayRun) -> Proof:
    """Read every segment and every chunk. Raises StateRefused for one that is broken, another run's, or not there.

    Of a direct run, `archived` is what the number received as far as the files show, and `unsent` the number in doubt.
    """
    if archive.exists(SWEPT):
        raise swept(archive)
    drained = check_segments(archive)
    said, broken = check_shards(archive, run.shards, synced=not run.direct)
    proof = Proof(remaining_in_queues=left_at_drain(archive), unreadable=broken)
    files = {kind: [path for path in archive.files(kind) if path not in broken] for kind in KINDS}
    attempts = _in_hand_at_death(archive, proof)
    proof.segments = len(files[SEGMENTS])
    tally = SliceCounts({queue: Counter() for queue in run.queues})
    slices = 1 << (max(drained, said) // MAX_SLICE).bit_length()
    for part in range(slices):
        known = _known(archive, files, attempts, Slice(slices, part), tally, broken if run.direct else None)
        proof.copies += 0 if run.direct else _rows_beyond_the_first(known)
        _judge(proof, tally.queues, known)
        # What a dead attempt had in hand may have arrived, however it ended for the next one.
        ended = [path for kind in OUTCOMES for path in files[kind] if path not in broken]
        _name_doubled(archive, proof, ended, _suspects(known, attempts))
    _name_unanswered(archive, proof, broken if run.direct else None)
    _sum_up(proof, tally)
    return proof


@dataclass
class SliceCounts:
    """What is counted while slices are read: messages by queue, and rows by where they went or why they did not."""

    queues: dict[str, Counter[str]]
    destinations: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


def swept(archive: Archive) -> StateRefused:
    return StateRefused(
        f"the messages of run {archive.run} were taken away by sbpair replay gc",
        hint=f"what it came to is in {archive.root}/{REPORT}",
    )


class Slice(NamedTuple):
    """One of so many parts that the messages are looked at in: a power of two, for parts are told by the last bits."""

    of: int
    part: int

    def rows(self, table: pa.Table) -> pa.Table:
        """Those of them that are in it."""
        if self.of == 1:
            return table
        return table.filter(pc.equal(pc.bit_wise_and(table.column("sequence_number"), self.of - 1), self.part))

    def keys(self, table: pa.Table) -> pa.Table:
        """Of the rows that are in it."""
        return self.rows(table).select(list(KEY)).cast(KEYS)


def check_segments(archive: Archive) -> int:
    """How many messages all segments hold. Raises StateRefused for one that is broken, another run's, or not there."""
    rows = 0
    for path in archive.files(SEGMENTS):
        footer = archive.footer(path)
        if footer.about.get("sbpair.run") != archive.run:
            raise StateRefused(
                f"{archive.root}/{path} is of run {footer.about.get('sbpair.run')}, and not of {archive.run}",
                hint="put it back where it belongs",
            )
        if not footer.schema.equals(SEGMENT):
            raise foreign(archive, path)
        rows += footer.rows
    drained, _left = _drained(archive)
    if rows < drained and not archive.exists(SWEPT):
        raise StateRefused(
            f"{archive.root}/{SEGMENTS} holds {rows} messages, and {drained} were drained into it",
            hint="bring back the files that are missing from a copy: their messages are in the backlog no more",
        )
    return rows


def _known(
    archive: Archive,
    files: dict[str, list[str]],
    attempts: Iterable[Key],
    part: Slice,
    tally: SliceCounts,
    broken: list[str] | None,
) -> pa.Table:
    """A row for each message: KEY, and for each of KINDS in how many rows of files it is.

    Of a direct run, which has a list for what is `broken`, whatever has been in anybody's hands counts as archived.
    """
    keys = {kind: [KEYS.empty_table()] for kind in KINDS}
    for path in files[SEGMENTS]:
        keys[SEGMENTS].append(part.keys(archive.read_table(path, list(KEY))))
    for kind in OUTCOMES:
        counts, name = (tally.destinations, "destination") if kind == LEDGER else (tally.reasons, "reason")
        for path in files[kind]:
            rows = part.rows(_read(archive, path, [*KEY, name], broken))
            counts.update(counted(rows.column(name)))
            keys[kind].append(rows.select(list(KEY)).cast(KEYS))
    if broken is None:
        return _grouped(_all_of(keys))
    keys[SEGMENTS].append(part.keys(_table_of(attempts)))
    known = _grouped_where_shared(_all_of(keys))
    return known.set_column(known.column_names.index(SEGMENTS), SEGMENTS, _ones(len(known)))


def _all_of(keys: dict[str, list[pa.Table]]) -> pa.Table:
    return pa.concat_tables([_marked(kind, pa.concat_tables(tables)) for kind, tables in keys.items()])


def _ones(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(1, pa.int64()), count)


def _read(archive: Archive, path: str, columns: list[str], broken: list[str] | None) -> pa.Table:
    """Columns of a chunk. Where there is a list for it, one that cannot be read is put there, and as good as empty.

    Such a chunk is not synced: a loss of power may take any part of it, and so it is all or nothing.
    """
    if broken is None:
        return archive.read_table(path, columns)
    try:
        return archive.read_table(path).select(columns)
    except StateRefused:
        if path not in broken:
            broken.append(path)
        return OUTCOME.empty_table().select(columns)


def _marked(kind: str, keys: pa.Table) -> pa.Table:
    """With a column for each of KINDS: 1 for that one."""
    for each in KINDS:
        keys = keys.append_column(each, pa.repeat(pa.scalar(int(each == kind), pa.int8()), len(keys)))
    return keys


def _grouped_where_shared(rows: pa.Table) -> pa.Table:
    """As `_grouped`, at a fifth of its cost where few messages have two rows: by queue and number others are alone."""
    queues = rows.column("queue").combine_chunks().dictionary_encode()
    # What is too large wraps around: two places may become one, and then they are looked at, but one never two.
    places = pc.multiply(rows.column("sequence_number"), len(queues.dictionary)).combine_chunks()
    places = pc.add(places, queues.indices.cast(pa.int64()))
    in_order = places.take(pc.array_sort_indices(places))
    shared = pc.is_in(places, in_order.filter(pc.equal(pc.pairwise_diff(in_order), 0)))
    grouped = _grouped(rows.filter(shared))
    return pa.concat_tables([rows.filter(pc.invert(shared)).cast(grouped.schema), grouped])


def _grouped(rows: pa.Table) -> pa.Table:
    """Rows of the same message as one. Queues are few: as numbers they cost a fifth."""
    queues = rows.column("queue").combine_chunks().dictionary_encode()
    rows = rows.set_column(0, "queue", queues.indices)
    # Several threads would each make groups of their own, and bring them together at five times the cost.
    found = rows.group_by(list(KEY), use_threads=False).aggregate([(kind, "sum") for kind in KINDS])
    columns = {kind: found.column(f"{kind}_sum") for kind in KINDS}
    names = queues.dictionary.take(found.column("queue").combine_chunks())
    return pa.table({"queue": names, **{name: found.column(name) for name in KEY[1:]}, **columns})


def _table_of(keys: Iterable[Key]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(KEY, key, strict=True)) for key in keys], schema=KEYS)


def _rows_beyond_the_first(known: pa.Table) -> int:
    """In segments."""
    rows = known.column(SEGMENTS)
    return int(pc.sum(rows).as_py() or 0) - int(pc.sum(pc.greater(rows, 0)).as_py() or 0)


def _judge(proof: Proof, counts: dict[str, Counter[str]], known: pa.Table) -> None:
    """Count messages by their queue and all that is known of them."""
    told = pa.table({"queue": known.column("queue"), **{kind: pc.greater(known.column(kind), 0) for kind in KINDS}})
    for row in told.group_by(["queue", *KINDS], use_threads=False).aggregate([([], "count_all")]).to_pylist():
        messages = row["count_all"]
        here = counts.setdefault(row["queue"], Counter())
        ends = [bucket for kind, bucket in BUCKETS.items() if row[kind]]
        for bucket in ends:
            here[bucket] += messages
        proof.contradictions += messages * max(0, len(ends) - 1)
        if row[SEGMENTS]:
            here["archived"] += messages
            here["unsent"] += 0 if ends else messages
        else:
            proof.unknown += messages * len(ends)


def _suspects(known: pa.Table, attempts: dict[Key, set[str]]) -> dict[Key, set[str]]:
    """Messages that the ledger has twice, or a dead attempt had in hand: those may be in the primary twice."""
    twice = known.filter(pc.field(LEDGER) > 1)
    return {**{key: set() for key in keys_of(twice)}, **attempts}


def _name_doubled(archive: Archive, proof: Proof, paths: list[str], suspects: dict[Key, set[str]]) -> None:
    """Name those that another attempt than the dead one wrote, or that are there again."""
    found: set[Key] = set()
    numbers = pa.array({key[1] for key in suspects}, pa.int64())
    for path in paths if suspects else ():
        table = archive.read_table(path, [*KEY, "attempt", "destination"])
        table = table.filter(pc.is_in(table.column("sequence_number"), numbers))
        said = (table.column(name).to_pylist() for name in ("attempt", "destination"))
        for key, wrote, destination in zip(keys_of(table), *said, strict=True):
            if key in suspects and (key in found or suspects[key] - {wrote}):
                _name(proof, key, destination)
            found.add(key)


def _sum_up(proof: Proof, tally: SliceCounts) -> None:
    names = ("archived", *BUCKETS.values(), "unsent")
    proof.queues = {queue: {name: here[name] for name in names} for queue, here in tally.queues.items()}
    for name in names:
        setattr(proof, name, sum(here[name] for here in tally.queues.values()))
    proof.destinations = dict(sorted(tally.destinations.items()))
    proof.reasons = dict(tally.reasons.most_common(MAX_LISTED))


def _name(proof: Proof, key: Key, destination: str | None) -> None:
    queue, number, _, message_id = key
    named = {"queue": queue, "sequence_number": number, "message_id": message_id, "destination": destination}
    if tuple(named.values()) in proof.named:
        return
    proof.doubtful_total += 1
    if len(proof.named) < MAX_NAMED:
        proof.named[tuple(named.values())] = named


def _name_unanswered(archive: Archive, proof: Proof, broken: list[str] | None) -> None:
    """What a task sent without an answer, and sent again."""
    for path in archive.files(DOUBTFUL):
        table = _read(archive, path, [*KEY, "destination"], broken)
        for key, destination in zip(keys_of(table), table.column("destination").to_pylist(), strict=True):
            _name(proof, key, destination)


def _in_hand_at_death(archive: Archive, proof: Proof) -> dict[Key, set[str]]:
    """What attempts that died had in hand: {key: the attempts}.

    These files are not synced, so that a loss of power may leave one cut short. Nothing is lost with it but names.
    """
    found: dict[Key, set[str]] = {}
    for path in archive.files(SENDING):
        attempt = path.removeprefix(f"{SENDING}/").partition(".")[0]
        try:
            for key in read_held(archive, path):
                found.setdefault(key, set()).add(attempt)
        except StateRefused:
            proof.unreadable.append(path)
    return found


def left_at_drain(archive: Archive) -> dict[str, int]:
    """What the drain could not have: somebody else had it locked, or has put it aside."""
    return _drained(archive)[1]


def _drained(archive: Archive) -> tuple[int, dict[str, int]]:
    """(how many messages the segments had when the drain was over, what it could not have of each queue)"""
    try:
        said = archive.read_json(DRAINED)
        left = {str(queue): int(count) for queue, count in said.get("remaining_in_queues", {}).items()}
        return int(said.get("messages", 0)), left
    except FileNotFoundError:
        return 0, {}
    except (AttributeError, TypeError, ValueError) as error:
        raise archive.broken(DRAINED, "it does not say what the drain came to") from error
