"""Which of a run's messages are sent: by destination, and by SQL over the columns of the envelope.

The law: choosing loses nothing. Everything is drained and archived; what is not chosen is `left` there, and counted,
until somebody resumes the run with another choice. SQL that Spark would refuse is refused before anything is drained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sbpair.errors import UsageError
from sbpair.replay.plan_preview import named
from sbpair.replay.schema import ENVELOPE, NOT_OF_THE_ENVELOPE, SEGMENT, SPARK_TYPES
from sbpair.replay.spark import said as reason

_ATTRIBUTE = re.compile(r"(\w+)#\d+")


@dataclass(frozen=True, slots=True)
class Selection:
    """By default everything. `destinations` are paths, as Service Bus compares them; `where` is a condition in SQL."""

    destinations: tuple[str, ...] = ()
    where: str | None = None

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.destinations) or self.where is not None

    def sql(self) -> str:
        """A condition that is never null. What has no destination is for none of those that are named."""
        parts = []
        if self.destinations:
            names = ", ".join(f"'{name.lower()}'" for name in self.destinations)
            parts.append(f"lower(destination) IN ({names})")
        if self.where is not None:
            # A comment ends with its line.
            parts.append(f"({self.where}\n)")
        return f"coalesce({' AND '.join(parts)}, false)" if parts else "true"


def read(destinations: list[str], where: str | None) -> Selection:
    """Raises NameInvalid for a destination that no entity can be, UsageError for nothing as a condition."""
    if where is not None and not where.strip():
        raise UsageError("--where is empty", hint="leave it out to send everything")
    return Selection(named(destinations), where)


def check(spark: Any, selection: Selection) -> None:
    """Have Spark read the condition, on no rows. Raises UsageError for one that it does not take, or that we do not."""
    if selection.where is None:
        return
    from pyspark.errors import PySparkException

    try:
        # Bare and in parentheses, so that it is one condition, and closes none of ours.
        spark.sql(f"SELECT 1 FROM {_nothing(ENVELOPE)} WHERE {selection.where}\n")  # noqa: S608  it is only analysed
        chosen = spark.sql(f"SELECT 1 FROM {_nothing(SEGMENT.names)} WHERE {selection.sql()}")  # noqa: S608
    except PySparkException as error:
        raise UsageError(f"--where is refused by Spark: {said(error)}", hint=_HINT) from None
    _check_plan(chosen._jdf.queryExecution().analyzed())


def said(error: Any) -> str:
    """What Spark says of SQL, in one line: after the name of its error, and without a place in what we have written."""
    return re.sub(r"^.*\[[A-Z][A-Z_.]+\] | SQLSTATE: \S+.*|;? ?\(?line \d+,? pos \d+.*", "", reason(error))


def _nothing(columns: Iterable[str]) -> str:
    """A table with these columns, for SQL that is never run."""
    cast = (f"cast(null AS {SPARK_TYPES[str(SEGMENT.field(name).type)]}) AS {name}" for name in columns)
    return f"(SELECT {', '.join(cast)})"


def _check_plan(plan: Any) -> None:
    """Only what a message says of itself may decide: no body, no other table, and nothing that is another each time."""
    if not plan.subqueriesAll().isEmpty():
        raise UsageError("--where has a query in it", hint=_HINT)
    if not plan.deterministic():
        raise UsageError("--where may say something else each time that it is asked", hint=_HINT)
    # A star has brought them in.
    asked = set(_ATTRIBUTE.findall(plan.children().head().references().toString()))
    if asked & {*NOT_OF_THE_ENVELOPE}:
        raise UsageError("--where asks for all columns, and bodies are not of the envelope", hint=_HINT)


EVERYTHING = Selection()
_HINT = f"the columns are {', '.join(ENVELOPE)}"
