"""What the files of an archive hold: Parquet that anybody can read, one row a message. Pure.

Moments are milliseconds since 1970, `ttl_ticks` units of 100 ns, `size` bytes. `message` is the message as it lay in
the backlog: its raw AMQP sections, one after the other. A row of a segment without a destination has a `flaw` instead.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = 1
"""Of the archive as a whole; it is in run.json, and in the metadata of every file."""

KEY = ("queue", "sequence_number", "enqueued_at_ms", "message_id")
"""What tells a message from every other one of the run. All four: a queue made anew starts its numbers anew."""

_KEY_FIELDS = [
    pa.field("queue", pa.string(), nullable=False),
    pa.field("sequence_number", pa.int64(), nullable=False),
    pa.field("enqueued_at_ms", pa.int64(), nullable=False),
    pa.field("message_id", pa.string()),
]

KEYS = pa.schema(_KEY_FIELDS)

SEGMENT = pa.schema(
    [
        # Where a row is, which is what its copies do not share.
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
        # Of a dead letter: why it was one.
        pa.field("dead_letter_reason", pa.string()),
        pa.field("dead_letter_description", pa.string()),
        pa.field("message", pa.binary(), nullable=False),
    ]
)

DISTINCT = frozenset({"position", "sequence_number", "enqueued_at_ms", "message_id", "message"})
"""Columns in which hardly any two rows say the same: a dictionary of their values would be all of them again."""

SPARK_TYPES = {"string": "string", "int64": "bigint", "int32": "int", "binary": "binary"}
KEY_IN_SPARK, SEGMENT_IN_SPARK = (
    ", ".join(f"{field.name} {SPARK_TYPES[str(field.type)]}" for field in schema) for schema in (KEYS, SEGMENT)
)
"""For whoever has seen that the files are like that: Spark would start a job to find it out."""

NOT_OF_THE_ENVELOPE = ("segment", "position", "message")
ENVELOPE = tuple(name for name in SEGMENT.names if name not in NOT_OF_THE_ENVELOPE)
"""What a choice may be made by: what is the same of all copies of a message, and is no body."""

OUTCOME = pa.schema(
    [
        *_KEY_FIELDS,
        pa.field("destination", pa.string()),
        pa.field("reason", pa.string()),
        # Which attempt at a task wrote it: what another one had in hand when it died may be there twice.
        pa.field("attempt", pa.string(), nullable=False),
        # Kept of what was not sent, so that it is there for whoever wants to look.
        pa.field("message", pa.binary()),
    ]
)

PROGRESS = "queue string, messages long"
"""What a task says to Spark. Nobody counts by it."""
