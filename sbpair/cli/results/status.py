"""Results of `sbpair status`, `ping` and `discover`, and of several pairs."""

from pathlib import Path
from typing import Annotated

from sbpair.cli.commands.pair_answers import PairEntry
from sbpair.cli.logs import utc
from sbpair.cli.render.waiting import WaitingEntry, waiting_entry
from sbpair.cli.results.management import AuditResult
from sbpair.failover.ping_on_request import PingResult
from sbpair.management.audit_findings import Unseen
from sbpair.management.discovery import OldPair
from sbpair.model.document import SPREAD, TIME, document
from sbpair.status import Status


@document("sbpair/status/1")
class StatusResult:
    """The health of a pair and the size of its backlog. --watch prints one line for each reading."""

    time: Annotated[str, "Time of the reading, in UTC", TIME]
    status: Annotated[Status, SPREAD]
    to: Annotated[str | None, "Namespace of --to; null without it"]
    waiting: Annotated[tuple[WaitingEntry, ...], "Runs with work left, of this state directory"]
    lost: Annotated[bool, "Whether the primary is declared lost"]


def status_result(found: Status) -> StatusResult:
    """Return what is printed of a status."""
    to = found.to.namespace if found.to else None
    return StatusResult(utc(None), found, to, tuple(map(waiting_entry, found.waiting)), bool(found.lost))


@document("sbpair/status-pairs/1", "pairs")
class StatusPairs:
    """The status of all pairs; with --watch, a line each time."""

    pairs: Annotated[tuple[PairEntry[StatusResult], ...], "Pairs of the file"]


@document("sbpair/audit-pairs/1", "pairs")
class AuditPairs:
    """The audits of sbpair audit --all-pairs."""

    pairs: Annotated[tuple[PairEntry[AuditResult], ...], "Pairs of the file"]


@document("sbpair/ping/1", "entities")
class Pings:
    """Answers to pings. JSON Lines have one entity each."""

    namespace: Annotated[str, "Name of the primary namespace"]
    entities: Annotated[tuple[PingResult, ...], "Pinged entities"]


@document("sbpair/discover/1", "pairs", "skipped")
class DiscoverResult:
    """Old pairs in all readable namespaces. JSON Lines have one pair, or skipped subscription or namespace each."""

    namespaces: Annotated[int, "Namespaces whose queues were read"]
    pairs: Annotated[tuple[OldPair, ...], "Pairs"]
    skipped: Annotated[tuple[Unseen, ...], "Subscriptions and namespaces that could not be read"]
    file: Annotated[Path | None, "The written configuration file; null for none"]
