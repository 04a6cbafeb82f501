"""The documents that the page shows: those of `peek`, `deadletters list` and `runs`, and descriptions of entities."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, Final, Protocol

from sbpair.azure.atom import open_atom
from sbpair.cli.commands.runs import rendered_report
from sbpair.cli.page.overview import NamespaceReading
from sbpair.cli.render.screen import Document
from sbpair.cli.results.messages import PeekedMessages, PeekedTotal, dead_letter_list
from sbpair.cli.results.runs import listed_run
from sbpair.errors import EntityMissing, UsageError
from sbpair.message_io.message_fields import body_of
from sbpair.message_io.message_json import Peeked, render_peeked
from sbpair.message_io.peek import PeekSource, count_dead_letters, peek_messages
from sbpair.model.document import encoded
from sbpair.model.entities import Queue, subscription_of
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import Endpoint
from sbpair.runs.database import RunDatabase, StateOwner
from sbpair.runs.run_log import all_runs, timeline_of
from sbpair.runs.run_record import LIVE, RunRecord
from sbpair.syphon.move_ends import EntityAddress

PAGE: Final = 50
MAX_COUNTED: Final = 1_000
"""Dead letters of an entity that are grouped: more of them are counted as at least so many."""


class PageSource(Protocol):
    """A pair, or the namespaces of an emulator."""

    @property
    def endpoints(self) -> Mapping[str, Endpoint]: ...

    async def read(self) -> Sequence[NamespaceReading]: ...

    async def sessions(self, side: str, path: str) -> list[Document]:
        """Return the first sessions of an entity, with their locks where those are known."""

    def control(self) -> Document:
        """Return the clock and the faults of an emulator. Raises EntityMissing."""


class PageDocuments:
    """Reads documents for the page: nothing is locked, settled or changed. `owner` is that of the shown runs."""

    def __init__(self, source: PageSource, owner: StateOwner | None = None) -> None:
        self.source = source
        self._owner = owner

    async def read(self, name: str, query: Mapping[str, str]) -> Document:
        """Return the document of a name. Raises SbpairError; UsageError for a name that there is not."""
        match name:
            case "peek":
                return await self._peek(query)
            case "deadletters":
                return await self._dead_letters(query)
            case "entity":
                return await self._entity(query)
            case "runs":
                return self._runs()
            case "control":
                return self.source.control()
        raise EntityMissing("the page has no such document", hint="load the page again")

    def report(self, run: str) -> str:
        """Return the page that `sbpair runs report` writes."""
        if self._owner is None:
            raise EntityMissing("no state directory is shown here", hint="see sbpair page")
        return rendered_report(self._owner, run, ["html"])[1]["html"]

    async def _peek(self, query: Mapping[str, str]) -> Document:
        entity = entity_of(self.source.endpoints, query)
        path = dead_letter_path(entity.path) if query.get("dead_letters") else entity.path
        sources = [PeekSource(entity.side, path)]
        start = _number(query, "from")
        result = await peek_messages(entity.alone, sources, limit=PAGE, start=start)
        messages: list[Peeked] = [
            render_peeked(entity.side, each, body_of(each.sections)) for _, each in result.messages
        ]
        following = max((message.facts.sequence_number + 1 for _, message in result.messages), default=0)
        tail = {"next": None if result.complete or following <= start else following, "hidden": bool(result.hidden)}
        total = PeekedTotal(None, result.complete)
        document: Document = encoded(PeekedMessages(entity.endpoint.name, entity.side, path, total, messages))
        return {**document, **tail}

    async def _dead_letters(self, query: Mapping[str, str]) -> Document:
        entity = entity_of(self.source.endpoints, query)
        source = PeekSource(entity.side, dead_letter_path(entity.path))
        found = await count_dead_letters(entity.alone, [source], limit=MAX_COUNTED)
        groups = sorted(found, key=lambda each: -each.messages)
        document: Document = encoded(dead_letter_list(groups))
        return document

    async def _entity(self, query: Mapping[str, str]) -> Document:
        entity = entity_of(self.source.endpoints, query)
        subscription = subscription_of(entity.path)
        async with open_atom(entity.endpoint) as control:
            description = await control.description(entity.path, query.get("kind", Queue.kind))
            rules = await control.rules(subscription.topic, subscription.name) if subscription else []
        has_sessions = description.get("RequiresSession", "").lower() == "true"
        return {
            "description": description,
            "rules": [{"name": each.name, "filter": str(each.filter), "action": each.action} for each in rules],
            "sessions": await self.source.sessions(entity.side, entity.path) if has_sessions else [],
        }

    def _runs(self) -> Document:
        with (self._owner and self._owner.open_if_any()) or nullcontext() as kept:
            runs = all_runs(kept) if kept else []
            return {"schema": "sbpair/runs/1", "runs": [self._run(kept, each) for each in runs if kept]}

    def _run(self, kept: RunDatabase, run: RunRecord) -> Document:
        with run.reading():
            found: Document = encoded(listed_run(run))
        if run.outcome not in LIVE:
            return found
        samples = [{"at_ms": each.at_ms, **asdict(each.figures)} for each in timeline_of(kept, run.id)[-2:]]
        return {**found, "samples": samples}


def entity_of(endpoints: Mapping[str, Endpoint], values: Mapping[str, Any]) -> EntityAddress:
    """Return the entity that a request names by `side` and `path`. Raises EntityMissing and UsageError."""
    side, path = (values.get(name) for name in ("side", "path"))
    if not isinstance(side, str) or side not in endpoints:
        raise EntityMissing(f"there is no namespace {str(side)[:100]!r}", hint=", ".join(endpoints))
    if not (isinstance(path, str) and path.strip("/") and path.isprintable()):
        raise UsageError("the entity has no path", hint="name a queue, a topic, or TOPIC/subscriptions/NAME")
    return EntityAddress(side, endpoints[side], path.strip("/"))


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63):
        raise UsageError(f"{name} is not a sequence number", hint="it is a whole number from 0")
    return int(text)
