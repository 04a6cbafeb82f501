"""The outcomes of messages: those that a preview expects, and their counts in the proof and state of a run. Pure.

Invariant: the counts of a preview equal those of a run's plan. Only the choice of the first of two duplicates differs:
it follows the order of peeking in a preview, and the order of time in a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple

from sbpair.backlog import check_path
from sbpair.errors import ExitCode
from sbpair.model.document import OMITTED, SPREAD, TIME, UNLESS_NONE, document
from sbpair.move.message.route import Facts, Route, Send
from sbpair.runs.journal import Key, message_key

ALREADY_SENT, DEDUPLICATED, UNSENT = "already_sent", "deduplicated", "unsent"
MAX_REMEMBERED = 10_000_000  # upper bound on message ids kept, at about 70 bytes each


class PossibleDuplicate(NamedTuple):
    """A message that may have arrived twice."""

    queue: Annotated[str, "Backlog queue it came from"]
    sequence_number: Annotated[int, "Its sequence number in that queue", {"minimum": -(2**63)}]
    message_id: Annotated[str | None, "Its message id"]
    destination: Annotated[str | None, "Queue or topic it is for"]
    reason: Annotated[str, "Which namespace accepted it, too", OMITTED] = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """Counts of messages. For a direct run, `archived` is the number received, and `unsent` the number in doubt.

    `doubtful` lists messages that may have arrived twice, or in two namespaces, and `unreadable` files that would name
    more of them: files that are not synced may be cut short by a loss of power. `remaining_in_queues` were in the
    backlog when the run began, and still were when it was drained.
    """

    archived: Annotated[int, "Archived messages; null in direct mode"] = 0
    acknowledged: Annotated[int, "Messages accepted by their destination"] = 0
    expired: Annotated[int, "Messages past their time to live, kept in the archive"] = 0
    quarantined: Annotated[int, "Messages without a destination, kept in the archive"] = 0
    deduplicated: Annotated[int, "Messages not sent since another has the same id"] = 0
    unsent: Annotated[int, "Messages still to be sent; null in direct mode"] = 0
    copies: Annotated[int, "Archived copies beyond the first of each message"] = 0
    unexplained_copies: Annotated[int, "Copies among these that no crash of a task explains"] = 0
    contradictions: Annotated[int, "Messages with more than one outcome"] = 0
    unknown: Annotated[int, "Outcomes of messages that were not archived"] = 0
    segments: Annotated[int, "Files of messages"] = 0
    queues: Annotated[dict[str, dict[str, int]], "Counts of each queue, by outcome"] = field(default_factory=dict)
    destinations: Annotated[dict[str, int], "Accepted messages of each destination"] = field(default_factory=dict)
    reasons: Annotated[dict[str, int], "Messages that were not sent, by reason"] = field(default_factory=dict)
    namespaces: Annotated[dict[str, int], "Messages that each namespace accepted"] = field(default_factory=dict)
    accepted_elsewhere: Annotated[int, "Messages that only other namespaces than the run's accepted"] = 0
    doubtful: Annotated[list[PossibleDuplicate], "Possible duplicates, the first ones"] = field(default_factory=list)
    doubtful_total: Annotated[int, "Number of possible duplicates"] = 0
    remaining_in_queues: Annotated[dict[str, int], "Messages left in each queue"] = field(default_factory=dict)
    locked: Annotated[int, "Messages among these that were locked, by another receiver or a task that ended"] = 0
    unreadable: Annotated[list[str], "Paths of files that cannot be read"] = field(default_factory=list)
    not_adopted: Annotated[list[str], "Paths of segments without a digest, which a resume adopts"] = field(
        default_factory=list
    )
    streamed: Annotated[int | None, "Archived messages of a stream, from which nothing is sent", UNLESS_NONE] = None
    collected: Annotated[int | None, "Rows of a stream's segments that gc deleted", UNLESS_NONE] = None

    @property
    def balanced(self) -> Annotated[bool, "Whether the counts add up"]:
        ended = self.acknowledged + self.expired + self.quarantined + self.deduplicated + (self.streamed or 0)
        return self.archived == ended and not (self.contradictions or self.unknown)

    @property
    def exit_code(self) -> int:
        """DONE if everything was sent, PARTIAL_OR_FINDINGS if something was not, BUG if the files disagree."""
        if self.contradictions or self.unknown:
            return ExitCode.BUG
        unfinished = self.unsent or self.expired or self.quarantined or self.remaining_in_queues
        unfinished = unfinished or self.unexplained_copies
        return ExitCode.PARTIAL_OR_FINDINGS if unfinished else ExitCode.DONE


class ReplayEnd(NamedTuple):
    """The end of a run, beside its proof."""

    seconds: Annotated[float, "Duration"]
    stopped: Annotated[bool, "Whether the run was stopped"]
    notes: Annotated[tuple[str, ...], "Why destinations took no more, what topics discard, unfinished runs"]
    released: Annotated[int, "Messages that tasks received and gave back to the backlog"]
    excluded: Annotated[int, "Unsent messages that --destination and --where left out"]


MODE = {"enum": ["archive", "direct", "stream"]}
FINISHED = ("proved", "removed", "moved")
"""Phases of a run that has ended, and that a stop would not change."""
PHASES = ("drain", "drained", "send", "move", *FINISHED)


class DirectCounts(NamedTuple):
    """The counts that a direct run has in place of archived and unsent messages."""

    received: Annotated[int, "Received messages, in direct mode"]
    in_doubt: Annotated[int, "Messages without a known outcome, in direct mode"]


class ReplayReceipt(NamedTuple):
    """The proof of a replay."""

    run: Annotated[str, "Id of the run"]
    mode: Annotated[str, "Mode of the run", MODE]
    proof: Annotated[Proof, SPREAD]
    queues: Annotated[dict[str, dict[str, int]], "Counts of each queue, by outcome"]
    archived: Annotated[int | None, "Archived messages; null in direct mode"]
    unsent: Annotated[int | None, "Messages still to be sent; null in direct mode, and of a stream"]
    direct: Annotated[DirectCounts | None, SPREAD] = None
    end: Annotated[ReplayEnd | None, SPREAD] = None


def replay_receipt(run: str, mode: str, proof: Proof, end: ReplayEnd | None = None) -> ReplayReceipt:
    if mode != "direct":
        unsent = None if mode == "stream" else proof.unsent
        return ReplayReceipt(run, mode, proof, proof.queues, proof.archived, unsent, end=end)
    names = {"archived": "received", "unsent": "in_doubt"}
    queues = {
        queue: {names.get(name, name): count for name, count in each.items()} for queue, each in proof.queues.items()
    }
    return ReplayReceipt(run, mode, proof, queues, None, None, DirectCounts(proof.archived, proof.unsent), end)


def read_receipt(receipt: Mapping[str, Any]) -> tuple[Proof, ReplayEnd]:
    """Return the proof and the end of which `replay_receipt` made the JSON. Raises KeyError, TypeError for another."""
    names = {"received": "archived", "in_doubt": "unsent"} if receipt["mode"] == "direct" else {}
    known = {names.get(name, name): value for name, value in receipt.items() if value is not None}
    known["queues"] = {
        queue: {names.get(name, name): count for name, count in each.items()} for queue, each in known["queues"].items()
    }
    known["doubtful"] = [PossibleDuplicate(**each) for each in known["doubtful"]]
    known["notes"] = tuple(known["notes"])
    proof = Proof(**{each.name: known[each.name] for each in fields(Proof) if each.name in known})
    return proof, ReplayEnd(**{name: known[name] for name in ReplayEnd._fields})


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """The state of a run, as its files have it."""

    run: Annotated[str, "Id of the run"]
    mode: Annotated[str, "Mode of the run", MODE]
    phase: Annotated[str, "Current phase", {"enum": [*PHASES]}]
    stopped: Annotated[bool, "Whether it was stopped"]
    digests: Annotated[bool, "Whether its files have digests"]


@dataclass(frozen=True, slots=True)
class ReplaySummary(ReplayPosition):
    """A run of an archive."""

    started_ms: Annotated[int, "Start, in UTC", TIME, {"name": "started"}]


@document("sbpair/replay-status/1")
class ReplayStatus(ReplayPosition):
    """The progress of a replay, from its files."""

    pair: Annotated[dict[str, str], "Names of the namespaces"]
    archived_rows: Annotated[int, "Archived rows, copies included"]
    segments: Annotated[int, "Files of messages"]
    acknowledged_rows: Annotated[int, "Rows of accepted messages"]
    queues: Annotated[dict[str, int], "Rows of each queue"]
    not_adopted: Annotated[tuple[str, ...], "Segments without a digest, which a resume adopts"]


@document("sbpair/replay-drain/1")
class DrainedStream:
    """The end of sbpair replay drain."""

    run: Annotated[str, "Name of the stream"]
    source: Annotated[str, "Queue or subscription that was drained"]
    messages: Annotated[int, "Messages that this drain stored, copies included"]
    segments: Annotated[int, "Files that it stored them in"]
    remaining: Annotated[int | None, "Messages that others had locked, or deferred; null with --watch, or stopped"]
    released: Annotated[int, "Messages that were received and released again"]
    stopped: Annotated[bool, "Whether it was stopped"]
    seconds: Annotated[float, "Duration", {"digits": 3}]

    @property
    def exit_code(self) -> int:
        """That of an interruption for a stop of a drain that would have ended by itself."""
        if self.stopped:
            return ExitCode.INTERRUPTED
        return ExitCode.PARTIAL_OR_FINDINGS if self.remaining else ExitCode.DONE


def normalize_destinations(destinations: Iterable[str]) -> tuple[str, ...]:
    """Return destination paths without duplicates and outer slashes. Raises NameInvalid."""
    paths = dict.fromkeys(each.strip("/") for each in destinations)
    for path in paths:
        check_path(path, shorten="name a queue or a topic of the primary with --destination")
    return tuple(paths)


class PlanPreview:
    """The plan of one preview. With `dedup`, a duplicate by message id and destination is not sent.

    `accepted` are keys in the syphon's journal. `ids_overflowed` is set beyond MAX_REMEMBERED message ids.
    """

    def __init__(
        self, namespace: str, *, dedup: bool, destinations: Collection[str] = (), accepted: Collection[Key] = ()
    ) -> None:
        self._namespace, self._dedup = namespace, dedup
        self._destinations = {name.lower() for name in destinations}
        self._accepted = frozenset(accepted)
        self._ids: set[bytes] = set()
        self.ids_overflowed = False

    def __call__(self, facts: Facts, decision: Route) -> tuple[str | None, bool]:
        """Return (outcome of a message that is not sent, or None; whether it is a duplicate)."""
        if self._accepted and message_key(self._namespace, facts) in self._accepted:
            return ALREADY_SENT, False
        destination = (facts.path or "").strip("/")  # as the message says, whatever its name is now
        duplicate = isinstance(decision, Send) and self._is_duplicate(destination, facts.message_id)
        if self._destinations and destination.lower() not in self._destinations:
            return UNSENT, duplicate
        return (DEDUPLICATED if duplicate and self._dedup else None), duplicate

    def _is_duplicate(self, destination: str, message_id: str | None) -> bool:
        if not message_id:
            return False
        name = f"{destination.lower()}\0{message_id}".encode(errors="surrogatepass")
        digest = hashlib.blake2b(name, digest_size=16).digest()
        if digest in self._ids:
            return True
        if len(self._ids) < MAX_REMEMBERED:
            self._ids.add(digest)
        else:
            self.ids_overflowed = True
        return False
