"""Digests of an archive's files, by which a missing, foreign, repeated, truncated or altered file is refused and named.

A digest file has the digests of one file or of many, and is named by the SHA-256 of its own content. Tasks write one
for each segment. Reports merge them: that of the drain names the digest files of all segments, the receipt also those
of all outcomes. Only a full check reads all bytes; others read the end of each file, whose footer has its rows, its
columns and the range of each column. Invariant: no message is completed before the digest of its segment is durable.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import StateRefused
from sbpair.replay.archive import (
    DIGESTS,
    DOUBTFUL,
    DRAINED_FILE,
    OUTCOMES,
    PARQUET,
    PLAN_FILE,
    RECEIPT_FILE,
    REMOVED_FILE,
    REPORT,
    RUN_FILE,
    SEGMENTS,
    Archive,
)
from sbpair.replay.ledger import OUTCOME
from sbpair.replay.segment import SEGMENT, Segment

if TYPE_CHECKING:
    from sbpair.replay.run_description import ReplayRun

T = TypeVar("T")

RECORDED = (*OUTCOMES, DOUBTFUL)  # directories whose files the receipt names, besides segments
JSON = ".json"
READERS = 8  # files read at once
MAX_READS = 5  # of all digest files, while a driver merges them
FOOTER_END = 8  # bytes behind a footer: its length, and the mark of the format


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The digest of one file: its size, the SHA-256 of its bytes, and that of its last `end_bytes`, its footer.

    A segment has its key range, and the attempt at a task that wrote it; "" if a driver adopted it. That of a segment
    that was `collected` from a stream stays as its tombstone.
    """

    path: str
    bytes: int
    sha256: str
    end_bytes: int
    end_sha256: str
    rows: int = 0
    namespace: str = ""
    queue: str = ""
    first: int | None = None
    last: int | None = None
    attempt: str = ""
    collected: bool = False

    def check(self, archive: Archive, others: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise StateRefused unless the file has this size and end. `others` are paths of the run by their SHA-256."""
        size, end = _existing(archive, self.path, lambda: archive.read_end(self.path, self.end_bytes))
        if size == self.bytes and _hash(end) == self.end_sha256:
            return
        if (other := others.get(archive.sha256(self.path))) is not None:
            raise archive.broken(self.path, f"it has the content of {other}")
        if size != self.bytes:
            raise archive.broken(self.path, f"it has {size} bytes, and the run wrote {self.bytes}")
        raise archive.broken(self.path, "it is not the file that the run wrote: its end differs")

    def check_bytes(self, archive: Archive) -> None:
        """Raise StateRefused unless all of its bytes are those that were written."""
        if _existing(archive, self.path, lambda: archive.sha256(self.path)) != self.sha256:
            raise archive.broken(self.path, "its bytes were altered since the run wrote them")


def _existing(archive: Archive, path: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except FileNotFoundError:
        if archive.exists(REMOVED_FILE):
            raise messages_removed(archive) from None
        raise archive.broken(path, "it is missing") from None


def _hash(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(path: str, content: bytes | pa.Buffer, **more: Any) -> FileDigest:
    """Return the digest of a file's content. The end of a file that is not Parquet is all of it."""
    whole = memoryview(content)
    length = len(whole)
    if path.endswith(PARQUET):
        length = FOOTER_END + int.from_bytes(whole[-FOOTER_END : -FOOTER_END // 2], "little")
    return FileDigest(path, len(whole), _hash(whole), length, _hash(whole[-length:]), **more)


def store_digest(archive: Archive, run: ReplayRun, segment: Segment, content: pa.Buffer, attempt: str) -> None:
    """Write the digest of a segment's content, durable on return. Raises MachineLacks."""
    if run.digests:
        numbers = [message.facts.sequence_number for message in segment.written]
        origin = {"namespace": run.pair["secondary"], "queue": segment.queue, "attempt": attempt}
        keys = {"rows": len(numbers), "first": min(numbers), "last": max(numbers)}
        _store(archive, [digest_of(segment.path, content, **origin, **keys)])


def _store(archive: Archive, digests: Iterable[FileDigest]) -> str:
    """Write a digest file, and return its name."""
    files = [
        {name: value for name, value in asdict(each).items() if value not in ("", None, False)}
        for each in sorted(digests, key=lambda each: each.path)
    ]
    content = json.dumps({"run": archive.run, "files": files}, separators=(",", ":")).encode()
    name = _hash(content)
    archive.write(f"{DIGESTS}/{name}{JSON}", content)
    return name


class StoredDigests(NamedTuple):
    """The digests of a run by the name of their digest file, and the names that each report has."""

    lists: dict[str, list[FileDigest]]
    named_in: dict[str, list[str]]

    def files(self, names: Iterable[str] | None = None) -> dict[str, FileDigest]:
        """Return the digests in all digest files, or in those of these names, by the path of their file.

        An interrupted merge leaves the digest of a segment beside its tombstone, which counts.
        """
        wanted = self.lists if names is None else names
        found = sorted((each for name in wanted for each in self.lists[name]), key=lambda each: each.collected)
        return {each.path: each for each in found}


def read_digests(archive: Archive) -> StoredDigests:
    """Read all digest files. Raises StateRefused if one is missing, altered or another run's."""
    missing: dict[str, str] = {}
    for _ in range(MAX_READS):  # a driver may merge them now
        named_in = {path: _names_in(archive, path) for path in (DRAINED_FILE, RECEIPT_FILE)}
        try:
            found = {_name(path): _read(archive, path) for path in _listed(archive)}
        except FileNotFoundError:
            continue
        missing = {name: path for path, names in named_in.items() for name in names if name not in found}
        if not missing:
            return StoredDigests(found, named_in)
    name, report = next(iter(missing.items()), ("*", "a listing"))
    raise archive.broken(f"{DIGESTS}/{name}{JSON}", f"it is missing, and {report} names it")


def segment_check(archive: Archive) -> Callable[[str], None]:
    """Return a check of one segment by its digest, which raises StateRefused. Checksums of pages do the rest."""
    digests = read_digests(archive).files()

    def check(path: str) -> None:
        if path not in digests:
            raise archive.broken(path, "it has no digest")
        digests[path].check(archive)

    return check


def _listed(archive: Archive) -> list[str]:
    # An object store may list an empty file while it is written.
    sizes = archive.sizes(DIGESTS)
    return [path for path in sizes if path.endswith(JSON) and (sizes[path] or archive.is_local)]


def _name(path: str) -> str:
    return path.removeprefix(f"{DIGESTS}/").removesuffix(JSON)


def _names_in(archive: Archive, path: str) -> list[str]:
    report = archive.find_json(path)
    names = [] if report is None else report.get("digests")
    if not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        raise archive.broken(path, "it does not name the digests of the run")
    return names


def _read(archive: Archive, path: str) -> list[FileDigest]:
    content = archive.read(path)
    if _hash(content) != _name(path):
        raise archive.broken(path, "its name is not the SHA-256 of its content")
    try:
        document = json.loads(content)
        run, digests = document["run"], [FileDigest(**each) for each in document["files"]]
    except (KeyError, TypeError, ValueError) as error:
        raise archive.broken(path, "it has no digests") from error
    if run != archive.run:
        raise StateRefused(
            f"{archive.root}/{path} belongs to run {run}, not {archive.run}", hint="move it back to the run it is of"
        )
    return digests


class Drained(NamedTuple):
    """Messages at the end of the drain: in segments, remaining in each queue, and those of them that were locked.

    `settled` are the attempts at its tasks that completed every message they stored.
    """

    messages: int = 0
    remaining: Mapping[str, int] = MappingProxyType({})
    locked: int = 0
    settled: frozenset[str] = frozenset()


def read_drained(archive: Archive) -> Drained | None:
    """Return the counts of the drain, once it has ended. Others lock or defer the messages that remain in queues."""
    report = archive.find_json(DRAINED_FILE)
    if report is None:
        return None
    try:
        remaining = {str(queue): int(count) for queue, count in report.get("remaining_in_queues", {}).items()}
        settled = frozenset(map(str, report.get("settled", ())))
        return Drained(int(report.get("messages", 0)), remaining, int(report.get("locked", 0)), settled)
    except (AttributeError, TypeError, ValueError) as error:
        raise archive.broken(DRAINED_FILE, "it does not have the drain's counts") from error


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """The files of a run that were checked: digests and rows by path, and segments without a digest.

    The task of such a segment runs, or died before it could store the digest. `collected` counts the rows of segments
    that were collected from a stream.
    """

    digests: dict[str, FileDigest] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    not_adopted: tuple[str, ...] = ()
    collected: int = 0

    @property
    def messages(self) -> int:
        """The rows of all segments."""
        return sum(count for path, count in self.rows.items() if path.startswith(f"{SEGMENTS}/"))


def check_files(archive: Archive, run: ReplayRun, *, full: bool = False) -> CheckedFiles:
    """Check each file by its digest, with `full` all of its bytes. A run without digests has none to check by.

    Raises StateRefused for a file that is missing, foreign, repeated, truncated or altered.
    """
    if not run.digests:
        if _listed(archive):
            raise archive.broken(RUN_FILE, f"it says that the run has no digests, and {DIGESTS} has some")
        return CheckedFiles()
    # In this order: a file has its digest after it is there, and a report after that.
    outcomes = {path: size for kind in OUTCOMES for path, size in archive.sizes(kind).items() if path.endswith(PARQUET)}
    stored = read_digests(archive)
    _check_reports(archive, stored, sent=bool(outcomes))
    removed, known = _removed(archive), stored.files()
    gone = {path: each.rows for path, each in known.items() if each.collected}
    digests = {path: each for path, each in known.items() if not (path in gone or path.startswith(removed))}
    _check_listed(archive, run, [*digests.values()], full=full)
    rows = {path: each.rows for path, each in digests.items() if path.endswith(PARQUET)}
    unlisted = {path: size for path, size in outcomes.items() if path not in digests and (size or archive.is_local)}
    _check_copies(archive, digests.values(), unlisted)
    rows |= for_each_file(lambda path: archive.check_footer(path, archive.footer(path), OUTCOME), unlisted)
    found = [] if removed else [path for path in archive.files(SEGMENTS) if path not in known]
    rows |= for_each_file(lambda path: _check_unlisted(archive, run, path), found)
    return CheckedFiles(digests, rows, tuple(found), sum(gone.values()))


def for_each_file(check: Callable[[str], T], paths: Collection[str]) -> dict[str, T]:
    """Return the results by path, of some files at a time. Raises the first error."""
    if not paths:
        return {}
    with ThreadPoolExecutor(READERS) as readers:
        return dict(zip(paths, readers.map(check, paths), strict=True))


def _check_listed(archive: Archive, run: ReplayRun, digests: Sequence[FileDigest], *, full: bool) -> None:
    by_path = {each.path: each for each in digests}
    others = {each.sha256: each.path for each in digests}
    for each in digests:
        if each.namespace not in ("", run.pair["secondary"]):
            raise archive.broken(each.path, f"its messages are of {each.namespace}, and the run's are not")
    for_each_file(lambda path: by_path[path].check(archive, others), by_path)
    if full:
        for_each_file(lambda path: by_path[path].check_bytes(archive), by_path)


def _removed(archive: Archive) -> tuple[str, ...]:
    """Return the beginnings of paths of files that `gc` removes."""
    removal = archive.find_json(REMOVED_FILE) or {"places": ()}
    places = removal.get("places", (SEGMENTS, *RECORDED))
    return tuple(f"{place}/" for place in places) if isinstance(places, list | tuple) else ()


def _check_reports(archive: Archive, stored: StoredDigests, *, sent: bool) -> None:
    """Raise StateRefused if a report is missing or not the one of this run that another names."""
    drained, receipt = read_drained(archive), archive.find_json(RECEIPT_FILE)
    if receipt is not None:
        if receipt.get("run") != archive.run:
            raise archive.broken(RECEIPT_FILE, f"it is the receipt of run {receipt.get('run')}")
        expected = receipt.get("drained")
        if expected is not None and (drained is None or archive.sha256(DRAINED_FILE) != expected):
            raise archive.broken(DRAINED_FILE, "it is not the one that the receipt names")
    if drained is None:
        if sent or archive.exists(PLAN_FILE):
            raise archive.broken(DRAINED_FILE, "it is missing, and the drain had ended")
        return
    files = stored.files(stored.named_in[DRAINED_FILE]).values()
    listed = sum(each.rows for each in files if each.path.startswith(f"{SEGMENTS}/"))
    if listed != drained.messages:
        raise archive.broken(DRAINED_FILE, f"it counts {drained.messages} messages, and its digests {listed}")


def _check_copies(archive: Archive, known: Collection[FileDigest], sizes: Mapping[str, int]) -> None:
    """Raise StateRefused if a file has the same bytes as another. Only files of equal size are read."""
    alike = Counter([*sizes.values(), *(each.bytes for each in known)])
    seen = {each.sha256: each.path for each in known}
    for path in sorted(sizes):
        if alike[sizes[path]] > 1 and (first := seen.setdefault(archive.sha256(path), path)) != path:
            raise _copy(archive, path, first)


def _copy(archive: Archive, path: str, first: str) -> StateRefused:
    return StateRefused(f"{archive.root}/{path} is a copy of {first}", hint="remove the copy from the run's directory")


def _check_unlisted(archive: Archive, run: ReplayRun, path: str) -> int:
    """Return the rows of a segment without a digest. Raises StateRefused unless it is one of this run, in its place."""
    rows = archive.check_footer(path, archive.footer(path), SEGMENT)
    columns = archive.read_table(path, ["segment", "queue"])
    queue, _, name = path.removeprefix(f"{SEGMENTS}/").removesuffix(PARQUET).rpartition("/")
    own, queues = ({*pc.unique(columns.column(each)).to_pylist()} for each in ("segment", "queue"))
    known = {queue} if queue else {*run.queues}  # earlier versions have a directory for each queue
    if own - {name} or queues - known:
        raise _copy(archive, path, f"{SEGMENTS}/{'/'.join(map(str, (*queues, *own)))}{PARQUET}")
    return rows


def adopt_segments(archive: Archive, run: ReplayRun) -> tuple[str, ...]:
    """Store the digests of segments whose tasks died before that, and return their paths: they may be the only copies.

    Raises StateRefused as `check_files` does, and for a broken segment.
    """
    if run.is_stream:  # readers may have deleted others
        known = read_digests(archive).files()
        found = tuple(path for path in archive.files(SEGMENTS) if path not in known)
        for_each_file(lambda path: _check_unlisted(archive, run, path), found)
    else:
        found = check_files(archive, run).not_adopted if run.digests else ()
    for path in found:
        table = archive.read_table(path)  # its pages have checksums
        numbers = pc.min_max(table.column("sequence_number")).as_py()
        queue = table.column("queue")[0].as_py()
        origin = {"namespace": run.pair["secondary"], "queue": queue, "rows": len(table)}
        keys = {"first": numbers["min"], "last": numbers["max"]}
        _store(archive, [digest_of(path, archive.read(path), **origin, **keys)])
    return found


def merge_digests(archive: Archive, collected: Collection[str] = ()) -> None:
    """Merge the digest files of a stream into one, in which the digests of collected segments become tombstones."""
    stored = read_digests(archive)
    known = stored.files()
    merged = [replace(each, collected=each.collected or path in collected) for path, each in known.items()]
    kept = {_store(archive, merged)} if merged else set()
    for name in stored.lists.keys() - kept:
        archive.remove(f"{DIGESTS}/{name}{JSON}")


def write_report(archive: Archive, run: ReplayRun, path: str, report: Mapping[str, Any]) -> None:
    """Write a report that names all digest files, after those that no report names are merged into one.

    It covers the description of the run; the receipt also covers the outcomes, and names the drain's report.
    """
    if not run.digests:
        archive.write_json(path, report)
        return
    ended = path == RECEIPT_FILE
    stored = read_digests(archive)
    named, known = stored.named_in[DRAINED_FILE], stored.files()
    covered = [RUN_FILE, *(each for kind in RECORDED if ended for each in archive.files(kind))]
    known |= for_each_file(lambda each: _digest(archive, each), [each for each in covered if each not in known])
    for each in stored.files(named):
        del known[each]
    names = {*named, _store(archive, known.values())} if known else {*named}
    drained = {"drained": archive.sha256(DRAINED_FILE)} if ended and archive.exists(DRAINED_FILE) else {}
    archive.write_json(path, {**report, **drained, "digests": sorted(names)})
    for name in stored.lists.keys() - names:
        archive.remove(f"{DIGESTS}/{name}{JSON}")


def _digest(archive: Archive, path: str) -> FileDigest:
    return digest_of(path, archive.read(path), rows=archive.row_count(path) if path.endswith(PARQUET) else 0)


def messages_removed(archive: Archive) -> StateRefused:
    """Return the error for a run whose messages `gc` has removed."""
    return StateRefused(
        f"the messages of run {archive.run} were removed by sbpair replay gc",
        hint=f"its receipt is in {archive.root}/{REPORT}",
    )


def without_digests(*runs: str) -> str:
    """Return what users are told of runs without digests."""
    which, them = (f"run {runs[0]} has", "it") if len(runs) == 1 else (f"{len(runs)} runs have", "them")
    return f"{which} no digests, as an earlier version of sbpair started {them}: swapped files may not be noticed"
