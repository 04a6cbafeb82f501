"""What the commands of a replay share: options, and the backlog queues that they mean."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.errors import UsageError

if TYPE_CHECKING:
    import asyncio

    from sbpair.model.pair import Pair
    from sbpair.replay.archive import Archive


class DedupOption(StrEnum):
    KEY = "key"
    MESSAGE_ID = "message-id"
    REPORT = "report"


ArchiveUrl = Annotated[
    str,
    typer.Option(
        "--archive", metavar="PATH|URL", help="Where the messages are kept, bodies and all: a directory, or s3://…"
    ),
]

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id")]

OnlyQueues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME|INDEX", help="Only this backlog queue; may be repeated (all)"),
]

DeadLetters = Annotated[
    bool, typer.Option("--deadletters", help="Bring back what is dead-lettered in the backlog queues too")
]

Destinations = Annotated[
    list[str] | None,
    typer.Option("--destination", metavar="NAME", help="Send only what is for this one; may be repeated (all)"),
]

WhatIsOnce = Annotated[
    DedupOption,
    typer.Option(
        "--dedup",
        metavar="key|message-id|report",
        help="What is sent once: what is the same message; or what has the same message id and destination too; or"
        " only count that (key)",
    ),
]

AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Quarantine what is for queues or topics that are not there")
]


def opened(url: str, run_id: str) -> "Archive":
    """A run's archive. Raises MachineLacks where there is nothing to read it with."""
    from sbpair.replay.java import check_packages

    check_packages("pyarrow")
    from sbpair.replay.archive import Archive

    return Archive(url, run_id)


def backlog(pair: "Pair", chosen: list[str] | None, *, deadletters: bool) -> list[str]:
    """What is to be emptied: the chosen backlog queues, and their dead letters where these are asked for."""
    from sbpair.move.message.dead_letters import dead_letter_path

    queues = _queues(pair, chosen or [])
    return queues + list(map(dead_letter_path, queues)) if deadletters else queues


def _queues(pair: "Pair", chosen: list[str]) -> list[str]:
    """The backlog queues that are there, or those of them that were asked for."""
    from sbpair.backlog import queue_path

    async def look(_stop: "asyncio.Event") -> list[str]:
        from sbpair.azure.atom import open_atom
        from sbpair.move import backlog_queues

        async with open_atom(pair.secondary) as control:
            found = (await backlog_queues.find(pair, control)).queues
        if not found:
            raise backlog_queues.none_there(pair)
        return list(found)

    there = {queue.lower(): queue for queue in run(look)}
    paths = [queue_path(pair.primary.name, int(each)) if each.isdecimal() else each for each in chosen]
    for each, path in zip(chosen, paths, strict=True):
        if path.lower() not in there:
            some = ", ".join(list(there.values())[:3])
            raise UsageError(f"--queue {each}: {pair.secondary.name} has no such backlog queue", hint=f"it has {some}")
    return [there[path.lower()] for path in dict.fromkeys(paths)] or list(there.values())
