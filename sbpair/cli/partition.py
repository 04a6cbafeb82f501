"""`sbpair partition`: options into calls of `sbpair.partition`, and what they answer into output."""

from typing import Annotated

import typer

from sbpair.cli import message_file, partition_keys
from sbpair.cli.help import Command, Group
from sbpair.cli.options import Display, options
from sbpair.cli.output import Screen
from sbpair.partition_key import Entity

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None)


@app.callback()
def partition() -> None:
    """Create partitioned queues and topics, list them, and explain partition keys.

    A partitioned entity goes on while a part of it is away, and holds more: 16 partitions of the chosen size in a
    Standard namespace. In Premium it is the namespace that is in partitions, and an entity has the chosen size in all.
    """


@app.command("key", cls=Command)
@options
def key(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Messages in JSON or JSON lines; - is stdin")],
    sessions: Annotated[bool, typer.Option("--sessions", help="The entity requires sessions")] = False,
    duplicate_detection: Annotated[
        bool, typer.Option("--duplicate-detection", help="The entity detects duplicates, so that a message id counts")
    ] = False,
    no_transaction: Annotated[
        bool, typer.Option("--no-transaction", help="The messages are sent each by itself: look at no transaction")
    ] = False,
    display: Display,
) -> int:
    """Explain by which property a partitioned entity places each message, and what would be refused.

    The session id decides; without one the partition key; without either the message id, but only where duplicates are
    detected; else the service takes one partition after the other, and passes over those that are away. A message with
    a key fails while its partition is away. No namespace is asked, and which partition it is, only the service knows.

    A message is an object with session_id, partition_key and message_id, or some of them, also as the SDKs of other
    languages spell them. All of FILE's are also looked at as one transaction, which needs one key for all.

    JSON; "key" is null where there is none, or where the message id is not given yet:

      {"schema": "sbpair/partition-key/1", "messages": [{"number": 1, "line": 1, "decided_by": "session_id",
       "key": "", "findings": [{"problem": "", "text": ""}]}], "transaction": {"messages": 1,
       "accepted": true, "findings": []}}

    "decided_by" is session_id, partition_key, message_id or round_robin; "problem" is keys_conflict, session_missing,
    too_long or no_text, and of a transaction refused_message, too_many, no_key, different_keys or different_sessions.

    Exit codes: 0 nothing would be refused; 2 FILE cannot be read as messages; 3 something would be refused.
    """
    screen = Screen(display)
    place = "stdin" if file == message_file.STDIN else file
    read = message_file.read(message_file.text_of(file), place)
    for each in read:
        for name, meant in each.slips:
            screen.warn(f"{place}, line {each.line}: {name!r} counts for nothing; is {meant} meant?")
    found = partition_keys.look(read, Entity(sessions, duplicate_detection), together=not no_transaction)
    screen.result(partition_keys.document(found), partition_keys.lines(found), partition_keys.table(found))
    return partition_keys.exit_code(found)
