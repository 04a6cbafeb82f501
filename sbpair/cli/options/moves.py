"""Options of movers: limits, the lease, the archive of a replay, and the backlog queues that they select."""

from typing import TYPE_CHECKING, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues, replay_runs
from sbpair.cli.options.common import argument, flag, option
from sbpair.errors import UsageError
from sbpair.move import rate_limit
from sbpair.move.context import DEFAULT_MAX_SKIPPED

if TYPE_CHECKING:
    from collections.abc import Collection

    from sbpair.cli.render.screen import Screen
    from sbpair.model.pair import Pair
    from sbpair.move.filter import MessageFilter
    from sbpair.replay.archive import Archive
    from sbpair.syphon.move_spec import MoveLimits


Dedup = Literal["key", "message-id", "report"]
Ttl = Literal["original", "remaining"]

RATE = option("--rate N[/s|/m|/h]", "Send at most N messages a second, minute or hour", parse=rate_limit.parse_rate)
CREDITS = option(
    "--credits SHARE", "Share of Standard's 1000/s [default: 50%; Premium: none]", parse=rate_limit.parse_credits
)
TTL = option("--ttl MODE", "original, or remaining: less the wait", default="original")
LEASE = option(
    "--lease QUEUE", "Lock the pair across machines, with this session queue", excludes=("--no-lease", "--dry-run")
)
NO_LEASE = flag("--no-lease", "Ignore another mover of the pair on this machine")
NO_WAIT_FOR_LOCKS = flag(
    "--no-wait-for-locks", "Leave messages that others have locked", excludes=("--watch", "--dry-run")
)
WHERE = option("--where SQL", "Only messages that match; the others stay")
WHERE_SHOWN = option("--where SQL", "Only messages that match; peeks on until --max of them do")
MAX_SKIPPED = option(
    "--max-skipped N",
    f"End once N do not match [default: {DEFAULT_MAX_SKIPPED}]",
    at_least=1,
    needs="--where or --reason",
)
MAX_DISCARD = option(
    "--max-discard N",
    "Send N at most that a topic would discard [default: 0]",
    at_least=0,
    excludes="--allow-discard",
)
ALLOW_DISCARD = flag("--allow-discard", "Send what topics discard: no subscription takes it")
ALLOW_DUPLICATE_DETECTION = flag("--allow-duplicate-detection", "Also move what its destination may drop")
ARCHIVE = option("--archive PATH|URL", "Directory or URL (s3://…) of the archive", default=...)
RUN = argument("RUN", "Id of the run, or its beginning", complete=replay_runs)
QUEUES = option("--queue NAME|INDEX", "Only this backlog queue; repeatable [default: all]", complete=backlog_queues)
DEAD_LETTERS = flag("--dead-letters", "Also move the dead letters of the backlog queues")
DESTINATIONS = option("--destination NAME", "Send only messages for this destination; repeatable")
DEDUP = option(
    "--dedup MODE",
    "key sends each message once; message-id also drops repeated ids per destination; report only counts them",
    default="key",
)
ALLOW_MISSING = flag("--allow-missing", "Quarantine messages for missing queues and topics")


def filter_of(screen: "Screen", text: str | None, reasons: "Collection[str]" = ()) -> "MessageFilter | None":
    """Return the filter of --where and of dead-letter reasons, and warn of doubts about it. Raises FilterInvalid."""
    if text is None and not reasons:
        return None
    from sbpair.move.filter import MessageFilter

    found = MessageFilter("" if text is None else text or " ", reasons=reasons)
    for remark in found.remarks:
        screen.warn(f"--where: {remark}")
    return found


def discard_limit(limit: int | None, *, allow: bool) -> int | None:
    """Return how many messages may be sent that no subscription of their topic takes; None for all."""
    return None if allow else limit or 0


def open_archive(url: str, run_id: str) -> "Archive":
    """Return the archive of the run whose id begins with `run_id`. Raises MachineLacks if pyarrow is not installed."""
    from sbpair.replay.java import check_packages

    check_packages("pyarrow")
    from sbpair.replay.archive import find_archive

    return find_archive(url, run_id)


def backlog_paths(pair: "Pair", selected: list[str] | None, *, dead_letters: bool = False) -> list[str]:
    """Return the queues to drain: the existing backlog queues or the selected ones of them.

    With `dead_letters`, also returns their dead-letter queues.
    """
    from sbpair.azure.atom import open_atom
    from sbpair.backlog import queue_path
    from sbpair.move.message.dead_letters import dead_letter_path
    from sbpair.syphon.move_spec import find_backlog_queues, none_found

    async def find() -> list[str]:
        async with open_atom(pair.secondary) as control:
            found = (await find_backlog_queues(pair, control)).queues
        if not found:
            raise none_found(pair)
        return list(found)

    there = {queue.lower(): queue for queue in run(find())}
    paths: list[str] = []
    for each in selected or there:
        path = queue_path(pair.primary.name, int(each)) if each.isdecimal() else each
        if path.lower() not in there:
            names = list(there.values())
            hint = f"it has {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UsageError(f"--queue {each}: {pair.secondary.name} has no such backlog queue", hint=hint)
        if there[path.lower()] not in paths:
            paths.append(there[path.lower()])
    return paths + list(map(dead_letter_path, paths)) if dead_letters else paths


def limits_of(rate: float | None, share: float | None, ttl: Ttl) -> "MoveLimits":
    from sbpair.move.message import route
    from sbpair.syphon.move_spec import MoveLimits

    return MoveLimits(rate=rate, credits=share, ttl=route.TimeToLive(ttl))
