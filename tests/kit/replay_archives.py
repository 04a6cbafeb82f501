"""Archives of replays with one message, as a test wants them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from sbpair.replay.archive import (
    DEDUPLICATED,
    DRAINED_FILE,
    EXPIRED,
    LEDGER,
    QUARANTINE,
    RECEIPT_FILE,
    RUN_FILE,
    Archive,
)
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.run_description import ReplayMode, ReplayOptions, ReplayRun, save_run
from sbpair.replay.segment import SEGMENT

QUEUE = "contoso/x-servicebus-transfer/0"
RUN = ReplayRun("r1", {"primary": "contoso", "secondary": "contoso-dr"}, (QUEUE,), 4, 1, ReplayOptions())


def put(archive: Archive) -> str:
    """Archive one message, and return its file."""
    archive.create()
    path = f"segments/{QUEUE}/one.parquet"
    row = ("one", 0, QUEUE, 7, 1_000, "m7", "orders", None, None, None, None, 4, None, None, None, b"body")
    arrays = [pa.array([value], field.type) for value, field in zip(row, SEGMENT, strict=True)]
    archive.write_table(path, pa.Table.from_arrays(arrays, schema=SEGMENT), RUN.shards)
    archive.write_json(DRAINED_FILE, {"messages": 1})
    return path


def end(archive: Archive, kind: str = LEDGER, shards: int = RUN.shards) -> None:
    """Give the message an outcome, and the run a receipt."""
    entry = Entry((QUEUE, 7, 1_000, "m7"), "orders", None if kind == LEDGER else kind, b"body")
    Ledger(archive, shards, "a").write(kind, 1, [entry])
    archive.write_json(RECEIPT_FILE, {"balanced": True})


def java_in(directory: Path, version: str = "17.0.1") -> Path:
    """Create a Java that only prints its version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return directory


def cut(archive: Archive) -> None:
    file = Path(archive.root, f"segments/{QUEUE}/one.parquet")
    file.write_bytes(file.read_bytes()[:-9])


def bring_in_a_segment(archive: Archive) -> None:
    other = Archive(archive.url, f"{archive.run}-other")
    Path(other.root, put(other)).rename(Path(archive.root, f"segments/{QUEUE}/two.parquet"))


def make_direct(archive: Archive) -> None:
    save_run(archive, replace(RUN, id=archive.run, options=ReplayOptions(mode=ReplayMode.DIRECT)))


def hold(archive: Archive) -> None:
    Ledger(archive, RUN.shards, "dead").record_held([Entry((QUEUE, 8, 1_000, "m8"), "orders")])


CHANGES: dict[str, Callable[[Archive], object]] = {
    "stored": put,
    "cut": cut,
    "foreign": bring_in_a_segment,
    "shards": partial(end, shards=7),
    "direct": make_direct,
    "held": hold,
    "sent": end,
    **{kind: partial(end, kind=kind) for kind in (EXPIRED, QUARANTINE, DEDUPLICATED)},
}


def change(archive: Archive, parts: Iterable[str]) -> None:
    """Create a run, or change it; see `Session` of `test_sessions`."""
    if not archive.exists(RUN_FILE):
        save_run(archive, replace(RUN, id=archive.run))
    for part in parts:
        name, written, text = part.partition("=")
        if written:
            archive.write(name, text.encode())
        elif part.startswith("-"):
            archive.remove(part[1:]) if "." in part else archive.delete(part[1:])
        else:
            CHANGES[part](archive)
