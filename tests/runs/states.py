"""A pair, and the steps of a journal, each on disk when it returns."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sbpair.errors import MachineLacks
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.runs.journal import Journal, Key


def endpoint(name: str, **changed: object) -> Endpoint:
    made = Endpoint(name, f"{name}.example", f"{name}.example", 5671, tls=True, credential=Identity())
    return replace(made, **changed)


PAIR = Pair("orders", endpoint("contoso"), endpoint("contoso-dr"))
KEY = ("contoso-dr", "q", 1, 1, "m")


def sending(journal: Journal, keys: Sequence[Key], destination: str) -> int:
    [flight] = journal.note_sending([keys], destination)
    try:
        asyncio.run(journal.flush())
    except MachineLacks:
        journal.note_unsent(flight)
        raise
    return flight


def accepted(journal: Journal, flight: int) -> None:
    journal.note_accepted([flight])
    asyncio.run(journal.flush())
