"""Options of movers: `MoveTerms` of a syphon, move or redrive; the groups of a replay; backlog queues to select."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues, replay_runs
from sbpair.cli.options.common import STATE, argument, duration, flag, kept_path, option, option_group, run_limit
from sbpair.cli.render.screen import clean
from sbpair.errors import UsageError
from sbpair.move import rate_limit
from sbpair.move.context import DEFAULT_MAX_SKIPPED

if TYPE_CHECKING:
    from sbpair.cli.options.entity_addresses import Reach
    from sbpair.cli.render.screen import Screen
    from sbpair.model.pair import Pair
    from sbpair.move.filter import MessageFilter
    from sbpair.move.message.renames import Renames
    from sbpair.replay.archive import Archive
    from sbpair.syphon.run_request import RampPlan


def run_name(text: str) -> str:
    """Return the value of --run. Raises UsageError."""
    from sbpair.runs.run_log import check_run_name

    return check_run_name(text)


Dedup = Literal["key", "message-id", "report"]
Ttl = Literal["original", "remaining"]
MoveTtl = Literal["original", "remaining", "drop-default"]

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
PRIMARY_IS_BACK = flag("--primary-is-back", "Send to the primary again, after runs with --to")
MAX_SKIPPED = option("--max-skipped N", f"End once N do not match [default: {DEFAULT_MAX_SKIPPED}]", at_least=1)
MAX_DISCARD = option(
    "--max-discard N",
    "Send N at most that a topic would discard [default: 0]",
    at_least=0,
    excludes="--allow-discard",
)
ALLOW_DISCARD = flag("--allow-discard", "Send what topics discard: no subscription takes it")
ALLOW_DUPLICATE_DETECTION = flag("--allow-duplicate-detection", "Also move what its destination may drop")
PROGRESS_INTERVAL = duration(
    "--progress-interval TIME",
    "Time between reports off a terminal",
    panel="Output",
    default="30s",
    at_least=1,
    at_most=86_400,
)
ARCHIVE = option("--archive PATH|URL", "Directory or URL (s3://…) of the archive", default=...)
RUN = argument("RUN", "Id of the run, or its beginning", complete=replay_runs)
RUN_NAME = option("--run NAME", "Name of the run: the same command continues it", parse=run_name)
QUEUES = option("--queue NAME|INDEX", "Only this backlog queue; repeatable [default: all]", complete=backlog_queues)
DEAD_LETTERS = flag("--dead-letters", "Also move the dead letters of the backlog queues")
DESTINATIONS = option("--destination NAME", "Send only messages for this destination; repeatable")
DEDUP = option(
    "--dedup MODE",
    "key sends each message once; message-id also drops repeated ids per destination; report only counts them",
    default="key",
)
ALLOW_MISSING = flag("--allow-missing", "Quarantine for good what is for missing queues and topics")
SKIP_MISSING = flag("--skip-missing", "Leave it unsent, and send the others", excludes="--allow-missing")

MAX_PORT, MAX_DIGITS = 65_535, 6
MAX_CANARY = 100_000
"""As of a step of a ramp, whose module takes long to load."""

LOOPBACK = "127.0.0.1"
MODES = {"--once": "once", "--watch": "watch", "--dry-run": "dry_run"}
ONE_MODE = "--once moves the messages that are there now; --watch keeps moving; --dry-run only previews"


def health_address(text: str) -> tuple[str, int]:
    """Return host and port of --health-port. Raises UsageError."""
    host, _, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < MAX_DIGITS else MAX_PORT + 1
    if number > MAX_PORT or text.startswith(":"):
        raise UsageError(
            f"--health-port: expected a port from 0 to {MAX_PORT}, or HOST:PORT, got {clean(text)!r}",
            hint="8081 serves this machine only; 0.0.0.0:8081 serves others, too; 0 is any free port",
        )
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, number


def _ramp_totals(text: str) -> tuple[int, ...]:
    from sbpair.syphon.run_request import read_totals

    return read_totals(text)


def check_ports(health: tuple[str, int] | None, metrics_port: int | None) -> None:
    """Raise UsageError for health and metrics on one port."""
    if health and metrics_port and health[1] == metrics_port:
        text = f"--health-port and --metrics-port are both {metrics_port}"
        raise UsageError(text, hint="choose another port")


@option_group
class MoveTerms:
    """The options of every mover."""

    once: bool = flag(
        "--once",
        "Move the messages that are there now, then exit",
        excludes=("--watch", "--dry-run"),
        why=ONE_MODE,
    )
    watch: bool = flag("--watch", "Keep moving until interrupted", excludes="--dry-run", why=ONE_MODE)
    dry_run: bool = flag("--dry-run", "Move nothing; preview outcomes, duration and cost")
    order: Literal["backlog", "none"] = option(
        "--order ORDER", "backlog, or none: faster, in any order", default="backlog"
    )
    rate: float | None = RATE
    share: float | None = CREDITS
    ttl: MoveTtl = option("--ttl MODE", "original, remaining or drop-default", default="original")
    state: Path | None = STATE
    lease: str | None = LEASE
    no_lease: bool = NO_LEASE
    no_wait_for_locks: bool = NO_WAIT_FOR_LOCKS
    primary_is_back: bool = PRIMARY_IS_BACK
    max_skipped: int | None = MAX_SKIPPED
    max_discard: int | None = MAX_DISCARD
    allow_discard: bool = ALLOW_DISCARD
    ramp: tuple[int, ...] | None = option(
        "--ramp N,N,…", "Send N, observe dead letters, go on; or --canary N", excludes="--canary", parse=_ramp_totals
    )
    canary: int | None = option("--canary N", "The same as --ramp N", at_least=1, at_most=MAX_CANARY, hidden=True)
    observe: float | None = duration(
        "--observe TIME", "Time per step [default: 30s]", at_most=86_400, needs="--ramp or --canary"
    )
    progress_interval: float = PROGRESS_INTERVAL
    metrics_port: int | None = option(
        "--metrics-port PORT",
        "Serve metrics; 0 is a free port",
        at_least=0,
        at_most=MAX_PORT,
        needs="--watch",
        why="the receipt has the figures of a run that ends",
    )
    metrics_address: str | None = option(
        "--metrics-address HOST", "Its address [default: 127.0.0.1]", needs="--metrics-port"
    )
    health_port: tuple[str, int] | None = option(
        "--health-port [HOST:]PORT",
        "Answer health probes",
        needs="--watch",
        why="a run that ends has an exit code",
        parse=health_address,
    )

    def checked_mode(self, default: str = "", limit: int | None = None) -> str:
        """Return --once, --watch or --dry-run. Raises UsageError for none without a `default`, and for wrong options.

        `limit` is that of --max.
        """
        mode = next((name for name, field in MODES.items() if getattr(self, field)), default)
        if not mode:
            raise UsageError(f"expected one of {', '.join([*MODES][:2])} and {[*MODES][2]}", hint=ONE_MODE)
        check_ports(self.health_port, self.metrics_port)
        self.ramp_plan(limit)
        return mode

    def ramp_plan(self, limit: int | None = None) -> "RampPlan | None":
        """Return the steps of a ramp, if one is wanted; `limit` is that of --max. Raises UsageError."""
        if self.ramp is None and self.canary is None:
            return None
        from sbpair.syphon.run_request import OBSERVE_SECONDS, RampPlan

        totals = self.ramp or (self.canary or 0,)
        if limit is not None and totals[-1] > limit:
            what = f"{'--ramp' if self.ramp else '--canary'}: a step of {totals[-1]} is never reached"
            raise UsageError(f"{what}: --max is {limit}", hint="raise --max, or leave it out")
        return RampPlan(totals, self.observe or OBSERVE_SECONDS)

    def settings(self, where: "MessageFilter | None", limit: int | None = None) -> dict[str, Any]:
        """Return the fields of a RunRequest that these options, a filter and --max set."""
        from sbpair.move.message.route import TimeToLive

        return {
            "once": not self.watch,
            "where": where,
            "max_messages": run_limit(limit),
            "ordered": self.order == "backlog",
            "rate": self.rate,
            "credits": self.share,
            "ttl": TimeToLive(self.ttl),
            "max_discard": discard_limit(self.max_discard, allow=self.allow_discard),
            "max_skipped": self.max_skipped or DEFAULT_MAX_SKIPPED,
            "wait_for_locks": not self.no_wait_for_locks,
            "ramp": self.ramp_plan(),
            "count_remaining": True,
            "lease": not self.no_lease,
            "lease_queue": self.lease,
            "primary_is_back": self.primary_is_back,
        }


@option_group
class RemoveTerms:
    """The options of a removal. It ends by itself, and serves no port."""

    metrics_port = metrics_address = health_port = None

    keep: Path | None = option("--keep FILE", "Append what is removed to it [default: a new file]", parse=kept_path)
    no_keep: bool = flag("--no-keep", "Keep nothing", excludes="--keep")
    rate: float | None = option(
        "--rate N[/s|/m|/h]", "Remove N messages at most a second, minute or hour", parse=rate_limit.parse_rate
    )
    share: float | None = CREDITS
    state: Path | None = STATE
    lease: str | None = LEASE
    no_lease: bool = NO_LEASE
    no_wait_for_locks: bool = NO_WAIT_FOR_LOCKS
    max_skipped: int | None = MAX_SKIPPED
    progress_interval: float = PROGRESS_INTERVAL


@option_group
class NewDestinations:
    """Another namespace than the primary, and names that changed."""

    to: str | None = option("--to NAME", "Use secondary or [namespaces.NAME] instead of the primary")
    renamed: list[str] | None = option("--map OLD=NEW|FILE", "New names of destinations; repeatable")

    def settings(self, reach: "Reach") -> dict[str, Any]:
        """Return the fields of a request that these options set. Raises UsageError."""
        from sbpair.move.message.renames import read_renames

        if self.to == "primary":
            raise UsageError("--to primary is where messages go without --to", hint="leave it out")
        to = None if self.to is None else reach.endpoint(self.to)
        return {"to": to, "renames": read_renames(self.renamed or ())}


def warn_of_unused(screen: "Screen", renames: "Renames") -> None:
    """Warn of new names that no message needed."""
    if unused := renames.unused():
        screen.warn(f"no message was for the old {'names' if len(unused) > 1 else 'name'} of --map {', '.join(unused)}")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--conf {name!r} has no value", hint="write --conf spark.executor.memory=4g")
    from sbpair.replay.spark_settings import check_setting

    check_setting(name, value)
    return name, value


@option_group
class Cluster:
    """The Spark that runs a replay."""

    master: str | None = option("--master URL", "Spark master [default: local, cores + 2 tasks]")
    remote: str | None = option("--remote URL", "Spark Connect server, sc://HOST:PORT [env: SPARK_REMOTE]")
    parallelism: int | None = option(
        "--parallelism N", "Tasks at once [default: those of a local master, or 2]", at_least=1
    )
    shared_archive: bool = flag("--shared-archive", "The archive directory is mounted on every worker")
    conf: list[tuple[str, str]] | None = option(
        "--conf KEY=VALUE", "Spark setting, never a secret; repeatable", parse=_setting
    )
    package: str | None = option("--package FILE", "Zip from sbpair replay package, for bare workers")
    print_submit: bool = flag("--print-submit", "Only print the spark-submit command, without secrets")


@option_group
class ReplaySafeguards:
    """Protection against concurrent runs and receivers, and the state directory."""

    state: Path | None = STATE
    lease: str | None = LEASE
    no_lease: bool = NO_LEASE
    no_wait_for_locks: bool = NO_WAIT_FOR_LOCKS
    primary_is_back: bool = PRIMARY_IS_BACK


@option_group
class Choice:
    """Which messages are sent."""

    destination: list[str] | None = DESTINATIONS
    where: str | None = option("--where SQL", "Send only messages matching this SQL condition")


def discard_limit(limit: int | None, *, allow: bool) -> int | None:
    """Return how many messages may be sent that no subscription of their topic takes; None for all."""
    return None if allow else limit or 0


def open_archive(url: str, run_id: str) -> "Archive":
    """Return the archive of the run whose id begins with `run_id`. Raises MachineLacks if pyarrow is not installed."""
    from sbpair.replay.spark import check_packages

    check_packages("pyarrow")
    from sbpair.replay.archive import find_archive

    return find_archive(url, run_id)


def backlog_paths(pair: "Pair", selected: list[str] | None, *, dead_letters: bool = False) -> list[str]:
    """Return the queues to drain: the existing backlog queues or the selected ones of them.

    With `dead_letters`, also returns their dead-letter queues.
    """
    from sbpair.azure.atom import open_atom
    from sbpair.backlog import queue_path
    from sbpair.model.message_state import dead_letter_path
    from sbpair.syphon.sources import find_backlog_queues, none_found

    async def find() -> list[str]:
        async with open_atom(pair.secondary) as control:
            found = (await find_backlog_queues(pair.ends, pair.backlog_queues, control)).queues
        if not found:
            raise none_found(pair.ends)
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
