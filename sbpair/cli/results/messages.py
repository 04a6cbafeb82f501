"""Results of `sbpair peek`, `receive`, `deadletters`, `sessions` and `redrive --by-reason`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from sbpair.message_io.message_json import Peeked, ReceiveCounts, Received, RenderedMessage
from sbpair.message_io.peek import DeadLetterCount
from sbpair.message_io.session_states import CountedSession
from sbpair.model.document import SPREAD, TIME, UNLESS_NONE, document
from sbpair.move.receipt import KeptRecord

QUEUE = {"examples": ["contoso/x-servicebus-transfer/0"]}


class PeekedTotal(NamedTuple):
    """The number of messages, beside the peeked ones."""

    total: Annotated[int | None, "About how many messages there are; null if unknown"]
    complete: Annotated[bool, "Whether no more messages follow"]


@document("sbpair/peek/1", "messages")
class PeekedMessages:
    """Peeked messages, with bodies if --body was given. JSON Lines have one message each."""

    namespace: Annotated[str, "Name of the namespace"]
    side: Annotated[str, "The namespace's side: primary, secondary, or its own name"]
    entity: Annotated[str, "Queue, subscription or dead-letter queue"]
    total: Annotated[PeekedTotal, SPREAD]
    messages: Annotated[list[Peeked], "Messages"]


@document("sbpair/peek-end/1")
class PeekEnd:
    """The last line of peek --max all -o jsonl: send refuses a file whose lines before it are others."""

    messages: Annotated[int, "Number of lines before it"]
    sha256: Annotated[str, "SHA-256 of the lines before it, each with a line feed, in hexadecimal"]


@document("sbpair/receive/1", "messages")
class ReceivedMessages:
    """Received or peeked messages. JSON Lines have one message each."""

    entity: Annotated[str, "Queue, or topic with subscription"]
    messages: Annotated[list[Received], "Messages"]
    counts: Annotated[ReceiveCounts, SPREAD]
    removed: Annotated[bool, "Whether messages are removed, so with --remove"]
    total: Annotated[PeekedTotal | None, SPREAD] = None
    locked: Annotated[
        int | None, "Messages that another receiver has locked, or just sent ones, with --remove", UNLESS_NONE
    ] = None
    kept: Annotated[KeptRecord | None, "Removed messages, and where they are", UNLESS_NONE] = None


@document("sbpair/remove-preview/1")
class RemovePreview:
    """The count of sbpair remove --dry-run, with the messages that other receivers have locked now."""

    namespace: Annotated[str, "Name of the namespace"]
    entity: Annotated[str, "Queue, subscription or dead-letter queue"]
    messages: Annotated[int, "Messages that would be removed"]
    bytes: Annotated[int, "Their encoded size"]
    oldest_at: Annotated[str | None, "When the first of them was enqueued; null for none"]
    newest_at: Annotated[str | None, "When the last of them was enqueued; null for none"]
    keep: Annotated[str | None, "File to which they would be written; null with --no-keep"]


class DeadLetterMessage(NamedTuple):
    """A dead letter."""

    queue: Annotated[str, "Path of the queue or subscription", QUEUE]
    message: Annotated[RenderedMessage[None], SPREAD]


@document("sbpair/deadletters-show/1", "messages")
class ShownDeadLetters:
    """Dead letters. JSON Lines have one message each."""

    total: Annotated[PeekedTotal, SPREAD]
    messages: Annotated[list[DeadLetterMessage], "Messages"]


class ListedDeadLetters(NamedTuple):
    """Dead letters of an entity with one reason and destination."""

    group: Annotated[DeadLetterCount, SPREAD]

    @property
    def queue(self) -> Annotated[str, "Path of the queue or subscription", QUEUE]:
        return self.group.queue


class DeadLetterTotal(NamedTuple):
    """The dead letters of some groups."""

    messages: Annotated[int, "All dead letters, at least so many if exact is false"]
    exact: Annotated[bool, "Whether messages is exact"]

    @classmethod
    def of(cls, groups: Sequence[DeadLetterCount]) -> Self:
        return cls(sum(each.messages for each in groups), all(each.exact for each in groups))


@document("sbpair/deadletters-list/1", "groups")
class DeadLetterList:
    """Dead letters by queue or subscription, reason and destination. JSON Lines have one group each."""

    total: Annotated[DeadLetterTotal, SPREAD]
    groups: Annotated[list[ListedDeadLetters], "Groups"]


def dead_letter_list(groups: Sequence[DeadLetterCount]) -> DeadLetterList:
    return DeadLetterList(DeadLetterTotal.of(groups), list(map(ListedDeadLetters, groups)))


@document("sbpair/redrive-reasons/1", "groups")
class RedriveReasons:
    """The dead letters of one entity by reason, and destination if aliases name one. JSON Lines have one group each."""

    entity: Annotated[str, "Path of the dead-letter queue"]
    total: Annotated[DeadLetterTotal, SPREAD]
    groups: Annotated[list[DeadLetterCount], "Groups"]


@document("sbpair/sessions/1", "sessions")
class SessionList:
    """The sessions of an entity. JSON Lines have one session each."""

    namespace: Annotated[str, "Name of the namespace"]
    side: Annotated[str, "The namespace's side: primary, secondary, or its own name"]
    entity: Annotated[str, "Queue, subscription or dead-letter queue"]
    complete: Annotated[bool, "Whether all messages were peeked"]
    sessions: Annotated[tuple[CountedSession, ...], "Sessions, the longest waiting first"]


@document("sbpair/session-state/1")
class ShownSessionState:
    """The state of a session, also as a line of the file of --keep."""

    time: Annotated[str, "Time of the reading, in UTC", TIME]
    namespace: Annotated[str, "Name of the namespace"]
    entity: Annotated[str, "Queue or subscription"]
    session_id: Annotated[str, "Id of the session"]
    state: Annotated[str | None, "State as text; null for none, or if state_base64 is present"]
    state_base64: Annotated[str | None, "State that is not UTF-8, in base64", UNLESS_NONE] = None
    kept: Annotated[Path | None, "File that has it, after --clear", UNLESS_NONE] = None
