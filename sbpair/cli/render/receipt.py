"""Receipts of moves as JSON and text, with the commands to go on with; proofs of replays as text."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sbpair.cli.next_command import next_command, way_back
from sbpair.cli.options.moves import MoveTerms
from sbpair.cli.options.selection import Selection
from sbpair.cli.render.screen import Screen, clean, plural, size, some, spoken
from sbpair.cli.render.table import columns, limited, wrapped
from sbpair.model.document import encoded
from sbpair.model.message_state import is_dead_letter_path, parent_path
from sbpair.move.message.dead_letters import NotSentReason
from sbpair.move.message.route import is_routable
from sbpair.move.rate_limit import Limit
from sbpair.move.receipt import BUCKETS, default_ttl_note

if TYPE_CHECKING:
    from sbpair.cli.results.moving import SyphonReceipt
    from sbpair.move.filter import MessageFilter
    from sbpair.syphon.run_result import SyphonResult

ROWS_SHOWN = 40
TEXT_SHOWN = 300
PROOF_BUCKETS = ("acknowledged", "expired", "quarantined", "deduplicated")
OPERATIONS = {
    "received": "to receive and settle",
    "sent": "to send",
    "renewals": "to renew locks",
    "empty_receives": "empty receives",
    "management_calls": "to count and peek",
}

MAX_NUMBERS = 20
"""Messages that a command chooses by their sequence numbers."""

_OF_A_MOVE = frozenset(field.name for group in (MoveTerms, Selection) for field in fields(group)) | {
    *("limit", "reason", "all_subscriptions", "all_backlog", "count", "to_source")
}


@dataclass(frozen=True, slots=True)
class MoveWording:
    """The words of one mover: its command with arguments, and what it leaves messages in.

    `routed` is whether each dead letter names its destination.
    """

    command: tuple[str, ...]
    source: str = "the backlog"
    routed: bool = False


SYPHON = MoveWording(("syphon",))


def receipt_of(result: "SyphonResult", mode: str, words: MoveWording) -> "tuple[SyphonReceipt, Iterator[str]]":
    """Return the receipt of a move that has ended, and its text."""
    from sbpair.cli.results.moving import MoveReceipt, SyphonReceipt

    receipt = encoded(result)
    commands = next_commands(receipt, mode, words)
    made = (SyphonReceipt if words is SYPHON else MoveReceipt)(result, tuple(commands.values()))
    return made, receipt_table(receipt, commands, words)


def receipt_table(receipt: Mapping[str, Any], commands: Mapping[str, str], words: MoveWording) -> Iterator[str]:
    """Yield a receipt as text, with the commands to go on with. Those of earlier versions have fewer keys."""
    kept = receipt.get("kept")
    own = {"sent": "removed", "already_sent": "kept before"} if kept else {}
    names = {name: name.replace("_", " ") for name in ("received", *BUCKETS)} | own
    counted = [(shown, receipt.get(name, 0)) for name, shown in names.items()]
    locked = [("left locked", receipt["locked"])] if receipt.get("locked") else []
    if "received" in receipt:
        yield from columns([("MESSAGES", "COUNT"), *counted, *locked])
    if kept and kept["messages"]:
        yield from wrapped(f"{plural(kept['messages'], 'message')} kept in {kept['file']}, {size(kept['bytes'])}")
    if kept and kept["file"] and kept.get("earlier"):
        yield from wrapped(f"{plural(kept['earlier'], 'message')} kept by an earlier run, removed by this one")
    yield from filter_lines(receipt)
    yield from breakdown(receipt)
    if limit := receipt.get("limit"):
        yield str(Limit(**limit))
    ramp = receipt.get("ramp") or {}
    yield from _named("dead-lettered", receipt.get("dead_letters", ()), _dead_lettered(receipt))
    yield from _named("came back", ramp.get("came_back", ()), ramp.get("came_back_total", 0))
    yield from left_lines(receipt)
    if receipt.get("default_ttl"):
        yield from wrapped(default_ttl_note(receipt["default_ttl"], words.source))
    yield from _named("possible duplicates", receipt.get("doubtful", ()), receipt.get("doubtful_total", 0))
    held = 2 * receipt.get("received", 0) - sum(count for _, count in counted)
    if "seconds" not in receipt and held > 0:
        yield f"{held} held then: in {words.source}, unless they were sent"
    elif not receipt.get("balanced", True):
        yield "the counts do not add up: please report this"
    if "seconds" in receipt:
        ended, left = "was stopped" if receipt["stopped"] else "ended", _left_text(receipt, words)
        yield from wrapped(f"run {receipt['run']} {ended} after {spoken(receipt['seconds'])}{left}")
    for purpose, command in commands.items():
        yield f"{purpose}: {command}"


def _dead_lettered(receipt: Mapping[str, Any]) -> int:
    return int(receipt.get("dead_lettered", 0) + receipt.get("expired", 0))


def _left_text(receipt: Mapping[str, Any], words: MoveWording) -> str:
    """Return how many messages a run left over, and how many of those it has not received; "" if it left none."""
    left = receipt["remaining"]
    if not left:
        return ""
    if not (left["exact"] or left["messages"]):
        return f"; how many messages are left in {words.source} is not known"
    is_told = left["exact"] and receipt.get("backing_off")
    others = left["messages"] - _returned(receipt) - receipt.get("locked", 0) if is_told else 0
    number = f"{'' if left['exact'] else 'at least '}{plural(left['messages'], 'message')}"
    return f"; {number} in {words.source}{f', {others} of them not received' if others > 0 else ''}"


def _returned(receipt: Mapping[str, Any]) -> int:
    """Return how many of the received messages are in their source again; those of earlier versions are not known."""
    ended = ("sent", "expired", "dead_lettered", "skipped")
    return int(receipt.get("distinct", 0)) - sum(int(receipt.get(name, 0)) for name in ended)


def _at_least(receipt: Mapping[str, Any]) -> str:
    """Return `at least ` where the messages left for each destination may be more than those received, else ""."""
    left = receipt.get("remaining") or {"exact": True, "messages": 0}
    is_whole = left["exact"] and left["messages"] <= _returned(receipt)
    return "" if is_whole or "remaining" not in receipt else "at least "


def next_commands(receipt: Mapping[str, Any], mode: str, words: MoveWording) -> dict[str, str]:
    """Return the commands to go on with, by purpose. `mode` is that of the move."""
    commands = {}
    left, failures = receipt.get("remaining") or {}, receipt.get("failures", ())
    if receipt.get("stopped") or failures or left.get("messages"):
        # Each run counts anew: repeated with its limit, it would dead-letter more of what it held.
        held = any(each["held"] and each["dead_lettered"] for each in receipt.get("missing_destinations", ()))
        skipped = any("--max-skipped" in each.get("hint", "") for each in failures)
        without = {"no_wait_for_locks", *(["max_skipped"] if skipped else ())}
        modes = (*([mode] if mode else ()), *(("--max-missing", "0") if held else ()))
        commands["to continue"] = next_command(words.command[0], *words.command[1:], *modes, without=without)
    if destinations := (receipt.get("ramp") or {}).get("destinations"):
        side = words.command[-1].rpartition(":")[0]
        entity = f"{side}:{destinations[0]}" if side else destinations[0]
        commands["to see the dead letters"] = next_command("redrive", entity, "--by-reason", without=_OF_A_MOVE)
    if dead_letters := _dead_lettered(receipt):
        commands["to send the dead letters"] = way_back(dead_letters)
    stayed = receipt.get("stayed", ())
    unroutable = [each for each in stayed if words.routed and not is_routable(each["destination"])]
    if unroutable:
        commands |= _ways_of_unroutable(unroutable, words)
    return commands


def warnings_of(receipt: Mapping[str, Any], words: MoveWording) -> Iterator[str]:
    """Yield missing destinations and failed queues, each with the next step."""
    for each in receipt.get("missing_destinations", ()):
        name, held = each["destination"], f"{_at_least(receipt)}{each['held']} left in {words.source}"
        if each["held"] and words.source != SYPHON.source:
            yield f"{name} does not exist: {held}; create it, run again"
        elif each["held"]:
            dead, place = plural(each["dead_lettered"], "message"), receipt["to"] or "primary"
            missing = f"{name} does not exist in the {place} namespace: {dead} dead-lettered, {held}"
            yield f"{missing}; create it and run again, or add --allow-missing"
    failures: dict[tuple[str, str], list[str]] = {}
    for each in receipt.get("failures", ()):
        failures.setdefault((each["reason"], each.get("hint", "")), []).append(each["queue"])
    for (reason, hint), queues in failures.items():
        yield f"{queues[0]}{f' and {len(queues) - 1} more' if len(queues) > 1 else ''}: {reason}; {hint}"


def _ways_of_unroutable(messages: Sequence[Mapping[str, Any]], words: MoveWording) -> dict[str, str]:
    """Return the commands for dead letters that no alias gives a way: those of one queue."""
    queue = messages[0]["queue"]
    numbers = [str(each["sequence_number"]) for each in messages if each["queue"] == queue]
    by_reason = ("--where", f"reason = '{NotSentReason.INVALID}'")
    is_dead = is_dead_letter_path(queue)
    few = len(numbers) <= MAX_NUMBERS or not is_dead
    chosen = ("--sequence", ",".join(numbers[:MAX_NUMBERS])) if few else by_reason
    entity = words.command[1] if len(words.command) > 1 else parent_path(queue)
    these = (*(["--dead-letters"] if is_dead else ()), *chosen)
    return {
        "to see those without a destination": next_command("peek", entity, *these, "--body", without=_OF_A_MOVE),
        "to choose their destination": next_command(
            "move", entity, "QUEUE", *these, without=_OF_A_MOVE - {"state", "lease", "no_lease"}
        ),
    }


def _named(heading: str, messages: Collection[Mapping[str, Any]], total: int) -> Iterator[str]:
    """Yield one line for each reason, with the first few ids. JSON has more of them, but not all of very many."""
    is_cut = total > len(messages)
    by_reason: dict[str, list[str]] = {}
    for each in messages:
        by_reason.setdefault(each["reason"], []).append(str(each["message_id"] or each["sequence_number"]))
    for reason, ids in by_reason.items():
        number = f"{'at least ' if is_cut else ''}{plural(len(ids), 'message')}"
        yield from wrapped(clean(f"{heading}: {number} ({some(ids)}): {reason}"))
    if is_cut:
        yield f"{heading}: {total} in all"


def breakdown(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield tables of queues and destinations without empty columns, and a line of operations.

    An earlier version may have stored the receipt with fewer keys.
    """
    if queues := _counted("QUEUE", receipt.get("queues", {}), ("received", *BUCKETS)):
        yield ""
        yield from limited(queues, ROWS_SHOWN)
    destinations = {name: {"sent": number} for name, number in receipt.get("destinations", {}).items()}
    for each in receipt.get("missing_destinations", ()):
        destinations.setdefault(each["destination"], {})["dead_lettered"] = each["dead_lettered"]
    if counted := _counted("DESTINATION", destinations, ("sent", "dead_lettered")):
        yield ""
        yield from limited(counted, ROWS_SHOWN)
    if renumbered := receipt.get("renumbered"):
        yield ""
        yield from limited(_numbers(renumbered), ROWS_SHOWN)
        if unknown := sum(each["new_number"] is None for each in renumbered):
            yield from wrapped(
                f"{plural(unknown, 'new number')} unknown, as of messages that are sent: peek shows them"
            )
    for session, numbers in list(receipt.get("session_states", {}).items())[:ROWS_SHOWN]:
        yield from wrapped(clean(f"the state of session {session} has old numbers: {some(numbers)}"))
    if ramp := receipt.get("ramp"):
        yield ""
        yield from limited(list(_ramp_rows(ramp)), ROWS_SHOWN)
    if spent := receipt.get("operations"):
        parts = ", ".join(f"{spent[name]} {text}" for name, text in OPERATIONS.items() if spent.get(name))
        yield ""
        yield from wrapped(f"billable operations: {spent.get('by_sbpair', 0)}{f' ({parts})' if parts else ''}")


def _numbers(messages: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return a table of old and new sequence numbers; without new ones if none is known."""
    names = ["sequence_number", "new_number", "message_id"]
    if not any(each["new_number"] for each in messages):
        names.remove("new_number")
    titles = {"sequence_number": "OLD NUMBER", "new_number": "NEW NUMBER", "message_id": "ID"}
    return [tuple(map(titles.get, names)), *(tuple(each[name] or "-" for name in names) for each in messages)]


def _ramp_rows(ramp: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield a table of the steps of a ramp; those not begun have only their total."""
    yield "STEP", "TOTAL", "SENT", "OBSERVED", "CAME BACK"
    for at, total in enumerate(ramp["totals"]):
        step = ramp["steps"][at] if at < len(ramp["steps"]) else None
        figures = ("", "", "") if step is None else (step["sent"], spoken(step["observed_seconds"]), step["came_back"])
        yield at + 1, total, *figures


def filter_lines(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the choice of the filter of a receipt or a forecast, if it had one."""
    if where := counts.get("where"):
        text = _cut(where["text"])
        whole = plural(counts.get("received", where["chosen"] + where["skipped"]), "message")
        yield from wrapped(clean(f"matched {where['chosen']} of {whole}: {text}"))


def stayed_lines(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield why messages stayed in their source, like reasons together: those of a time up to the latest one."""
    groups: dict[str, tuple[list[object], set[str]]] = {}
    for each in receipt.get("stayed", ()):
        reason, until, at = str(each["reason"]).partition(" until ")
        ids, ends = groups.setdefault(reason, ([], set()))
        ids.append(each["message_id"] or each["sequence_number"])
        ends.add(until + at)
    for reason, (ids, ends) in groups.items():
        yield from wrapped(clean(f"stayed: {plural(len(ids), 'message')} ({some(ids)}): {reason}{max(ends)}"))


def backing_off_lines(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each destination that took no more: why, what to do, and how many messages were left."""
    found = receipt.get("backing_off", ())
    for each in found[:ROWS_SHOWN]:
        reason, hint = _cut(str(each["reason"])), each["hint"] or "run again later"
        left = f"{_at_least(receipt)}{plural(each['messages'], 'message')} left"
        yield from wrapped(clean(f"{_cut(each['destination'])} took no more: {reason}; {hint}; {left}"))
    more = receipt.get("backing_off_total", 0) - min(len(found), ROWS_SHOWN)
    if more > 0:
        yield f"… and {plural(more, 'destination')} more took no more"


def left_lines(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run left where it was, and what topics discarded."""
    yield from stayed_lines(receipt)
    yield from backing_off_lines(receipt)
    for text in discards(receipt):
        yield from wrapped(text)


def discards(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each topic that was sent messages which no subscription takes, or perhaps none does."""
    sent = receipt.get("destinations", {})
    for destination, number in list(receipt.get("discarded", {}).items())[:ROWS_SHOWN]:
        of_all = max(number, sent.get(destination, 0))
        yield clean(f"discarded: {number} of {of_all} for {_cut(destination)} match no subscription")
    for destination, number in list(receipt.get("not_evaluated", {}).items())[:ROWS_SHOWN]:
        yield clean(
            f"{plural(number, 'message')} for {_cut(destination)}: whether a subscription takes them is not known"
        )
    if why := receipt.get("topics_unchecked"):
        yield clean(f"subscriptions of topics were not checked: {_cut(why)}")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[: TEXT_SHOWN - 1]}…"


def warn_of_failures(screen: Screen, where: "MessageFilter | None") -> None:
    """Warn of messages for which a filter could not be calculated, and of its likely mistakes."""
    for doubt in where.doubts() if where is not None else ():
        screen.warn(doubt)
    if where is not None and where.failures:
        failed = plural(where.failures, "message")
        screen.warn(f"the filter could not be calculated for {failed}, which did not match; {where.first_failure}")


def stream_lines(proof: Mapping[str, Any]) -> Iterator[str]:
    """Yield the proof of a stream as text."""
    yield f"stream {proof['run']}"
    yield f"{plural(proof['archived'], 'message')} in {plural(proof['segments'], 'file')}, {proof['copies']} twice"
    if collected := proof.get("collected"):
        yield f"{plural(collected, 'row')} deleted by gc"


def proof_lines(proof: Mapping[str, Any]) -> Iterator[str]:
    """Yield the proof of a replay as text, the equation first."""
    yield f"run {proof['run']}"
    whole, rest = ("archived", "unsent") if proof["mode"] == "archive" else ("received", "in_doubt")
    yield from wrapped(
        f"{whole} {proof[whole]} = "
        + " + ".join(f"{proof[bucket]} {bucket}" for bucket in PROOF_BUCKETS)
        + (f" + {proof[rest]} {rest.replace('_', ' ')}" if proof[rest] else "")
    )
    destinations = {name: {"acknowledged": number} for name, number in proof["destinations"].items()}
    namespaces = {name: {"acknowledged": number} for name, number in proof.get("namespaces", {}).items()}
    tables = (("QUEUE", proof["queues"]), ("DESTINATION", destinations), ("NAMESPACE", namespaces))
    for heading, rows in tables if len(namespaces) > 1 else tables[:2]:
        if counted := _counted(heading, rows, next(iter(rows.values()), ())):
            yield ""
            yield from columns(counted)
    for reason, number in proof["reasons"].items():
        yield from wrapped(clean(f"{number} not sent: {reason}"))
    if named := proof["doubtful"]:
        ids = [each["message_id"] or each["sequence_number"] for each in named]
        yield from wrapped(
            clean(f"possible duplicates: {proof['doubtful_total']} ({some(ids, more=proof['doubtful_total'] > 3)})")
        )
        for reason, number in Counter(each["reason"] for each in named if "reason" in each).items():
            yield from wrapped(clean(f"{number} of these were {reason}"))
    for queue, number in proof["remaining_in_queues"].items():
        yield from wrapped(clean(f"{number} remain in {queue}: locked, or deferred"))
    if released := proof.get("released"):
        yield f"{released} were received and released again"
    for path in proof["unreadable"]:
        yield f"{path} cannot be read: it would name possible duplicates"
    for note in proof.get("notes", ()):
        yield from wrapped(clean(note))
    yield from _contradictions(proof)


def _contradictions(proof: Mapping[str, Any]) -> Iterator[str]:
    if repeated := proof.get("unexplained_copies"):  # receipts of earlier versions do not have it
        yield f"{repeated} messages are twice in segments without a crash: please report this"
    if proof["contradictions"] or proof["unknown"]:
        yield "the files contradict each other: please report this"


def _counted(heading: str, rows: Mapping[str, Mapping[str, int]], names: Iterable[str]) -> list[tuple[object, ...]]:
    """Return a table of counts without rows and columns of zeros; [] if all are 0."""
    shown = {key: counts for key, counts in rows.items() if any(counts.values())}
    used = [name for name in names if any(counts.get(name) for counts in shown.values())]
    titles = (heading, *(name.upper().replace("_", " ") for name in used))
    return [titles, *((key, *(counts.get(name, 0) for name in used)) for key, counts in shown.items())] if shown else []
