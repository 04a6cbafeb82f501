"""Paths, schemas and sizes of a run's files. Pure.

Schemas have one row per message: times are ms since 1970, `ttl_ticks` units of 100 ns, `size` bytes. `message` is the
message as it was in the backlog: its raw AMQP sections, concatenated. A segment's row has a destination or a `flaw`.
"""

from __future__ import annotations

import pyarrow as pa

RUN_FILE, STOP_FILE = "run.json", "STOP"
PAUSE = b"pause"
"""The content of STOP_FILE for tasks that end for a pause, and start again."""

SEGMENTS, LEDGER, EXPIRED, QUARANTINE = "segments", "ledger", "expired", "quarantine"
DEDUPLICATED, DOUBTFUL, HELD, REPORT = "deduplicated", "doubtful", "held", "report"
LEASE = "lease"
PLAN_FILE = f"{REPORT}/plan.json"
DRAINED_FILE, RECEIPT_FILE = f"{REPORT}/drained.json", f"{REPORT}/receipt.json"
REMOVED_FILE = f"{REPORT}/removed.json"  # written before `gc` removes the run's messages
ACCEPTED_FILE = f"{REPORT}/accepted-before.json"  # keys that the syphon's journal had as accepted before the run
PARQUET, LINES = ".parquet", ".jsonl"

BUCKETS = {LEDGER: "acknowledged", EXPIRED: "expired", QUARANTINE: "quarantined", DEDUPLICATED: "deduplicated"}
OUTCOMES = (*BUCKETS,)  # a message has exactly one
NOT_SENT = (EXPIRED, QUARANTINE)
REMOVABLE = (SEGMENTS, DEDUPLICATED, LEDGER, DOUBTFUL, HELD)
"""Directories that `gc` removes in any case, in this order; those of NOT_SENT only on request."""

SEGMENT_BYTES, SEGMENT_MESSAGES = 64 * 1024 * 1024, 100_000
"""Size from which a segment is full: bytes of its messages, or their number."""

VERSION = 1  # version of the archive, in run.json and in the metadata of every file
KEY = ("queue", "sequence_number", "enqueued_at_ms", "message_id")
"""Identity of a message within a run. All four parts: a recreated queue starts its sequence numbers again."""

_KEY_FIELDS = [
    pa.field("queue", pa.string(), nullable=False),
    pa.field("sequence_number", pa.int64(), nullable=False),
    pa.field("enqueued_at_ms", pa.int64(), nullable=False),
    pa.field("message_id", pa.string()),
]

KEYS = pa.schema(_KEY_FIELDS)

SEGMENT = pa.schema(
    [
        # The position, in which copies differ.
        pa.field("segment", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        *_KEY_FIELDS,
        pa.field("destination", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("ttl_ticks", pa.int64()),
        pa.field("scheduled_at_ms", pa.int64()),
        pa.field("content_type", pa.string()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("flaw", pa.string()),
        # Of dead letters only.
        pa.field("dead_letter_reason", pa.string()),
        pa.field("dead_letter_description", pa.string()),
        pa.field("message", pa.binary(), nullable=False),
    ]
)

DISTINCT = frozenset({"position", "sequence_number", "enqueued_at_ms", "message_id", "message"})
"""Columns of mostly distinct values, for which a dictionary would save nothing."""

SPARK_TYPES = {"string": "string", "int64": "bigint", "int32": "int", "binary": "binary"}
KEY_IN_SPARK, SEGMENT_IN_SPARK = (
    ", ".join(f"{field.name} {SPARK_TYPES[str(field.type)]}" for field in schema) for schema in (KEYS, SEGMENT)
)
"""Schemas for Spark, which would start a job to find them out."""

NOT_ENVELOPE = ("segment", "position", "message")
ENVELOPE = tuple(name for name in SEGMENT.names if name not in NOT_ENVELOPE)
"""Columns that a selection may use: equal in all copies of a message, and no bodies."""

OUTCOME = pa.schema(
    [
        *_KEY_FIELDS,
        pa.field("destination", pa.string()),
        pa.field("reason", pa.string()),
        # The attempt that wrote it: a message that another attempt held when it died may arrive twice.
        pa.field("attempt", pa.string(), nullable=False),
        # Kept if the message was not sent.
        pa.field("message", pa.binary()),
    ]
)


def segment_path(queue: str, name: str) -> str:
    return f"{SEGMENTS}/{queue}/{name}{PARQUET}"
