"""Options of a write and of a read, checked before anything is sent or read. No error repeats an option's value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.backlog import check_path
from sbpair.config import load
from sbpair.config.file import load_namespace
from sbpair.config.setting import SIDES, Flags
from sbpair.errors import NameInvalid, UsageError
from sbpair.model.connection_string import holds_secret
from sbpair.operating_system.files import user_directory
from sbpair.replay.run import NamespaceAccess

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

WRITE_OPTIONS = ("destination", "pair", "side", "namespace", "config", "ledger", "run", "refused", "check", "discard")
OF_SPARK = ("checkpointlocation", "queryname")
"""Options of a stream that Spark passes on."""

FAIL, QUARANTINE, ALLOW = "fail", "quarantine", "allow"


class RowCheck(StrEnum):
    """When rows are checked: before the first message of a job, of a task or of a chunk; or nothing is sent."""

    FULL = "full"
    TASK = "task"
    ROW = "row"
    ONLY = "only"


BATCH_CHECKS = (RowCheck.TASK, RowCheck.ROW, RowCheck.ONLY)
STREAM_CHECKS = (RowCheck.TASK, RowCheck.ROW)
FRAME_CHECKS = (RowCheck.FULL, *BATCH_CHECKS)
"""The values of option check, its default first: of a write, of a stream, and of `sbpair.spark.write`."""

_OF_COMMANDS = re.compile(r"--(pair|config)\b")
_RUN = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`destination` is None if a column has it, `run` None for a run that is never resumed.

    `ledger` is None for a directory of this machine. With `keep_refused` a job succeeds although messages were refused.
    With `allow_discard` messages are sent that no subscription of their topic takes.
    """

    destination: str | None
    access: NamespaceAccess
    ledger: str | None
    run: str | None
    keep_refused: bool
    check: RowCheck = RowCheck.TASK
    allow_discard: bool = False

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        environ: Mapping[str, str],
        checks: Sequence[RowCheck] = BATCH_CHECKS,
    ) -> WriteOptions:
        """Read options, and the configuration that they name. Raises UsageError."""
        given = check_names(options, WRITE_OPTIONS, OF_SPARK)
        refused, run = given.get("refused", FAIL), given.get("run")
        if refused not in (FAIL, QUARANTINE):
            raise UsageError(f"option refused: expected {FAIL} or {QUARANTINE}, got {refused!r}", hint="leave it out")
        if (discard := given.get("discard", FAIL)) not in (FAIL, ALLOW):
            raise UsageError(f"option discard: expected {FAIL} or {ALLOW}, got {discard!r}", hint="leave it out")
        if (check := given.get("check", checks[0])) not in checks:
            raise UsageError(
                f"option check: expected {', '.join(checks[:-1])} or {checks[-1]}, got {check!r}",
                hint="leave it out; sbpair.spark.write checks all rows before the first message",
            )
        if run is not None and not _RUN.fullmatch(run):
            raise UsageError(
                f"option run: {run!r} is not the name of a run", hint="use up to 64 letters, digits, '.', '-' and '_'"
            )
        if (destination := given.get("destination")) is not None:
            check_destination("option destination", destination)
        endpoint = _endpoint(given, environ)
        access = NamespaceAccess.from_endpoint(endpoint, endpoint.key_source or None)
        return cls(
            destination, access, given.get("ledger"), run, refused == QUARANTINE, RowCheck(check), discard == ALLOW
        )


def check_names(options: Mapping[str, str], known: Collection[str], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return options by their names in lower case. Raises UsageError for a secret, an unknown or an empty one."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in ignored}
    for name, value in given.items():
        if holds_secret(value) or re.search("connection_?string|password|secret|access_?key|signature", name):
            raise UsageError(
                f"option {name} holds a secret: Spark keeps options in plans and logs",
                hint="put the connection string into SBPAIR_PRIMARY_CONNECTION_STRING on driver and workers, or into a"
                " variable that the configuration file names",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"option {name} is unknown", hint=f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
            )
        if not value.strip():
            raise UsageError(f"option {name} is empty", hint="give a value, or leave it out")
    return given


def check_destination(place: str, destination: str) -> None:
    """Raise UsageError, naming the place, for a path that Service Bus rejects."""
    try:
        check_path(destination, shorten="name a queue or a topic")
    except NameInvalid as error:
        raise UsageError(f"{place}: {error.message}", hint=error.hint) from None


def default_ledger(environ: Mapping[str, str]) -> str:
    """Return the directory of ledgers on this machine, without creating it."""
    return str(user_directory("state", environ)[0] / "spark")


def _endpoint(given: Mapping[str, str], environ: Mapping[str, str]) -> Endpoint:
    """Return the namespace to send to: `[namespaces.NAME]`, or a side of a pair, by default its primary."""
    config, name, side = given.get("config"), given.get("namespace"), given.get("side", SIDES[0])
    if name is not None and {"pair", "side"} & given.keys():
        raise UsageError("options namespace and pair exclude each other", hint="keep one, and leave out side")
    if side not in SIDES:
        raise UsageError(f"option side: expected primary or secondary, got {side!r}", hint="leave it out for primary")
    flags = Flags(pair=given.get("pair"), config=None if config is None else Path(config))
    try:
        if name is not None:
            return load_namespace(name, flags, environ).endpoint
        pair = load(flags, environ).pair
    except UsageError as error:
        error.message, error.hint = (_OF_COMMANDS.sub(r"option \1", text) for text in (error.message, error.hint))
        error.args = (error.message,)
        raise
    return pair.primary if side == SIDES[0] else pair.secondary
