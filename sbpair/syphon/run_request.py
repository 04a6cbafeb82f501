"""The request of a run: which messages, from where to where, how they change, and its limits.

One record from the command line to the workers; its settings are stored with the run. Nothing here does I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from sbpair import backlog
from sbpair.errors import UsageError
from sbpair.model.message_state import ASIDE, MessageState, dead_letter_path, is_dead_letter_path
from sbpair.model.pair import Endpoint, Ends, Pair
from sbpair.move.context import DEFAULT_MAX_SKIPPED, MAX_MISSING, MissingDestinations
from sbpair.move.filter import MessageFilter, enqueued_times, marked
from sbpair.move.message.renames import Renames
from sbpair.move.message.route import BACKLOG, BACKLOG_DEAD_LETTERS, MessageForm, TimeToLive
from sbpair.move.timings import DEFAULT_BACKOFF, DEFAULT_MOVE_TIMINGS, MoveTimings

if TYPE_CHECKING:
    from sbpair.model.retries import Backoff
    from sbpair.move.context import Choose
    from sbpair.move.interface import ReceivedMessage
    from sbpair.move.kept_file import KeptFile


@dataclass(frozen=True, slots=True)
class RunTimings:
    """`backoff` is for connections. `long_poll_seconds`: how long a receive waits on an idle queue in a watch.

    `count_wait_seconds`: how long `--once` waits for a message before each count or peek. `empty_wait_seconds`: how
    long it waits for held messages.
    `report_seconds` and `destinations_seconds`: how often progress is emitted, at most. `stuck_seconds`: longer than
    any wait of a worker whose namespaces can be reached.
    """

    backoff: Backoff = DEFAULT_BACKOFF
    long_poll_seconds: float = 900.0
    empty_wait_seconds: float = 5.0
    count_wait_seconds: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0)
    report_seconds: float = 0.25
    destinations_seconds: float = 1.0
    stuck_seconds: float = 1_080.0
    move: MoveTimings = DEFAULT_MOVE_TIMINGS


DEFAULT_TIMINGS = RunTimings()


MAX_RAMP = 100_000
"""The limit of a ramp's last step: the ids of its messages are kept in memory."""

OBSERVE_SECONDS = 30.0
NO_RENAMES = Renames()
RAMP_HINT = "write rising totals of sent messages, as in --ramp 1,10,100"


@dataclass(frozen=True, slots=True)
class RampPlan:
    """`totals` are rising numbers of messages sent since the start, after each of which the run observes.

    Raises UsageError.
    """

    totals: tuple[int, ...]
    observe_seconds: float = OBSERVE_SECONDS

    def __post_init__(self) -> None:
        for before, total in zip((0, *self.totals), self.totals, strict=False):
            if mistake := _mistake(total, before):
                raise UsageError(f"ramp: {mistake}", hint=RAMP_HINT)
        if not self.totals or not self.observe_seconds > 0:
            raise UsageError("a ramp needs a step, and a time to observe", hint=RAMP_HINT)


def read_totals(text: str) -> tuple[int, ...]:
    """Return the totals of `1,10,100`. Raises UsageError, with the place of a mistake."""
    totals: list[int] = []
    at = 0
    for part in text.split(","):
        word, before = part.strip(), totals[-1] if totals else 0
        mistake = "expected a number" if not word else f"{word[:20]!r} is not a whole number"
        if word.isascii() and word.isdecimal():
            number = int(word) if len(word) < 10 else MAX_RAMP + 1
            mistake = _mistake(number, before)
            totals.append(number)
        if mistake:
            place = at + len(part) - len(part.lstrip())
            error = UsageError(f"--ramp: {mistake} (column {place + 1})", hint=RAMP_HINT)
            error.excerpt = marked(text, place)
            raise error
        at += len(part) + 1
    return tuple(totals)


def _mistake(total: int, before: int) -> str:
    if total < 1:
        return f"{total} is not at least 1"
    if total > MAX_RAMP:
        return f"a step is at most {MAX_RAMP} messages"
    return f"{total} is not greater than {before} before it" if total <= before else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run: of one `source` at the source's end, or of the backlog queues or their dead letters if that is None.

    With `to`, a backlog goes to that namespace, not to its primary. `renames` are destinations that have another name
    than its messages say.

    `messages` is the state of those of the `source`; of the backlog, active ones or dead letters.

    `command` is its name in the list of runs, which are those of `owner`, by default of its ends. `names` are the ends
    as a user names them. A run with `once` ends when
    every message that was there at its start is settled or held. `backlog_queues` is the number of queues to move
    without the Manage claim. `sessions` is whether the source has sessions. A run ends after `max_messages` were sent.
    With `keeps_refused`, a message that the destination refuses stays in its source, and so does one that was enqueued
    within the window of a destination, as `router` has them. `default_ttl_ms` is the source's; None for
    none, or if unknown.

    `ordered` keeps the order of a queue's messages for a destination. `rate` is in messages a second. `credits` is in
    credits a second, infinity for no limit; if it is None, a run spends half of a Standard namespace's credits, and is
    not limited in a Premium one. At most `max_held` messages are held for destinations that back off.

    After `max_missing` dead-lettered messages of a destination that does not exist, its other messages stay in the
    source, unless `allow_missing`. So do those of a topic that no subscription of it takes, and all behind them, after
    `max_discard` such messages; None sends them all. Without the Manage claim on the destination, that is not known,
    and they are sent.

    With `where`, only messages are moved for which that filter is true. The others are `skipped`: kept locked until the
    run ends, at most `max_skipped` of them, and released with their delivery counts unchanged. A run with `once` waits
    for messages that others have locked; without `wait_for_locks` it leaves them, and counts them as `locked`.

    A worker that has lost a connection ends the other one and opens both again. If `reconnect` is False,
    ConnectionFaulted ends it, and a watch as a whole. With `sample_seconds`, `on_event` also gets the progress of
    destinations, and with the Manage claim the depth of each queue, at most that often. With `count_remaining`, a run
    that may leave messages counts them in the end.

    Unless `lease` is False, no other process of this user on this machine moves the same messages at the same time.
    With `lease_queue`, a session queue in the source's namespace, no mover on any machine that names it does; the run
    ends if that lease is lost.

    After runs `to` another namespace, one to the pair's primary is refused until one with `primary_is_back`.
    `disorder` is which session a redrive would put out of order: that is refused, and a preview names it.
    `command_line` moves the same messages with the same options, and holds no secret.

    With `keep`, messages go to that file, and nowhere else. Those that were enqueued after `until_ms`, in ms since 1970
    by the service's clock, stay. With `idle_seconds`, a run ends once no message has come for so long.
    """

    ends: Ends
    once: bool
    owner: Ends | None = None
    to: str = ""
    renames: Renames = NO_RENAMES
    command: str = "syphon"
    form: MessageForm = BACKLOG
    source: str | None = None
    messages: MessageState = MessageState.ACTIVE
    backlog_queues: int = 10
    sessions: bool = False
    max_messages: int | None = None
    keeps_refused: bool = False
    duplicate_windows: Mapping[str, int] | None = None
    default_ttl_ms: int | None = None
    names: tuple[str, str] | None = None
    ordered: bool = True
    rate: float | None = None
    credits: float | None = math.inf
    ttl: TimeToLive = TimeToLive.ORIGINAL
    max_held: int = 1_000
    max_missing: int = MAX_MISSING
    allow_missing: bool = False
    max_discard: int | None = 0
    where: MessageFilter | None = None
    max_skipped: int = DEFAULT_MAX_SKIPPED
    wait_for_locks: bool = True
    reconnect: bool = True
    ramp: RampPlan | None = None
    sample_seconds: float | None = None
    count_remaining: bool = False
    lease: bool = True
    lease_queue: str | None = None
    primary_is_back: bool = False
    disorder: str = ""
    command_line: str = ""
    keep: KeptFile | None = None
    until_ms: int | None = None
    idle_seconds: float | None = None
    timings: RunTimings | None = None

    @property
    def takes_dead_letters(self) -> bool:
        """Whether it moves the dead letters of all backlog queues."""
        return self.source is None and self.form == BACKLOG_DEAD_LETTERS

    @property
    def keeps_sessions(self) -> bool:
        """Whether messages of sessions stay: a watch does not look for newer ones of each that comes."""
        return self.ordered and not self.once and self.form == BACKLOG_DEAD_LETTERS

    @property
    def words(self) -> tuple[str, str]:
        """The words for its source and its destination in messages."""
        if self.keep is not None:
            return "source", "kept file"
        routed = ("backlog", self.to or "primary")
        return routed if self.source is None or self.to else ("source", "destination")

    @property
    def titles(self) -> tuple[str, str]:
        """Its source and its destination in sentences."""
        source, destination = self.words
        return f"the {source}", self.to or f"the {destination}"

    @property
    def returns_to(self) -> str:
        """The pair's primary, if messages of another namespace go there; else ""."""
        primary = (self.owner or self.ends).destination
        is_primary = self.ends.destination.authority.lower() == primary.authority.lower()
        return primary.name if is_primary and not self.ends.same else ""

    @property
    def kept_out(self) -> str:
        """The primary whose backlog no destination may lead to: its messages would never end."""
        return self.ends.backlog_of if self.form.destination is None and self.ends.same else ""

    @property
    def leased(self) -> tuple[Ends, str | None]:
        """The backlog, or the entity at the source's end, that no other mover may move at the same time.

        For the active messages of a backlog queue that is the whole backlog: beside a syphon, they would lose their
        order. The dead letters of all backlog queues of a pair are one entity.
        """
        source, ends = self.source, self.ends
        if source is not None:
            primary = backlog.primary_of(source)
            if primary is None:
                return ends, source
            ends = replace(ends, backlog_of=primary)
        has_dead_letters = self.takes_dead_letters if source is None else is_dead_letter_path(source)
        return ends, dead_letter_path(f"{backlog.prefix(ends.backlog_of)}*") if has_dead_letters else None

    @property
    def may_delete(self) -> bool:
        """Whether all messages up to `until_ms` may be deleted unseen."""
        is_all = self.where is None and self.max_messages is None and self.until_ms is not None
        may_drop = self.keep is not None and self.keep.path is None and self.keep.show is None
        return is_all and may_drop and not self.sessions and self.messages not in ASIDE

    @property
    def choose(self) -> Choose | None:
        """Return which received messages are moved; None for all."""
        where, until_ms = self.where, self.until_ms
        if until_ms is None:
            return None if where is None else where.choose

        def choose(messages: Sequence[ReceivedMessage], now_ms: int) -> Sequence[bool]:
            chosen = repeat(True) if where is None else where.choose(messages, now_ms)
            times = enqueued_times(messages)
            return [at <= until_ms and each for at, each in zip(times, chosen, strict=False)]

        return choose

    def missing(self) -> MissingDestinations:
        """Return the count of missing destinations, with the limit of dead letters for each."""
        return MissingDestinations(None if self.allow_missing else self.max_missing, self.words[1])

    def settings(self) -> Mapping[str, object]:
        """Return the options in force, as a run's record has them."""
        where: dict[str, object] = {}
        if self.where is not None:
            where = {"where": self.where.full_text, "max_skipped": self.max_skipped}
        return {
            "source": self.source,
            **({"messages": str(self.messages)} if self.messages in ASIDE else {}),
            "mode": "once" if self.once else "watch",
            "order": "backlog" if self.ordered else "none",
            "ttl": str(self.ttl),
            "max_held": self.max_held,
            "max_missing": "all" if self.allow_missing else self.max_missing,
            "max_discard": "all" if self.max_discard is None else self.max_discard,
            "wait_for_locks": self.wait_for_locks,
            "lease": self.lease_queue or ("this machine" if self.lease else "none"),
            **({"to": self.to} if self.to else {}),
            **({"primary_is_back": True} if self.primary_is_back else {}),
            **({"map": self.renames.lines()} if self.renames else {}),
            **({"command_line": self.command_line} if self.command_line else {}),
            **({"keep": self.keep.id or "none"} if self.keep is not None else {}),
            **where,
        }


def syphon_request(
    pair: Pair, *, once: bool, to: Endpoint | None = None, preview: bool = False, **options: Any
) -> RunRequest:
    """Return the request of a syphon of `pair`, which never connects to its primary if it delivers `to` another one.

    `options` are those of a RunRequest. Raises PrimaryLost without `to` if the primary is declared lost, unless it is
    that of a preview, which sends nothing.
    """
    if to is None and not preview:
        pair.require_primary()
    return RunRequest(
        ends=pair.ends_to(to or pair.primary),
        once=once,
        owner=pair.ends,
        to="" if to is None else to.name,
        backlog_queues=pair.backlog_queues,
        **options,
    )
