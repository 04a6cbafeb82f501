"""A run's files: `<archive>/<run>/…` on any filesystem that pyarrow supports, and the names of its directories.

Invariant: a file is whole or absent, and never changes. A local file is written beside its place, synced and renamed;
an object store gets one PUT. The run's directory is created once; if it disappears, as after an unmount, writes fail.
Lines of held messages are the exception: they may be appended to, and are read only after a crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from sbpair.errors import MachineLacks, SbpairError, StateRefused, UsageError
from sbpair.operating_system.files import MOUNTS, mount_at, open_to_append, sync_directory
from sbpair.operating_system.files import make_directories as make_private
from sbpair.operating_system.shortages import shortage_of
from sbpair.replay.local_files import check_system, find_irregular, make_directories, write_all, write_file
from sbpair.runs.run_log import match_id

RUN_FILE, STOP_FILE = "run.json", "STOP"
DELIVERY_FILE = "delivery.json"  # where a resume sends messages, if not where run.json says
PAUSE = b"pause"
"""The content of STOP_FILE for tasks that end for a pause, and start again."""

SEGMENTS, LEDGER, EXPIRED, QUARANTINE = "segments", "ledger", "expired", "quarantine"
DEDUPLICATED, DOUBTFUL, HELD, REPORT = "deduplicated", "doubtful", "held", "report"
LEASE, DIGESTS = "lease", "digests"
PLAN_FILE = f"{REPORT}/plan.json"
DRAINED_FILE, RECEIPT_FILE = f"{REPORT}/drained.json", f"{REPORT}/receipt.json"
REMOVED_FILE = f"{REPORT}/removed.json"  # written before `gc` removes the run's messages
DOUBTFUL_FILE = f"{REPORT}/doubtful.jsonl"  # all messages that may have arrived twice, with the receipt
ACCEPTED_FILE = f"{REPORT}/accepted-before.jsonl"  # keys that the syphon's journal had as accepted before the run
ACCEPTED_BEFORE_LINES = f"{REPORT}/accepted-before.json"  # the same, of earlier versions
PARQUET, LINES = ".parquet", ".jsonl"

BUCKETS = {LEDGER: "acknowledged", EXPIRED: "expired", QUARANTINE: "quarantined", DEDUPLICATED: "deduplicated"}
OUTCOMES = (*BUCKETS,)  # a message has exactly one
NOT_SENT = (EXPIRED, QUARANTINE)
REMOVABLE = (SEGMENTS, DEDUPLICATED, LEDGER, DOUBTFUL, HELD)
"""Directories that `gc` removes in any case, in this order; those of NOT_SENT only on request."""

VERSION = 1  # version of the archive, in run.json and in the metadata of every file
DISTINCT = frozenset({"position", "sequence_number", "enqueued_at_ms", "message_id", "message"})
"""Columns of mostly distinct values, for which a dictionary would save nothing."""

NAMESPACE = pa.field("namespace", pa.string())
"""A column that the files of outcomes have if messages go to another namespace than the pair's primary."""

GLOB_CHARACTERS = set("*?[]{}\\")  # Spark reads a path with one of these as a pattern
_HADOOP = {"s3": "s3a", "gcs": "gs"}
_NOT_OPENED = re.compile(r"(dbfs|s3a|s3n|(?!file)[a-z][a-z0-9+.-]+(?=:/(?!/))):/", re.IGNORECASE)
"""Schemes of Spark and Databricks, and URLs with one slash: as paths, they would be directories of this machine."""

_RENAMES = "abfs"
_WHOLE = frozenset(("local", "s3", "gcs", _RENAMES))
"""File systems in which a file appears whole. In the renaming one it does if it is written beside its place."""

CHECKED = (LEDGER, EXPIRED, QUARANTINE, DEDUPLICATED, DOUBTFUL, DIGESTS, REPORT)
"""Directories with a checksum. The segments have none, since they may be terabytes: `digests` has those of each."""


class Footer(NamedTuple):
    """A file's footer: run, version and shards in `metadata`; `schema` without metadata."""

    metadata: dict[str, str]
    rows: int
    schema: pa.Schema


class TableFile:
    """A Parquet file in memory, written one row group at a time. Encoded groups are not held twice."""

    def __init__(self, schema: pa.Schema, *, large: bool) -> None:
        """Choose the encoding: `large` suits many messages, and takes twice as long for some hundred rows."""
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            write_page_checksum=True,
            compression="zstd" if large else "snappy",
            compression_level=1 if large else None,
            # Statistics of messages are never read, and would fill most of a footer.
            write_statistics=[name for name in schema.names if name != "message"] if large else False,
            use_dictionary=[name for name in schema.names if name not in DISTINCT],
        )

    def add(self, table: pa.Table) -> None:
        """Append row groups."""
        self._writer.write_table(table)
        self.rows += len(table)

    def content(self) -> pa.Buffer:
        """Close the file and return it; nothing more can be added."""
        self._writer.close()
        return self._sink.getvalue()


class Archive:
    """The files of one run. `url` is a local directory or a URL such as s3://bucket/backlog."""

    def __init__(self, url: str, run: str) -> None:
        self.url, self.run = url, run
        self._fs, root = _open_filesystem(url)
        self.is_local = isinstance(self._fs, fs.LocalFileSystem)
        self.root = f"{root.rstrip('/')}/{run}"
        self._renames = False

    def of(self, run: str) -> Archive:
        """Return the files of another run, through the same connection."""
        found = copy(self)
        found.run, found.root = run, f"{self.root.removesuffix(self.run).rstrip('/')}/{run}"
        return found

    @property
    def place(self) -> str:
        """The directory of all runs, wherever a command runs, or their URL."""
        return self.root.removesuffix(f"/{self.run}") if self.is_local else self.url

    def create(self) -> None:
        """Create the directory of a new run. Raises MachineLacks."""
        if self.is_local:
            check_system()
            with self._reporting():
                for each in make_private(Path(self.root)):
                    sync_directory(each.parent)

    def require_whole_files(self) -> None:
        """Let each file appear whole from now on. Raises UsageError where the file system shows parts of it."""
        if (kind := self._fs.type_name) not in _WHOLE:
            raise UsageError(
                f"--archive {self.url}: {kind} lists files before they are whole",
                hint="a stream needs a local disk, s3://, gs:// or abfs://",
            )
        self._renames = kind == _RENAMES

    def write(self, path: str, data: bytes | pa.Buffer | IO[bytes], *, sync: bool = True) -> None:
        """Write a file, or a copy of another one. Raises MachineLacks if that fails; the file is then absent."""
        place = f"{self.root}/{path}"
        with self._reporting():
            if self.is_local:
                make_directories(Path(self.root), Path(place).parent)
                write_file(Path(place), data, sync=sync)
            else:
                beside = f"{self.root}/.{uuid.uuid4().hex}" if self._renames else place
                with self._fs.open_output_stream(beside) as stream:
                    write_all(stream, data)
                if self._renames:
                    self._fs.move(beside, place)

    def read(self, path: str) -> bytes:
        """Read a file. Raises FileNotFoundError; MachineLacks if it is unreadable."""
        with self._reporting(but=FileNotFoundError), self._fs.open_input_stream(f"{self.root}/{path}") as stream:
            return bytes(stream.read())

    def read_end(self, path: str, length: int) -> tuple[int, bytes]:
        """Return a file's size and its last bytes. Raises FileNotFoundError; MachineLacks if it is unreadable."""
        with self._reporting(but=FileNotFoundError), self._fs.open_input_file(f"{self.root}/{path}") as file:
            size = int(file.size())
            file.seek(max(0, size - length))
            return size, bytes(file.read())

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes. Raises FileNotFoundError; MachineLacks if it is unreadable."""
        with self._reporting(but=FileNotFoundError), self._fs.open_input_stream(f"{self.root}/{path}") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def exists(self, path: str) -> bool:
        with self._reporting():
            return bool(self._fs.get_file_info(f"{self.root}/{path}").type != fs.FileType.NotFound)

    def is_run(self) -> bool:
        """Return whether a run is or was there: one that has lost its description still has messages."""
        return self.exists(RUN_FILE) or self.has_messages()

    def has_messages(self) -> bool:
        """Return whether messages were received into it, or sent."""
        return any(self.sizes(each) for each in (SEGMENTS, LEDGER, DIGESTS))

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        with self._reporting(), suppress(FileNotFoundError):
            self._fs.delete_file(f"{self.root}/{path}")

    def sizes(self, under: str) -> dict[str, int]:
        """Return the bytes of each file below a directory, by path."""
        selector = fs.FileSelector(f"{self.root}/{under}", recursive=True, allow_not_found=True)
        with self._reporting():
            try:
                found = self._fs.get_file_info(selector)
            except FileNotFoundError:  # the directory was made between pyarrow's two looks at it
                found = self._fs.get_file_info(selector)
        start = len(self.root.lstrip("/")) + 1
        return {info.path.lstrip("/")[start:]: int(info.size or 0) for info in found if info.type == fs.FileType.File}

    def delete(self, under: str, only: Iterable[str] | None = None) -> None:
        """Remove files below a directory ("" for all), or `only` these, and the directory once it is empty."""
        for path in self.sizes(under) if only is None else only:
            self.remove(path)
        place = f"{self.root}/{under}".rstrip("/")
        with self._reporting():
            if not self.sizes(under) and self._fs.get_file_info(place).type == fs.FileType.Directory:
                self._fs.delete_dir(place)

    def files(self, under: str) -> list[str]:
        """Return the paths of whole files with rows below a directory, sorted."""
        sizes = self.sizes(under)
        # An object store may list an empty file while it is written, or for good if its writer was killed.
        return sorted(path for path in sizes if path.endswith((PARQUET, LINES)) and (self.is_local or sizes[path]))

    def write_json(self, path: str, document: Mapping[str, Any]) -> None:
        self.write(path, json.dumps(document, indent=2).encode())

    def read_json(self, path: str) -> dict[str, Any]:
        """Read a JSON object. Raises FileNotFoundError; StateRefused for anything else."""
        try:
            document = json.loads(self.read(path))
        except (ValueError, RecursionError) as error:
            raise self.broken(path, error) from error
        if not isinstance(document, dict):
            raise self.broken(path, "expected a JSON object")
        return document

    def find_json(self, path: str) -> dict[str, Any] | None:
        """Read a JSON object; None without the file. Raises StateRefused for anything else."""
        with suppress(FileNotFoundError):
            return self.read_json(path)
        return None

    def new_table(self, schema: pa.Schema, shards: int, *, large: bool) -> TableFile:
        """Return an empty file in memory that names its run, version and shard count."""
        metadata = {"sbpair.run": self.run, "sbpair.version": str(VERSION), "sbpair.shards": str(shards)}
        return TableFile(schema.with_metadata(metadata), large=large)

    def put(self, path: str, file: TableFile, *, sync: bool = True) -> pa.Buffer:
        """Write a complete file, read its footer back, and return its content."""
        content = file.content()
        self.write(path, content, sync=sync)
        if sync and self.row_count(path) != file.rows:
            raise self.broken(path, "its row count differs from what was written")
        return content

    def write_table(self, path: str, table: pa.Table, shards: int, *, sync: bool = True) -> None:
        """Write a few rows as one file."""
        file = self.new_table(table.schema, shards, large=False)
        file.add(table)
        self.put(path, file, sync=sync)

    def write_line(self, path: str, value: object, *, append: bool = False) -> None:
        """Write a file of one line of JSON, not synced: it is removed again soon.

        To `append` to such a local file takes a tenth of the time. A kill may cut the line short, before a send.
        """
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        if not append:
            self.write(path, line, sync=False)
            return
        with self._reporting(), os.fdopen(open_to_append(Path(f"{self.root}/{path}")), "wb") as file:
            file.write(line)

    def read_lines(self, path: str) -> Iterator[Any]:
        """Yield the value of each line. Raises StateRefused at the first that is broken or cut short."""
        line = b""
        try:
            with BufferedReader(self._fs.open_input_stream(f"{self.root}/{path}")) as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        yield json.loads(line)
        except (ValueError, RecursionError, OSError) as error:
            raise self.broken(path, error) from error
        if not line.endswith(b"\n"):
            raise self.broken(path, "its last line is cut short")

    def read_table(self, path: str, columns: list[str] | None = None, schema: pa.Schema | None = None) -> pa.Table:
        """Read a Parquet file. Raises StateRefused if it is broken, and with `schema` as `check_footer` does."""
        with self.parquet(path) as file:
            if schema is not None:
                self.check_footer(path, _footer(file), schema)
            try:
                # Files are small and many: a thread for each would cost as much as the reading.
                table = file.read(columns=columns, use_threads=False)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise self.broken(path, error) from error
        if NAMESPACE.name in (columns or ()) and NAMESPACE.name not in table.column_names:
            table = table.append_column(NAMESPACE, pa.nulls(len(table), NAMESPACE.type))
        if missing := [name for name in columns or () if name not in table.column_names]:
            raise self.broken(path, f"missing columns: {', '.join(missing)}")
        return table

    def row_count(self, path: str) -> int:
        """Return a file's number of rows, from its footer."""
        return self.footer(path).rows

    def parquet(self, path: str) -> pq.ParquetFile:
        """Open a Parquet file. Raises StateRefused if it is missing or its footer is broken."""
        try:
            file = self._fs.open_input_file(f"{self.root}/{path}")
            # From an object store, all columns of a read are fetched at once.
            opened = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=not self.is_local)
            # The footer, unlike the pages, has no checksum: its names may not even be text.
            file_metadata(opened.schema_arrow)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.broken(path, error) from error
        return opened

    def footer(self, path: str) -> Footer:
        """Read a file's footer. Raises StateRefused if it is broken or cut short."""
        with self.parquet(path) as file:
            return _footer(file)

    def check_footer(self, path: str, footer: Footer, schema: pa.Schema) -> int:
        """Return the number of rows. Raises StateRefused for another run, version or columns."""
        run, version = (footer.metadata.get(f"sbpair.{name}") for name in ("run", "version"))
        if run != self.run:
            raise StateRefused(
                f"{self.root}/{path} belongs to run {run}, not {self.run}", hint="move it back to the run it belongs to"
            )
        if version != str(VERSION):
            raise StateRefused(
                f"{self.root}/{path} has version {version}; expected {VERSION}",
                hint="use the version of sbpair that wrote it",
            )
        if footer.schema not in (schema, schema.append(NAMESPACE)):
            raise self.wrong_columns(path)
        return footer.rows

    def spark_url(self, path: str) -> str:
        """Return a file's URL for Spark."""
        if self.is_local:
            return f"file://{self.root}/{path}"
        scheme = self.url.partition("://")[0]
        return f"{_HADOOP.get(scheme, scheme)}://{self.root}/{path}"

    def stop_requested(self) -> bool:
        """Return whether tasks are to end, for good or for a pause."""
        return self.exists(STOP_FILE)

    def stops_for_good(self) -> bool:
        try:
            return self.read(STOP_FILE) != PAUSE
        except FileNotFoundError:
            return False

    def pause_requested(self) -> bool:
        return self.stop_requested() and not self.stops_for_good()

    def check_links(self) -> None:
        """Raise StateRefused for a symbolic link below the run's directory: it may lead to files of others.

        Also for a pipe or a device, whose reading might never end.
        """
        if self.is_local and (found := find_irregular(Path(self.root))) is not None:
            kind = "a symbolic link" if found.is_symlink() else "neither a file nor a directory"
            raise StateRefused(
                f"{found} is {kind}, which sbpair does not follow within a run",
                hint="put the file or directory itself there; the directory of the archive may be a link",
            )

    def check_there(self) -> None:
        """Raise StateRefused without the directory of all runs, or the bucket. A prefix of a store need not exist.

        No-op if rights to a prefix alone do not show it.
        """
        place = self.root.removesuffix(f"/{self.run}")
        kind, name, ground = "directory", place, "that a disk or share is mounted"
        if not self.is_local:
            kind, name, ground = "bucket", place.partition("/")[0], "the account and endpoint of this environment"
        with suppress(OSError):
            if self._fs.get_file_info(name).type == fs.FileType.NotFound:
                raise StateRefused(f"there is no {kind} {name}", hint=f"check --archive, and {ground}")

    def check_writable(self) -> None:
        """Raise StateRefused without the bucket, MachineLacks if the archive cannot be written to."""
        probe = f"{REPORT}/probe-{uuid.uuid4()}"
        try:
            self.write(probe, b"sbpair")
        except MachineLacks:
            self.check_there()
            raise
        self.remove(probe)

    def broken(self, path: str, why: str | Exception) -> SbpairError:
        """Return the error for a broken file, with the first line of the reason; Exhausted for an unread one."""
        if isinstance(why, Exception) and (lack := shortage_of(why, f"{self.root}/{path}")) is not None:
            return lack
        first_line = str(why).partition("\n")[0]
        only_copy = "its messages left the backlog, and " if path.startswith((SEGMENTS, *NOT_SENT)) else ""
        return StateRefused(
            f"{self.root}/{path} is broken: {first_line}",
            hint=f"restore it from a copy: {only_copy}a run sends nothing without it",
        )

    def wrong_columns(self, path: str) -> StateRefused:
        """Return the error for a file with unexpected columns."""
        return StateRefused(
            f"{self.root}/{path} lacks the columns of version {VERSION}",
            hint="restore the original file, or remove it if sbpair did not write it",
        )

    @contextmanager
    def _reporting(self, but: type[OSError] | tuple[()] = ()) -> Iterator[None]:
        """Raise MachineLacks for an OSError of the block, except for `but`."""
        try:
            yield
        except but:
            raise
        except OSError as error:
            raise MachineLacks(
                f"the archive {self.url} cannot be used: {error.strerror or error}",
                hint="check that it exists, is writable and has room, or name another with --archive",
            ) from error


def find_archive(url: str, start: str) -> Archive:
    """Return the archive of the run whose id is or begins with `start`; without one, the archive of no run."""
    exact = Archive(url, start)
    return exact if exact.exists(RUN_FILE) else Archive(url, match_id(run_ids(url), start) or start)


def run_ids(url: str) -> list[str]:
    """Return the ids of the runs in an archive, the latest first, also of those that have lost their description.

    Raises StateRefused if the directory, or the bucket of the URL, does not exist.
    """
    whole = Archive(url, "")
    whole.check_there()
    return [name for name in directory_names(whole) if whole.of(name).is_run()]


def directory_names(whole: Archive) -> list[str]:
    """Return the names of the directories in the archive of no run, the latest run first."""
    with whole._reporting():
        found = whole._fs.get_file_info(fs.FileSelector(whole.root.rstrip("/"), allow_not_found=True))
    return sorted((info.base_name for info in found if info.type == fs.FileType.Directory), reverse=True)


def _footer(file: pq.ParquetFile) -> Footer:
    schema = file.schema_arrow
    return Footer(file_metadata(schema), int(file.metadata.num_rows), schema.remove_metadata())


def file_metadata(schema: pa.Schema) -> dict[str, str]:
    """Return run, version and shards from a file's schema."""
    return {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}


def value_counts(column: pa.ChunkedArray) -> Counter[str]:
    """Count how often each value occurs."""
    return Counter({str(each["values"]): each["counts"] for each in pc.value_counts(column).to_pylist()})


def _open_filesystem(url: str) -> tuple[fs.FileSystem, str]:
    hint = "name a directory, or a URL such as s3://bucket/backlog"
    if not url.strip():
        raise UsageError("--archive is empty", hint=hint)
    if GLOB_CHARACTERS & set(url):
        raise UsageError(
            f"--archive {url} has one of the characters {' '.join(sorted(GLOB_CHARACTERS))}",
            hint="name another path: Spark reads it as a pattern",
        )
    if scheme := _NOT_OPENED.match(url):
        name = scheme[1].lower()
        better = {"dbfs": "/dbfs/…, where Databricks mounts it", "s3a": "s3://…", "s3n": "s3://…"}.get(name)
        raise UsageError(
            f"--archive {url} has the scheme {scheme[1]}:, which pyarrow does not open",
            hint=f"name it as {better}" if better else hint,
        )
    if "://" not in url:
        return fs.LocalFileSystem(), str(Path(url.removeprefix("file:")).absolute())
    try:
        return _from_url(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise UsageError(f"--archive {url} cannot be opened: {str(error).splitlines()[0]}", hint=hint) from error


def _from_url(url: str) -> tuple[fs.FileSystem, str]:
    if url.startswith("mock:"):  # pyarrow's own, for tests: each process has its own, in memory
        raise pa.ArrowInvalid("mock: keeps nothing")
    filesystem, root = fs.FileSystem.from_uri(url)
    if not root.strip("/") and not isinstance(filesystem, fs.LocalFileSystem):
        raise pa.ArrowInvalid("the URL names no bucket")
    return filesystem, root


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The files below one directory. `sha256` is None where none is computed."""

    name: str
    files: int
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The directories of one run that hold files, below `root`."""

    root: str
    is_local: bool
    directories: tuple[DirectoryFiles, ...]


def files_of(archive: Archive) -> ArchiveFiles:
    """Read an archive's files. Raises MachineLacks if it cannot be read."""
    found = (_directory(archive, name) for name in (SEGMENTS, *CHECKED))
    return ArchiveFiles(archive.root, archive.is_local, tuple(each for each in found if each.files))


def _directory(archive: Archive, name: str) -> DirectoryFiles:
    sizes = archive.sizes(name)
    sha256 = _checksum(archive, sizes) if name in CHECKED and sizes else None
    return DirectoryFiles(name, len(sizes), sum(sizes.values()), sha256)


def _checksum(archive: Archive, paths: dict[str, int]) -> str:
    """Return the checksum of `sha256sum` of the files in the order of their names, as coreutils would."""
    lines = (f"{archive.sha256(path)}  {path}\n" for path in sorted(paths))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def is_in_memory(url: str) -> bool:
    """Return whether a restart of this machine would lose an archive there, as far as Linux shows."""
    if "://" in url and not url.startswith("file:"):
        return False
    try:
        mounts = MOUNTS.read_text(errors="replace")
    except OSError:  # not Linux
        return False
    return mount_at(Path(url.removeprefix("file:")).resolve(), mounts)[0] in ("tmpfs", "ramfs")
