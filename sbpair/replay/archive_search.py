"""Records of one message in the archive of a replay: its rows, its outcome, and whether a killed task held it.

Invariant: nothing is changed, and no bodies are read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import StateRefused
from sbpair.replay.archive import DOUBTFUL, NAMESPACE, OUTCOMES, REMOVED_FILE, SEGMENTS, Archive
from sbpair.replay.ledger import KEY, Key, held_by_attempts, keyed_rows, table_keys
from sbpair.runs.journal import Doubt
from sbpair.runs.message_search import RecordedMessage
from sbpair.runs.run_record import LIVE, UNANSWERED, RunRecord

ENDED = {"ledger": "accepted", "deduplicated": "not sent: another message has its id"}


def find_archived(archive: Archive, run: RunRecord, name: str) -> Iterator[RecordedMessage]:
    """Iterate over the messages of a run with this id or sequence number. Raises StateRefused, MachineLacks."""
    archive.check_links()
    if archive.exists(REMOVED_FILE):
        raise StateRefused("its messages were removed by sbpair replay gc", hint="its receipt has their counts")
    found: dict[Key, tuple[str | None, str, str]] = {}
    for path in archive.files(SEGMENTS):
        for key, destination in keyed_rows(_matching(archive, path, name, "destination"), "destination"):
            found[key] = destination, "", "archived, and not sent"
    doubtful = [key for path in archive.files(DOUBTFUL) for key in table_keys(_matching(archive, path, name))]
    unanswered = "being sent" if run.outcome in LIVE else f"{UNANSWERED}, perhaps: a killed task held it"
    for key, _ in held_by_attempts(archive):
        if name in (key[3], str(key[1])):
            found[key] = found.get(key, (None, ""))[0], "", unanswered
    columns = ("destination", NAMESPACE.name, "reason")
    for kind in OUTCOMES:
        for path in archive.files(kind):
            for key, destination, namespace, reason in keyed_rows(_matching(archive, path, name, *columns), *columns):
                outcome = ": ".join(filter(None, (ENDED.get(kind, kind), reason)))
                found[key] = destination, namespace or "", outcome + "; may be there twice" * (key in doubtful)
    for (queue, number, enqueued_ms, message_id), (destination, namespace, outcome) in found.items():
        message = Doubt(run.id, queue, number, message_id, destination or "", namespace)
        in_doubt = outcome == unanswered and run.outcome not in LIVE
        yield RecordedMessage("archive", message, run.ended_ms or run.started_ms, outcome, in_doubt, enqueued_ms)


def _matching(archive: Archive, path: str, name: str, *columns: str) -> pa.Table:
    table = archive.read_table(path, [*KEY, *columns])
    numbers = pc.cast(table.column("sequence_number"), pa.string())
    return table.filter(pc.or_kleene(pc.equal(table.column("message_id"), name), pc.equal(numbers, name)))
