"""The answers of a command for all pairs of the configuration file: asked together, and printed a line for each."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from sbpair.cli.next_command import about_pair, with_options
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.config import Profile
from sbpair.errors import ExitCode, SbpairError

Document = TypeVar("Document")
GRAVEST = (
    *(ExitCode.BUG, ExitCode.UNSAFE, ExitCode.ACCESS, ExitCode.MACHINE, ExitCode.UNAVAILABLE, ExitCode.USAGE),
    *(ExitCode.INTERRUPTED, ExitCode.PARTIAL_OR_FINDINGS, ExitCode.DONE),
)
AT_ONCE = 8
"""The number of pairs that are asked at the same time: each may open a hundred links."""


class PairAnswer(NamedTuple):
    """The cells of a pair in a table, its documents as for it alone, and why it is not well; or its error."""

    pair: str
    exit_code: int
    cells: Sequence[object] = ()
    documents: Sequence[object] = ()
    error: SbpairError | None = None
    failures: Sequence[SbpairError] = ()


class PairEntry(NamedTuple, Generic[Document]):
    """A pair of the file."""

    pair: Annotated[str, "Its name"]
    exit_code: Annotated[int, "Its exit code; the gravest one is that of the command"]
    reason: Annotated[str, "Why it has no document, or no further one; may be empty"]
    hint: Annotated[str, "What to do about that; may be empty"]
    documents: Annotated[
        tuple[Document, ...], "What the command for this pair alone prints; one for each run of a syphon"
    ]


async def ask_all(
    profiles: Mapping[str, Profile | SbpairError], ask: Callable[[str, Profile], Awaitable[PairAnswer]]
) -> list[PairAnswer]:
    """Return the answer for each pair. A failure of one is its own answer."""
    free = asyncio.Semaphore(AT_ONCE)

    async def answer(name: str, profile: Profile | SbpairError) -> PairAnswer:
        with about_pair(name):
            try:
                if isinstance(profile, SbpairError):
                    raise profile
                async with free:
                    return await ask(name, profile)
            except SbpairError as error:
                return PairAnswer(name, error.exit_code, error=error)

    return await asyncio.gather(*(answer(*each) for each in profiles.items()))


def pair_lines(titles: Sequence[str], answers: Sequence[PairAnswer]) -> list[str]:
    """Return a table with a line for each pair; the last of its titles is that of notes, and errors."""
    gaps = [""] * (len(titles) - 1)
    cells = (each.cells or (*gaps, each.error.message if each.error else "") for each in answers)
    return columns([("PAIR", *titles), *((each.pair, *own) for each, own in zip(answers, cells, strict=True))])


def pair_entries(answers: Sequence[PairAnswer]) -> tuple[PairEntry[Any], ...]:
    """Return what is printed of each pair."""
    entries = []
    for pair, code, _, documents, error, _ in answers:
        with about_pair(pair):
            reason, hint = (error.message, with_options(error.hint)) if error else ("", "")
        entries.append(PairEntry(pair, code, reason, hint, tuple(documents)))
    return tuple(entries)


def print_answers(
    screen: Screen, kind: Callable[[Any], object], lines: Sequence[str], answers: Sequence[PairAnswer]
) -> int:
    """Print the answers, as `lines` or as a document of that kind. Returns the gravest exit code."""
    screen.show(kind(pair_entries(answers)), lines)
    for each in answers:
        with about_pair(each.pair):
            screen.hints([each.error] if each.error else each.failures)
    return min((each.exit_code for each in answers), key=GRAVEST.index)
