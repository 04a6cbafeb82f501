"""The proof of a replay as text."""

from collections.abc import Iterator, Mapping
from typing import Any

from sbpair.cli.render.screen import clean, some
from sbpair.cli.render.table import columns

BUCKETS = ("acknowledged", "expired", "quarantined", "deduplicated")


def proof_lines(proof: Mapping[str, Any]) -> Iterator[str]:
    """Yield the proof as text, the equation first."""
    yield f"run {proof['run']}"
    whole, rest = ("archived", "unsent") if proof["mode"] == "archive" else ("received", "in_doubt")
    yield (
        f"{whole} {proof[whole]} = "
        + " + ".join(f"{proof[bucket]} {bucket}" for bucket in BUCKETS)
        + (f" + {proof[rest]} {rest.replace('_', ' ')}" if proof[rest] else "")
    )
    yield from _counted("QUEUE", proof["queues"])
    yield from _counted("DESTINATION", {name: {"acknowledged": n} for name, n in proof["destinations"].items()})
    for reason, number in proof["reasons"].items():
        yield clean(f"{number} not sent: {reason}")
    if named := proof["doubtful"]:
        ids = [each["message_id"] or each["sequence_number"] for each in named]
        yield clean(f"possible duplicates: {proof['doubtful_total']} ({some(ids, more=proof['doubtful_total'] > 3)})")
    for queue, number in proof["remaining_in_queues"].items():
        yield clean(f"{number} remain in {queue}: locked by another receiver, or deferred")
    for path in proof["unreadable"]:
        yield f"{path} cannot be read: it would name possible duplicates"
    if proof["contradictions"] or proof["unknown"]:
        yield "the files contradict each other: please report this"


def _counted(heading: str, rows: Any) -> Iterator[str]:
    shown = {name: counts for name, counts in rows.items() if any(counts.values())}
    if shown:
        names = [name for name in next(iter(shown.values())) if any(counts[name] for counts in shown.values())]
        yield ""
        head = (heading, *(name.upper().replace("_", " ") for name in names))
        yield from columns([head, *((key, *(counts[name] for name in names)) for key, counts in shown.items())])
