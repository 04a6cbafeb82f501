"""Paths of a run's files below its directory."""

from __future__ import annotations

RUN_FILE, STOP_FILE = "run.json", "STOP"
SEGMENTS, LEDGER, EXPIRED, QUARANTINE = "segments", "ledger", "expired", "quarantine"
DEDUPLICATED, DOUBTFUL, HELD, REPORT = "deduplicated", "doubtful", "held", "report"
LEASE = "lease"
PLAN_FILE = f"{REPORT}/plan.json"
DRAINED_FILE, RECEIPT_FILE = f"{REPORT}/drained.json", f"{REPORT}/receipt.json"
REMOVED_FILE = f"{REPORT}/removed.json"
"""Written before `gc` removes the run's messages."""

ACCEPTED_FILE = f"{REPORT}/accepted-before.json"
"""Keys that the primary had accepted before the run, from the syphon's journal."""

PARQUET, LINES = ".parquet", ".jsonl"

OUTCOMES = (LEDGER, EXPIRED, QUARANTINE, DEDUPLICATED)
"""The outcomes of a message. Each message has exactly one."""


def segment_path(queue: str, name: str) -> str:
    return f"{SEGMENTS}/{queue}/{name}{PARQUET}"
