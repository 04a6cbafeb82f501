"""Rows that are checked before one is sent: the wrong ones by reason, and a file that keeps the others."""

from __future__ import annotations

import marshal
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.errors import MachineLacks, UsageError
from sbpair.spark.row_messages import RowMessage

MAX_REASONS = 10
"""How many reasons an error names. Rows with others are counted."""

MEMORY_BYTES = 16 * 1024 * 1024
"""How much of a partition stays in memory. A larger one goes to Spark's directory of temporary files."""

_LENGTH_BYTES = 8


class WrongRow(NamedTuple):
    """Rows that are no messages for one reason. `first` is the place of the first one."""

    reason: str
    hint: str
    first: str
    rows: int = 1


@dataclass(slots=True)
class WrongRows:
    """The wrong rows so far by reason, in the order of their first ones."""

    found: dict[str, WrongRow] = field(default_factory=dict)
    others: int = 0

    def add(self, row: WrongRow) -> None:
        if known := self.found.get(row.reason):
            self.found[row.reason] = known._replace(rows=known.rows + row.rows)
        elif len(self.found) < MAX_REASONS:
            self.found[row.reason] = row
        else:
            self.others += row.rows

    def check(self, sent: str = "") -> None:
        """Raise UsageError if there are any. `sent` ends its message: it says what was sent before."""
        if not self.found:
            return
        named = [f"{each.first}: {each.reason}{_more(each.rows - 1)}" for each in self.found.values()]
        if self.others:
            named.append(f"{self.others} rows for other reasons")
        hints = dict.fromkeys(each.hint for each in self.found.values())
        raise UsageError("; ".join([*named, sent] if sent else named), hint="; ".join(hints))


def _more(rows: int) -> str:
    return f" (and {rows} more row{'' if rows == 1 else 's'})" if rows else ""


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """The rows of one partition that were checked and not sent."""

    rows: int = 0
    destinations: Mapping[str, int] = field(default_factory=dict)
    wrong: Sequence[WrongRow] = ()
    others: int = 0


def check_rows(parts: Iterable[CheckCounts]) -> dict[str, object]:
    """Return the counts of all partitions as a document. Raises UsageError if a row is no message."""
    wrong, rows, destinations = WrongRows(), 0, Counter[str]()
    for part in parts:
        rows += part.rows
        destinations.update(part.destinations)
        for each in part.wrong:
            wrong.add(WrongRow(*each))
        wrong.others += part.others
    wrong.check("nothing was sent")
    return {"schema": "sbpair/spark-check/1", "rows": rows, "destinations": dict(destinations)}


class RowSpool:
    """The messages of a partition in a file without a name, which is written once, then read once."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._directory = _local_directory()
        self._file = SpooledTemporaryFile(memory_bytes, dir=self._directory)  # noqa: SIM115  # it outlives this block

    def add(self, rows: Sequence[RowMessage]) -> None:
        """Append rows that are later read together. Raises MachineLacks if the disk is full."""
        content = marshal.dumps([_values(each) for each in rows])
        with self._reporting():
            self._file.write(len(content).to_bytes(_LENGTH_BYTES))
            self._file.write(content)

    def rewind(self) -> None:
        """Return to the first rows. Raises MachineLacks if the disk is full."""
        with self._reporting():
            self._file.seek(0)

    def read(self) -> list[RowMessage] | None:
        """Return the rows of the next `add`; None at the end."""
        length = int.from_bytes(self._file.read(_LENGTH_BYTES))
        if not length:
            return None
        values = marshal.loads(self._file.read(length))  # noqa: S302  # this object wrote it
        return [_message(*each) for each in values]

    def close(self) -> None:
        with suppress(OSError):  # the rest did not fit on the disk
            self._file.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MachineLacks(
                f"{self._directory} of this worker cannot keep the checked rows: {error.strerror or error}",
                hint="make room there, use more partitions, or add option check=row",
            ) from error


def _values(row: RowMessage) -> tuple[object, ...]:
    sections = row.sections
    return *row[:-1], sections.properties, sections.application_properties, sections.body


def _message(*values: Any) -> RowMessage:
    *row, properties, application_properties, body = values
    sections = Sections(properties=properties, application_properties=application_properties, body=body)
    return RowMessage._make((*row, sections))


def _local_directory() -> str:
    """Return the directory that Spark gives its workers for temporary files, or that of this machine."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((each for each in given if each and Path(each).is_dir()), gettempdir())
