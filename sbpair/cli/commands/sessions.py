"""`sbpair sessions`: runs `sbpair.message_io.session_states`, and prints sessions and their states."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options.common import RunSelection, argument, flag, kept_path, option, peek_option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.screen import Screen, clean, plural, size
from sbpair.cli.render.table import LEGEND, columns, sampled
from sbpair.model.document import encoded
from sbpair.model.pair import Side

if TYPE_CHECKING:
    from sbpair.move.kept_file import KeptFile
    from sbpair.syphon.move_ends import EntityAddress

PEEK = 10_000
KEPT = "kept-session-states.jsonl"


def command(
    *,
    entity: str = argument("QUEUE", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME", complete=backlog_queues),
    side: Side | None = option("--side SIDE", "primary or secondary [default: primary]", excludes="--namespace"),
    peek: int = peek_option(PEEK),
    show: str | None = option("--show ID", "Print the state of this session", excludes=("--clear", "--peek")),
    clear: str | None = option("--clear ID", "Clear the state of this session", excludes="--peek"),
    keep: Path | None = option(
        "--keep FILE",
        f"Append the state to this file first [default: {KEPT} in --state]",
        needs="--clear",
        parse=kept_path,
    ),
    yes: bool = flag("--yes -y", "Clear without asking", needs="--clear"),
    connection: RunSelection,
    screen: Screen,
) -> int:
    """List the sessions of a queue or subscription; show or clear the state of one.

    Counts messages by a peek, which locks nothing; a number with ~ is at least so much. LOCKED is yes while a receiver
    holds the session. A state can be read under the session's lock only: --show and --clear take it for a moment, and
    are refused while another receiver has it. Messages stay. A new file of --keep can be read by you alone; it has the
    state, on disk, before that is cleared. Needs Listen.

    Examples:
      sbpair sessions orders
      sbpair sessions orders --show customer-4711
      sbpair sessions orders --clear customer-4711 --keep states.jsonl

    Exit codes: 2 no such entity or session; 3 another receiver holds it; 4 not confirmed; 7 --keep cannot be written

    See also: sbpair help runbook
    """
    reach = reach_of(connection, screen, state=connection.state)
    address = reach.address(entity, side=side)
    if show is not None:
        return _take(screen, address, show, None)
    if clear is None:
        return _list(screen, address, peek)
    file = keep or reach.owner(address).directory / KEPT
    if not yes and not screen.asks(
        f"Append the state of session {clear} of {address.path} to {file}, and clear it?", after_table=False
    ):
        raise not_confirmed("cleared", next_command("sessions", address, "--clear", clear, "--yes"))
    from sbpair.move.kept_file import KeptFile

    with KeptFile(file, encoded, makes_directory=keep is None) as kept:
        return _take(screen, address, clear, kept)


def _list(screen: Screen, address: "EntityAddress", peek: int) -> int:
    from sbpair.cli.results.messages import SessionList
    from sbpair.message_io.session_states import count_sessions

    with PeekProgress(screen) as progress:
        sessions, complete = run(
            count_sessions(address.alone, address.path, limit=peek, on_event=progress), address.endpoint
        )
    rows = [
        (
            *(each.session_id, sampled(each.messages, exact=complete)),
            *("" if at is None else utc(at / 1000) for at in (each.first_ms, each.last_ms)),
            {True: "yes", False: "no", None: ""}[each.locked],
        )
        for each in sessions
    ]
    table = columns([("SESSION", "MESSAGES", "FIRST", "LAST", "LOCKED"), *rows], optional=("LAST",)) if rows else []
    place = (address.endpoint.name, address.side, address.path)
    screen.show(SessionList(*place, complete, tuple(sessions)), table)
    if not complete:
        screen.say(f"{LEGEND}; --peek all counts all")
    screen.say(plural(len(sessions), "session") if sessions else "no sessions with messages or a state")
    return 0


def _take(screen: Screen, address: "EntityAddress", session_id: str, file: "KeptFile | None") -> int:
    """Print the state of a session. With a `file`, append the state to it, and then clear that."""
    from sbpair.cli.results.messages import ShownSessionState
    from sbpair.message_io.message_fields import text_or_base64
    from sbpair.message_io.session_states import take_state

    def shown(state: bytes | None, kept: Path | None = None) -> ShownSessionState:
        text, in_base64 = (None, None) if state is None else text_or_base64(state)
        return ShownSessionState(utc(None), address.endpoint.name, address.path, session_id, text, in_base64, kept)

    def keep(state: bytes) -> None:
        if file is not None:
            file.append(json.dumps(encoded(shown(state))).encode() + b"\n")

    state = run(take_state(address.endpoint, address.path, session_id, keep if file else None), address.endpoint)
    found = shown(state, file.path if file is not None and state is not None else None)
    is_binary = f"({size(len(state or b''))}, not text; -o json has it in base64)"
    screen.show(found, map(clean, [is_binary] if found.state_base64 else str(found.state or "").splitlines()))
    if state is None:
        screen.say(f"session {session_id} of {address.path} has no state")
    elif file is not None:
        screen.say(f"cleared; {file.id} has its {size(len(state))}")
    return 0
