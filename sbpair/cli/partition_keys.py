"""What `sbpair partition key` shows: messages explained as JSON and as rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sbpair.cli.message_file import Read
from sbpair.cli.output import Document, clean, columns
from sbpair.partition_key import Decider, Entity, Explained, Finding, explain, refused_together
from sbpair.report import DONE, PARTIAL_OR_FINDINGS

SCHEMA = "sbpair/partition-key/1"


@dataclass(frozen=True, slots=True)
class Looked:
    """Messages with the lines where they begin; `together` is None where no transaction was looked at."""

    messages: tuple[tuple[int, Explained], ...]
    together: tuple[Finding, ...] | None


def look(read: Sequence[Read], entity: Entity, *, together: bool) -> Looked:
    """Explain what was read."""
    explained = tuple((each.line, explain(each.message, entity)) for each in read)
    return Looked(explained, refused_together([each.message for each in read], entity) if together else None)


def exit_code(looked: Looked) -> int:
    """3 where a message, or all of them as one transaction, would be refused."""
    refused = any(each.findings for _line, each in looked.messages) or looked.together
    return PARTIAL_OR_FINDINGS if refused else DONE


def document(looked: Looked) -> Document:
    """The JSON contract."""
    return {"schema": SCHEMA, "messages": list(_messages(looked)), "transaction": _transaction(looked)}


def lines(looked: Looked) -> Iterator[Document]:
    """The same, a line a message and one for the transaction."""
    for message in _messages(looked):
        yield {"schema": SCHEMA, **message}
    if looked.together is not None:
        yield {"schema": SCHEMA, "transaction": _transaction(looked)}


def table(looked: Looked) -> Iterator[str]:
    """The same, for people."""
    if looked.messages:
        rows = [_row(number, line, each) for number, (line, each) in enumerate(looked.messages, 1)]
        yield from columns([("MESSAGE", "LINE", "DECIDED BY", "KEY", "REFUSED, BECAUSE"), *rows])
    if looked.together is not None and looked.messages:
        if not looked.together:
            yield "one transaction: would be accepted"
        for finding in looked.together:
            yield clean(f"one transaction: refused: {finding.text}")


def _messages(looked: Looked) -> Iterator[dict[str, object]]:
    for number, (line, each) in enumerate(looked.messages, 1):
        said = {"decided_by": each.decided_by, "key": each.key, "findings": _findings(each.findings)}
        yield {"number": number, "line": line, **said}


def _transaction(looked: Looked) -> dict[str, object] | None:
    if looked.together is None:
        return None
    findings = _findings(looked.together)
    return {"messages": len(looked.messages), "accepted": not findings, "findings": findings}


def _findings(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [{"problem": each.problem, "text": each.text} for each in findings]


def _row(number: int, line: int, each: Explained) -> tuple[object, ...]:
    key = "" if each.key is None else each.key
    if each.decided_by is Decider.MESSAGE_ID and each.key is None:
        key = "(given when it is sent)"
    decided_by = each.decided_by.replace("_", " ")
    return number, line, decided_by, key, "; ".join(finding.text for finding in each.findings)
