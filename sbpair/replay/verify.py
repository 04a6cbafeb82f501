"""The proof, from the files alone: archived = acknowledged + expired + quarantined + deduplicated.

Neither Spark nor a namespace is asked. What is counted are messages, told apart by their keys, and looked at in slices,
so that memory does not depend on how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sbpair.errors import StateRefused
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
)
from sbpair.replay.ledger import Key, check_shards, foreign, keys_of
from sbpair.replay.schema import KEY, SEGMENT

if TYPE_CHECKING:
    import pyarrow as pa

    from sbpair.replay.run import Run

SLICE_MOST = 2_000_000
"""How many keys are held at once."""

LISTED_MOST = 1_000
"""How many reasons are told."""

NAMED_MOST = 20_000
"""How many messages are named that may be there twice: as many as a dozen tasks have in hand when they are killed."""

BUCKETS = {LEDGER: "acknowledged", EXPIRED: "expired", QUARANTINE: "quarantined", DEDUPLICATED: "deduplicated"}


@dataclass
class Proof:
    """Counts are messages. `copies` are rows beyond the first of a message; `left` have come to no end yet.

    `contradictions` have come to two different ends, and `unknown` to one without being in a segment. `doubtful` names
    those that may be in the primary twice; `unreadable` are files that would name more of them. `left_in_queues` were
    in the backlog when the run began, and still were when it was drained: {queue: how many}.
    """

    archived: int = 0
    acknowledged: int = 0
    expired: int = 0
    quarantined: int = 0
    deduplicated: int = 0
    copies: int = 0
    left: int = 0
    contradictions: int = 0
    unknown: int = 0
    segments: int = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    destinations: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    named: dict[tuple[object, ...], dict[str, object]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    left_in_queues: dict[str, int] = field(default_factory=dict)

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
            return 1
        return 3 if self.left or self.expired or self.quarantined or self.left_in_queues else 0


def verify(archive: Archive, run: Run) -> Proof:
    """Read every segment and every chunk. Raises StateRefused for one that is broken, another run's, or not there.

    Of a direct run, `archived` is what was taken, as far as anything was written of it, and `left` what is in doubt.
    """
    if archive.exists(SWEPT):
        raise StateRefused(
            f"the messages of run {archive.run} were taken away by sbpair replay gc",
            hint=f"what it came to is in {archive.root}/{REPORT}",
        )
    rows = check_segments(archive)
    check_shards(archive, run.shards)
    proof = Proof(left_in_queues=left_at_drain(archive))
    chunks = {kind: archive.files(kind) for kind in OUTCOMES}
    if run.direct:
        rows = sum(archive.rows(path) for paths in chunks.values() for path in paths)
    attempts = _in_hand_at_death(archive, proof)
    counts: dict[str, Counter[str]] = {queue: Counter() for queue in run.queues}
    slices = rows // SLICE_MOST + 1
    for part in range(slices):
        _verify_slice(archive, proof, counts, chunks, attempts, Slice(slices, part), direct=run.direct)
    _name_unanswered(archive, proof)
    _count_ends(archive, proof, chunks)
    _sum_up(proof, counts)
    return proof


class Slice(NamedTuple):
    """One of so many parts that the messages are looked at in."""

    of: int
    part: int

    def keys(self, table: pa.Table) -> Iterator[tuple[int, Key]]:
        """(row, key) of what is in it."""
        for row, key in enumerate(keys_of(table)):
            if self.has(key):
                yield row, key

    def has(self, key: Key) -> bool:
        return key[1] % self.of == self.part


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
    drained = archive.read_json(DRAINED).get("messages", 0) if archive.exists(DRAINED) else 0
    if rows < drained and not archive.exists(SWEPT):
        raise StateRefused(
            f"{archive.root}/{SEGMENTS} holds {rows} messages, and {drained} were drained into it",
            hint="bring back the files that are missing from a copy: their messages are in the backlog no more",
        )
    return rows


def _verify_slice(
    archive: Archive,
    proof: Proof,
    counts: dict[str, Counter[str]],
    chunks: dict[str, list[str]],
    attempts: dict[Key, set[str]],
    part: Slice,
    *,
    direct: bool,
) -> None:
    left = _taken(archive, chunks, attempts, part) if direct else set[Key]()
    for path in archive.files(SEGMENTS):
        proof.segments += part.part == 0
        for _, key in part.keys(archive.read_table(path, list(KEY))):
            proof.copies += key in left
            left.add(key)
    _count(counts, "archived", left)
    archived, ended = frozenset(left), set[Key]()
    for kind, paths in chunks.items():
        keys = _ended(archive, paths, part, proof, attempts if kind == LEDGER else {}, named=kind == LEDGER)
        proof.contradictions += len(keys & ended)
        proof.unknown += len(keys - archived)
        _count(counts, BUCKETS[kind], keys)
        ended |= keys
    _count(counts, "left", archived - ended)


def _taken(archive: Archive, chunks: dict[str, list[str]], attempts: Iterable[Key], part: Slice) -> set[Key]:
    found = {key for key in attempts if part.has(key)}
    for path in (path for paths in chunks.values() for path in paths):
        found.update(key for _, key in part.keys(archive.read_table(path, list(KEY))))
    return found


def _ended(
    archive: Archive, paths: list[str], part: Slice, proof: Proof, attempts: dict[Key, set[str]], *, named: bool
) -> set[Key]:
    """The messages of these chunks; those that may be in the primary twice are named."""
    found: set[Key] = set()
    for path in paths:
        table = archive.read_table(path, [*KEY, "attempt", "destination"])
        wrote, destinations = (table.column(name).to_pylist() for name in ("attempt", "destination"))
        for row, key in part.keys(table):
            if named and (key in found or attempts.get(key, set()) - {wrote[row]}):
                _name(proof, key, destinations[row])
            found.add(key)
    return found


def _count(counts: dict[str, Counter[str]], bucket: str, keys: Iterable[Key]) -> None:
    for queue, number in Counter(key[0] for key in keys).items():
        counts.setdefault(queue, Counter())[bucket] += number


def _sum_up(proof: Proof, counts: dict[str, Counter[str]]) -> None:
    names = ("archived", *BUCKETS.values(), "left")
    proof.queues = {queue: {name: counted[name] for name in names} for queue, counted in counts.items()}
    for name in names:
        setattr(proof, name, sum(counted[name] for counted in counts.values()))


def _name(proof: Proof, key: Key, destination: str | None) -> None:
    if len(proof.named) < NAMED_MOST:
        queue, number, _, message_id = key
        named = {"queue": queue, "sequence_number": number, "message_id": message_id, "destination": destination}
        proof.named[tuple(named.values())] = named


def _name_unanswered(archive: Archive, proof: Proof) -> None:
    """What a task sent without an answer, and sent again."""
    for path in archive.files(DOUBTFUL):
        table = archive.read_table(path)
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
            keys = keys_of(archive.read_table(path, list(KEY)))
        except StateRefused:
            proof.unreadable.append(path)
            continue
        for key in keys:
            found.setdefault(key, set()).add(attempt)
    return found


def left_at_drain(archive: Archive) -> dict[str, int]:
    """What the drain could not have: somebody else had it locked, or has put it aside."""
    try:
        found = archive.read_json(DRAINED).get("left_in_queues", {})
    except FileNotFoundError:
        return {}
    return {str(queue): int(count) for queue, count in found.items()}


def _count_ends(archive: Archive, proof: Proof, chunks: dict[str, list[str]]) -> None:
    destinations: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for kind, paths in chunks.items():
        for path in paths:
            table = archive.read_table(path, ["destination", "reason"])
            if kind == LEDGER:
                destinations.update(str(each) for each in table.column("destination").to_pylist())
            else:
                reasons.update(str(each) for each in table.column("reason").to_pylist())
    proof.destinations = dict(sorted(destinations.items()))
    proof.reasons = dict(reasons.most_common(LISTED_MOST))
