"""Where a run keeps its files: `<archive>/<run>/…` on any filesystem that pyarrow knows.

The law: a file is there whole or not at all, and nothing that is there is ever changed. A local file is written beside
its place, synced and renamed; an object store gets one PUT. A run's directory is made once, at its beginning: where it
has gone, as with a disk that is mounted no more, nothing is written into what is there instead. What is written for now
may be added to: it says what is on its way, and is read by nobody but after a crash.
"""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from sbpair.errors import MachineLacks, SbpairError, StateRefused, UsageError
from sbpair.replay.schema import DISTINCT, VERSION

RUN_FILE, STOP_FILE = "run.json", "STOP"
SEGMENTS, LEDGER, EXPIRED, QUARANTINE = "segments", "ledger", "expired", "quarantine"
DEDUPLICATED, DOUBTFUL, SENDING, REPORT = "deduplicated", "doubtful", "sending", "report"
LEASE = "lease"
DRAINED, PROVED = f"{REPORT}/drained.json", f"{REPORT}/receipt.json"
SWEPT = f"{REPORT}/swept.json"
"""That the run's messages have been taken away."""

PARQUET, LINES = ".parquet", ".jsonl"

OUTCOMES = (LEDGER, EXPIRED, QUARANTINE, DEDUPLICATED)
"""Where a message ends: in one of these, once."""

IN_MEMORY = ("tmpfs", "ramfs")

GLOB = set("*?[]{}\\")
"""Spark takes these in a path for a pattern."""

_HADOOP = {"s3": "s3a", "gcs": "gs"}


def segment_path(queue: str, name: str) -> str:
    return f"{SEGMENTS}/{queue}/{name}{PARQUET}"


class Footer(NamedTuple):
    """What the end of a file says of the rest: `about` is run, version and shards, `schema` is bare of that."""

    about: dict[str, str]
    rows: int
    schema: pa.Schema


class TableFile:
    """A Parquet file that is being made, in memory: one group of rows after the other, each as it will lie there."""

    def __init__(self, schema: pa.Schema, *, large: bool) -> None:
        """`large` is for many messages: of some hundred rows it would take twice as long, and gain nothing."""
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            write_page_checksum=True,
            compression="zstd" if large else "snappy",
            compression_level=1 if large else None,
            # Of messages nobody asks for the least and the largest, and these would be most of a footer.
            write_statistics=[name for name in schema.names if name != "message"] if large else False,
            use_dictionary=[name for name in schema.names if name not in DISTINCT],
        )

    def add(self, table: pa.Table) -> None:
        self._writer.write_table(table)
        self.rows += len(table)

    def content(self) -> pa.Buffer:
        """All of it; nothing more can be added."""
        self._writer.close()
        return self._sink.getvalue()


class Archive:
    """One run's place. `url` is a local directory or a URL such as s3://bucket/backlog."""

    def __init__(self, url: str, run: str) -> None:
        self.url, self.run = url, run
        self._fs, root = _opened(url)
        self.is_local = isinstance(self._fs, fs.LocalFileSystem)
        self.root = f"{root.rstrip('/')}/{run}"

    def create(self) -> None:
        """Make the run's directory, for a run that begins. Raises MachineLacks."""
        if self.is_local:
            try:
                Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)
                _sync_directory(Path(self.root).parent)
            except OSError as error:
                raise self._unusable(error) from error

    # Whole files.

    def write(self, path: str, data: bytes | pa.Buffer, *, sync: bool = True) -> None:
        """Put a file there. Raises MachineLacks where that is not possible; then it is not there."""
        place = f"{self.root}/{path}"
        try:
            if self.is_local:
                _make_directories(Path(self.root), Path(place).parent)
                _write_local(Path(place), data, sync=sync)
            else:
                with self._fs.open_output_stream(place) as stream:
                    stream.write(data)
        except OSError as error:
            raise self._unusable(error) from error

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError; MachineLacks where it cannot be read."""
        try:
            with self._fs.open_input_stream(f"{self.root}/{path}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unusable(error) from error

    def exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(f"{self.root}/{path}").type != fs.FileType.NotFound)

    def remove(self, path: str) -> None:
        """Take a file away; one that is not there stays away."""
        try:
            self._fs.delete_file(f"{self.root}/{path}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from error

    def sizes(self, under: str) -> dict[str, int]:
        """Bytes of all files below a directory, by path."""
        selector = fs.FileSelector(f"{self.root}/{under}", recursive=True, allow_not_found=True)
        try:
            found = self._fs.get_file_info(selector)
        except OSError as error:
            raise self._unusable(error) from error
        start = len(self.root.lstrip("/")) + 1
        return {info.path.lstrip("/")[start:]: int(info.size or 0) for info in found if info.type == fs.FileType.File}

    def delete(self, under: str, only: Iterable[str] | None = None) -> None:
        """Take away the files below a directory, or some of them, and it too, where nothing else is in it.

        "" is for all that the run has.
        """
        for path in self.sizes(under) if only is None else only:
            self.remove(path)
        place = f"{self.root}/{under}".rstrip("/")
        try:
            if not self.sizes(under) and self._fs.get_file_info(place).type == fs.FileType.Directory:
                self._fs.delete_dir(place)
        except OSError as error:
            raise self._unusable(error) from error

    def files(self, under: str) -> list[str]:
        """Paths of whole files with rows below a directory, sorted.

        A store may have a file there, empty, while it is written; and for good, where the writer was killed meanwhile.
        """
        sizes = self.sizes(under)
        return sorted(path for path in sizes if path.endswith((PARQUET, LINES)) and (self.is_local or sizes[path]))

    # JSON and Parquet.

    def write_json(self, path: str, document: Mapping[str, Any]) -> None:
        self.write(path, json.dumps(document, indent=2).encode())

    def read_json(self, path: str) -> dict[str, Any]:
        """Raises FileNotFoundError; StateRefused for what is no JSON object."""
        try:
            document = json.loads(self.read(path))
        except ValueError as error:
            raise self.broken(path, str(error)) from error
        if not isinstance(document, dict):
            raise self.broken(path, "it is no JSON object")
        return document

    def new_table(self, schema: pa.Schema, shards: int, *, large: bool) -> TableFile:
        """A file that says which run, version and shard count its rows are of, and is nowhere yet."""
        return TableFile(schema.with_metadata(self._about(shards)), large=large)

    def put(self, path: str, file: TableFile, *, sync: bool = True) -> None:
        """Write a file that is complete, and read its footer back."""
        self.write(path, file.content(), sync=sync)
        if sync and self.rows(path) != file.rows:
            raise self.broken(path, "it does not hold what was written")

    def write_table(self, path: str, table: pa.Table, shards: int, *, sync: bool = True) -> None:
        """Write a few rows as one file."""
        file = self.new_table(table.schema, shards, large=False)
        file.add(table)
        self.put(path, file, sync=sync)

    def write_for_now(self, path: str, said: object) -> None:
        """Write a line of JSON, not synced: for what is gone in a moment."""
        self.write(path, _line(said), sync=False)

    def add_for_now(self, path: str, said: object) -> None:
        """Add a line to such a file, on a disk: another file would cost ten times as much.

        A kill may cut it short, before anything has come of what it says.
        """
        try:
            with os.fdopen(os.open(f"{self.root}/{path}", os.O_WRONLY | os.O_APPEND), "wb") as file:
                file.write(_line(said))
        except OSError as error:
            raise self._unusable(error) from error

    def read_for_now(self, path: str) -> Iterator[Any]:
        """What was written at a time. Raises StateRefused where the rest is broken, or cut short."""
        try:
            *lines, rest = self.read(path).split(b"\n")
            yield from map(json.loads, lines)
        except (ValueError, OSError, MachineLacks) as error:
            raise self.broken(path, str(error)) from error
        if rest or not lines:
            raise self.broken(path, "it ends in the midst of a line")

    def read_table(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """Raises StateRefused for a file that is broken, or cut short."""
        with self.parquet(path) as file:
            try:
                # Files are small, and many: threads for each would cost as much as the reading.
                table = file.read(columns=columns, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise self.broken(path, str(error).splitlines()[0]) from error
        if missing := [name for name in columns or () if name not in table.column_names]:
            raise self.broken(path, f"it has no {', '.join(missing)}")
        return table

    def counts(self, path: str, column: str) -> Counter[str]:
        """How many rows of a file have each of the values that there are in a column."""
        return counted(self.read_table(path, [column]).column(column))

    def rows(self, path: str) -> int:
        """How many a file has, by its footer."""
        with self.parquet(path) as file:
            return int(file.metadata.num_rows)

    def parquet(self, path: str) -> pq.ParquetFile:
        """Raises StateRefused for a file that is not there, or is broken at its end."""
        try:
            file = self._fs.open_input_file(f"{self.root}/{path}")
            # What is far has all that is asked for at a time fetched at once.
            return pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=not self.is_local)
        except (pa.ArrowInvalid, OSError) as error:
            raise self.broken(path, str(error).splitlines()[0]) from error

    def footer(self, path: str) -> Footer:
        """Raises StateRefused for a file that is broken, or cut short."""
        with self.parquet(path) as file:
            found, rows = file.schema_arrow, file.metadata.num_rows
        return Footer(about(found), int(rows), found.remove_metadata())

    def spark_url(self, path: str) -> str:
        """The same file, as Spark calls it."""
        if self.is_local:
            return f"file://{self.root}/{path}"
        scheme = self.url.partition("://")[0]
        return f"{_HADOOP.get(scheme, scheme)}://{self.root}/{path}"

    # Small things.

    def stopped(self) -> bool:
        """Whether somebody has asked the run to stop."""
        return self.exists(STOP_FILE)

    def check_writable(self) -> None:
        """Raise MachineLacks where nothing can be written there."""
        probe = f"{REPORT}/probe-{uuid.uuid4()}"
        self.write(probe, b"sbpair")
        self.remove(probe)

    def _about(self, shards: int) -> dict[str, str]:
        return {"sbpair.run": self.run, "sbpair.version": str(VERSION), "sbpair.shards": str(shards)}

    def broken(self, path: str, why: str) -> StateRefused:
        return StateRefused(
            f"{self.root}/{path} is broken: {why}",
            hint="bring it back from a copy: its messages are in the backlog no more, and nothing is sent without it",
        )

    def _unusable(self, error: OSError) -> SbpairError:
        return MachineLacks(
            f"the archive {self.url} cannot be used: {error.strerror or error}",
            hint="check that it exists, may be written to and has room, or name another with --archive",
        )


def about(schema: pa.Schema) -> dict[str, str]:
    """Run, version and shards of the file that has this schema."""
    return {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}


def _line(said: object) -> bytes:
    return _to_json(said).encode() + b"\n"


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def in_memory(url: str) -> bool:
    """Whether an archive there is gone with the next restart, as far as this machine says."""
    if "://" in url and not url.startswith("file:"):
        return False
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:  # not Linux
        return False
    return filesystem_of(Path(url.removeprefix("file:")).resolve(), mounts) in IN_MEMORY


def filesystem_of(path: Path, mounts: str) -> str:
    """The kind of filesystem that an absolute path is on, by what /proc/self/mounts says; "" where it says nothing."""
    found, depth = "", 0
    for line in mounts.splitlines():
        _device, place, kind, *_options = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        # Of two at the same place, the later one hides the other.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = kind, len(point.parts)
    return found


def counted(column: pa.ChunkedArray) -> Counter[str]:
    """How often each of the values is there."""
    return Counter({str(each["values"]): each["counts"] for each in pc.value_counts(column).to_pylist()})


def _opened(url: str) -> tuple[fs.FileSystem, str]:
    if not url.strip():
        raise UsageError("--archive names nothing", hint="name a directory, or a URL such as s3://bucket/backlog")
    if GLOB & set(url):
        raise UsageError(
            f"--archive {url} has one of the characters {' '.join(sorted(GLOB))}", hint="Spark takes it for a pattern"
        )
    if "://" not in url:
        path = url.removeprefix("file:")
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        filesystem, root = _from_url(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise UsageError(
            f"--archive {url} cannot be opened: {str(error).splitlines()[0]}",
            hint="name a directory, or a URL such as s3://bucket/backlog",
        ) from error
    return filesystem, str(root)


def _from_url(url: str) -> tuple[fs.FileSystem, str]:
    if url.startswith("mock:"):  # pyarrow's own, for tests: each process has another one, in its memory
        raise pa.ArrowInvalid("nothing lasts there")
    filesystem, root = fs.FileSystem.from_uri(url)
    if not root.strip("/") and not isinstance(filesystem, fs.LocalFileSystem):
        raise pa.ArrowInvalid("it names no bucket")
    return filesystem, root


def _make_directories(root: Path, directory: Path) -> None:
    """Make what is missing below the root, and have it last. Raises FileNotFoundError where the root is not there."""
    if directory.exists():
        return
    missing = [each for each in (directory, *directory.parents) if each.is_relative_to(root) and not each.exists()]
    for each in reversed(missing):
        if each == root:
            raise FileNotFoundError(errno.ENOENT, "the run's directory has gone")
        each.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(each.parent)


def _write_local(path: Path, data: bytes | pa.Buffer, *, sync: bool) -> None:
    beside = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if sync:
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
