"""Earlier runs of a pair in an archive: unfinished ones, beside which none starts unless wanted, and one by its name.

Invariant: of a finished run one small file is read, whatever its archive holds; those of many runs are read at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from sbpair.errors import StateRefused, Unsafe
from sbpair.model.pair import Pair
from sbpair.replay.archive import RECEIPT_FILE, REMOVED_FILE, RUN_FILE, Archive, directory_names
from sbpair.replay.outcomes import Proof, ReplayEnd, read_receipt
from sbpair.replay.run_description import ReplayRequest, ReplayRun, load_run
from sbpair.runs.database import identity
from sbpair.runs.run_log import is_running
from sbpair.runs.run_record import is_finished, left_unsent
from sbpair.runs.waiting import read_object, unfinished_receipt

OPTIONS = {"ordered": "--order", "selection": "--destination or --where", "delivery": "--to or --map"}
"""Options with another name than that of their field."""

READERS = 32  # an object store answers so many requests as fast as one


class UnfinishedRun(NamedTuple):
    """A run, its start, and its receipt; {} without one."""

    started_ms: int
    id: str
    receipt: Mapping[str, Any]

    def describe(self, url: str) -> str:
        """Return what is left of it, in words."""
        if self.receipt.get("mode") == "direct":
            return f"run {self.id} in {url} was stopped before its end"
        if self.receipt:
            return f"run {self.id} left {left_unsent(self.receipt)} unsent messages in {url}"
        return f"run {self.id} in {url} has not ended: it was interrupted, or runs on another machine"


def unfinished_runs(url: str, pair: Pair, state: Path) -> list[UnfinishedRun]:
    """Return those runs of the pair, the oldest first, without the ones that run with this state directory.

    Raises StateRefused for a run that cannot be read: it may be one.
    """
    whole = Archive(url, "")
    with ThreadPoolExecutor(READERS) as readers:
        read = readers.map(partial(_read, whole, identity(pair.ends)), directory_names(whole))
        found = sorted((each for each in read if each is not None), key=itemgetter(0, 1))
    return [each for each in found if not is_running(state, each.id)]


def _read(whole: Archive, pair: dict[str, str], run: str) -> UnfinishedRun | None:
    archive = whole.of(run)

    def read(name: str) -> Mapping[str, Any] | None:
        # A pipe or a device in its place must not block.
        return read_object(Path(archive.root, name)) if archive.is_local else archive.find_json(name)

    try:
        receipt = unfinished_receipt(read)
    except TypeError as error:
        raise archive.broken("report/receipt.json", error) from error
    if receipt is None:
        return None
    if (described := read(RUN_FILE)) is None and archive.is_run():
        raise archive.broken(RUN_FILE, "it is missing")
    if described is None or described.get("pair", pair) != pair:
        return None
    return UnfinishedRun(load_run(archive).started_ms, run, receipt)


def find_unfinished(request: ReplayRequest, *, beside: bool) -> list[str]:
    """Return the unfinished runs of the request's archive in words. Raises Unsafe for one, unless `beside`."""
    try:
        found = unfinished_runs(request.archive, request.pair, request.state)
    except StateRefused as error:
        if not beside:
            raise
        return [error.message]
    if not found or beside:
        return [f"{each.describe(request.archive)}; go on with sbpair replay resume {each.id}" for each in found]
    others = f"; {len(found) - 1} more: {', '.join(each.id for each in found[1:4])}" if found[1:] else ""
    raise Unsafe(
        found[0].describe(request.archive) + others,
        hint=f"continue with sbpair replay resume {found[0].id}; or pass --new to start another run beside it",
    )


def find_named(archive: Archive, wanted: ReplayRun, pair: Pair) -> ReplayRun | None:
    """Return the run that has the name of a new one; None if it has not received anything, and may begin again.

    Raises Unsafe if it began with other options or queues, StateRefused for another pair's run or a broken one.
    """
    if not archive.is_run():
        return None
    run = load_run(archive, pair)
    before, now = run.document()["options"], wanted.document()["options"]
    names = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)} - {"sessions"}
    differ = sorted(OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in names)
    if {*map(str.lower, run.queues)} != {*map(str.lower, wanted.queues)}:
        differ.append("--queue, --count or --dead-letters")
    if not differ:
        return run
    if not (archive.has_messages() or archive.exists(RECEIPT_FILE)):
        return None
    raise Unsafe(
        f"run {run.id} began with other options: {', '.join(differ)}",
        hint=f"use those, or another --run; or continue it with sbpair replay resume {run.id}",
    )


def read_end(archive: Archive) -> tuple[Proof, ReplayEnd] | None:
    """Return the receipt of a run that has nothing to go on with; None for any other. Raises StateRefused."""
    receipt = archive.find_json(RECEIPT_FILE)
    try:
        left = receipt and (receipt.get("stopped") or receipt["remaining_in_queues"])
        if archive.exists(REMOVED_FILE) or (is_finished(receipt) and not left):
            return read_receipt(receipt or {})
    except (KeyError, TypeError, AttributeError) as error:
        raise archive.broken(RECEIPT_FILE, "it does not have the counts of a run") from error
    return None
