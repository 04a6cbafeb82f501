"""Queues, destinations and operations of a receipt as text, read from its JSON form.

An earlier version may have stored it with fewer keys.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sbpair.cli.render.table import limited, wrapped
from sbpair.move.receipt import BUCKETS

ROWS_SHOWN = 40


def breakdown(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield tables of queues and destinations without empty columns, and a line of operations."""
    queues = {name: counts for name, counts in receipt.get("queues", {}).items() if any(counts.values())}
    if queues:
        yield ""
        names = ["received", *(name for name in BUCKETS if any(counts.get(name) for counts in queues.values()))]
        heading = ("QUEUE", *(name.replace("_", " ").upper() for name in names))
        rows = [(queue, *(counts.get(name, 0) for name in names)) for queue, counts in queues.items()]
        yield from limited([heading, *rows], ROWS_SHOWN)
    destinations = receipt.get("destinations", {})
    if destinations:
        yield ""
        yield from limited([("DESTINATION", "SENT"), *destinations.items()], ROWS_SHOWN)
    operations = receipt.get("operations")
    if operations:
        yield ""
        yield from wrapped(_operations(operations))


def _operations(spent: Mapping[str, int]) -> str:
    words = (
        ("received", "to receive and settle"),
        ("sent", "to send"),
        ("renewals", "to renew locks"),
        ("empty_receives", "empty receives"),
        ("management_calls", "to count and peek"),
    )
    parts = ", ".join(f"{spent[name]} {text}" for name, text in words if spent.get(name))
    return f"billable operations: {spent.get('by_sbpair', 0)}{f' ({parts})' if parts else ''}"
