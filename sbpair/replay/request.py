"""A request to start or resume a run, and the checks that need neither Java nor a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.errors import Unsafe, UsageError
from sbpair.move.message import dead_letters
from sbpair.replay.archive import Archive
from sbpair.replay.run import DedupMode, NamespaceAccess, ReplayMode, ReplayOptions
from sbpair.replay.spark import check_speculation, is_local_master, local_parallelism

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.model.pair import Pair


@dataclass(frozen=True)
class ReplayRequest:
    """The parameters of a start or resume.

    `variables` are the environment variables with the keys of primary and secondary, if any. `tasks` is how many may
    run at once; None for as many as a local master runs. `lease` excludes other movers of this machine, and
    `lease_queue` names the queue that excludes those of other machines. `package` is a zip of sbpair for executors.
    """

    pair: Pair
    archive: str
    variables: tuple[str | None, str | None]
    state: Path
    master: str = "local[2,4]"
    tasks: int | None = None
    shared_archive: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    lease: bool = True
    lease_queue: str | None = None
    verbose: bool = False
    package: str | None = None

    @property
    def parallelism(self) -> int:
        return self.tasks or local_parallelism(self.master) or 2

    def access(self) -> tuple[NamespaceAccess, NamespaceAccess]:
        """Return how tasks reach primary and secondary. Raises UsageError for a key in no environment variable."""
        pair, (primary, secondary) = self.pair, self.variables
        from_endpoint = NamespaceAccess.from_endpoint
        return from_endpoint(pair.primary, primary), from_endpoint(pair.secondary, secondary)

    def check(self) -> None:
        """Raise Unsafe or UsageError for mistakes that show before Java starts."""
        check_speculation(self.settings.get("spark.speculation", "false"))
        remote = not is_local_master(self.master)
        if remote and Archive(self.archive, "probe").is_local and not self.shared_archive:
            raise Unsafe(
                f"the archive {self.archive} is a directory of this machine, and {self.master} runs on others",
                hint="pass --shared-archive if all mount it at that path, or name a URL such as s3://bucket/backlog",
            )
        self.access()


def check_direct(options: ReplayOptions, queues: Sequence[str]) -> None:
    """Raise UsageError for options that a direct run does not support."""
    if options.mode is not ReplayMode.DIRECT:
        return
    unsupported = {
        f"--dedup {options.dedup}": options.dedup is not DedupMode.KEY,
        "--destination": bool(options.selection.destinations),
        "--where": options.selection.where is not None,
        "--dead-letters": any(map(dead_letters.is_dead_letter_path, queues)),
    }
    for name, given in unsupported.items():
        if given:
            raise UsageError(
                f"{name} cannot be combined with --mode direct",
                hint="a direct run sends each message as it comes: leave it out, or use --mode archive",
            )
