"""Which of a run's messages are sent: by destination, and by SQL over the columns of the envelope.

Invariant: a selection loses nothing. Everything is drained and archived. Messages that are not selected stay there,
counted as unsent, until a resume selects them. SQL that Spark refuses is refused before anything is drained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sbpair.errors import UsageError
from sbpair.replay.archive_layout import ENVELOPE, SEGMENT, SPARK_TYPES
from sbpair.replay.plan_preview import normalize_destinations
from sbpair.replay.spark import spark_message


@dataclass(frozen=True, slots=True)
class Selection:
    """By default everything. `destinations` are paths, compared as Service Bus does; `where` is a condition in SQL."""

    destinations: tuple[str, ...] = ()
    where: str | None = None

    def __bool__(self) -> bool:
        """Return whether it may exclude messages."""
        return bool(self.destinations) or self.where is not None

    def sql(self) -> str:
        """Return a condition that is never null. A message without a destination matches no named one."""
        parts = []
        if self.destinations:
            names = ", ".join(f"'{name.lower()}'" for name in self.destinations)
            parts.append(f"lower(destination) IN ({names})")
        if self.where is not None:
            # The line break ends a comment.
            parts.append(f"({self.where}\n)")
        return f"coalesce({' AND '.join(parts)}, false)" if parts else "true"


def read_selection(destinations: list[str], where: str | None) -> Selection:
    """Return the selection of --destination and --where. Raises NameInvalid, or UsageError for an empty condition."""
    if where is not None and not where.strip():
        raise UsageError("--where is empty", hint="leave it out to send everything")
    return Selection(normalize_destinations(destinations), where)


def check_selection(spark: Any, selection: Selection) -> None:
    """Have Spark analyse the condition. Raises UsageError if Spark refuses it, or it uses more than the envelope."""
    if selection.where is None:
        return
    from pyspark.errors import PySparkException

    whole, condition = _empty_table(SEGMENT.names), selection.sql()
    try:
        # Bare and in parentheses: one whole condition, which cannot close ours.
        _analyse(spark, f"SELECT 1 FROM {_empty_table(ENVELOPE)} WHERE {selection.where}\n")  # noqa: S608
        _analyse(spark, f"SELECT 1 FROM {whole} WHERE {condition}")  # noqa: S608
    except PySparkException as error:
        raise UsageError(f"--where is refused by Spark: {sql_message(error)}", hint=_HINT) from None
    # Spark refuses each of these where the condition stands. Plans are not read: Spark Connect has none.
    for query, reason in {
        f"SELECT filter(array(1), each -> {condition}) FROM {whole}": "has a subquery",  # noqa: S608
        f"SELECT max({condition}) FROM {whole}": "is not deterministic",  # noqa: S608
        f"SELECT {condition} FROM {whole} GROUP BY {', '.join(ENVELOPE)}": (  # noqa: S608
            "uses all columns, and bodies are not part of the envelope"  # by a star
        ),
    }.items():
        try:
            _analyse(spark, query)
        except PySparkException:
            raise UsageError(f"--where {reason}", hint=_HINT) from None


def _analyse(spark: Any, query: str) -> None:
    spark.sql(query).schema  # noqa: B018  through Spark Connect, this analyses the query


def sql_message(error: Any) -> str:
    """Return Spark's message about SQL in one line, without error class and position."""
    pattern = r"^.*\[[A-Z][A-Z_.]+\] | SQLSTATE: \S+.*|;? ?\(?line \d+,? pos \d+.*"
    return re.sub(pattern, "", spark_message(error))


def _empty_table(columns: Iterable[str]) -> str:
    cast = (f"cast(null AS {SPARK_TYPES[str(SEGMENT.field(name).type)]}) AS {name}" for name in columns)
    return f"(SELECT {', '.join(cast)})"


EVERYTHING = Selection()
_HINT = f"the columns are {', '.join(ENVELOPE)}"
