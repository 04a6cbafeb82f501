"""The namespaces of a pair as the page reads them: as a client that changes nothing."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sbpair import backlog, status
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import signed_in
from sbpair.cli.page.overview import EntityRow, NamespaceReading
from sbpair.cli.render.screen import Document
from sbpair.cli.render.waiting import left_dead, mover_step, stranded_line, waiting_line
from sbpair.errors import AccessError, EntityMissing, ProtocolError, SbpairError
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import QueueState
from sbpair.move.raw_source import peek_headers
from sbpair.runs.active_mover import read_mover
from sbpair.runs.database import StateOwner
from sbpair.runs.waiting import WaitingRun, read_waiting

MAX_SESSIONS: Final = 100
MAX_OLDEST: Final = 20
"""Entities of a namespace whose first message is peeked in one reading: the others keep what was peeked before."""


class PairSource:
    """The namespaces of a pair, read with Listen and Manage. Without Manage, the backlog queues are peeked."""

    def __init__(self, pair: Pair, owner: StateOwner | None = None) -> None:
        """Read the pair, and the runs with work left of `owner`, which the secondary's note names."""
        self._owner = owner
        self.endpoints: Mapping[str, Endpoint] = {"primary": pair.primary, "secondary": pair.secondary}
        self._pair = pair
        self._oldest: dict[str, dict[str, tuple[float, float | None]]] = {side: {} for side in self.endpoints}

    async def read(self) -> Sequence[NamespaceReading]:
        primary, last = await asyncio.gather(*(self._read(side, endpoint) for side, endpoint in self.endpoints.items()))
        waiting, problem = await asyncio.to_thread(read_waiting, self._owner) if self._owner else ((), "")
        last = replace(last, headline=await self._headline(primary, last, waiting))
        note = "; ".join(filter(None, (last.note, problem, *map(waiting_line, waiting))))
        return [primary, replace(last, note=note)]

    async def _headline(
        self, primary: NamespaceReading, secondary: NamespaceReading, waiting: Collection[WaitingRun]
    ) -> str:
        rows = [each for each in secondary.rows if each.kind == "backlog"]
        is_known = secondary.state == "up" and all(each.active is not None for each in rows)
        messages = sum(each.active or 0 for each in rows)
        oldest = min((each.oldest for each in rows if each.oldest is not None), default=None)
        mover = await read_mover(self._pair.ends, None)
        step = mover_step(mover, primary.state, waiting, lost=bool(self._pair.loss)) if messages else ""
        dead = left_dead(sum(each.dead_letter or 0 for each in rows))
        away = "" if secondary.state == "up" else f"secondary {secondary.state}"
        more, is_exact = [dead, f"primary {primary.state}", away, step], not any(each.is_sample for each in rows)
        return stranded_line(messages if is_known else None, oldest, time.time(), more, exact=is_exact)

    async def _read(self, side: str, endpoint: Endpoint) -> NamespaceReading:
        try:
            async with open_atom(endpoint) as control:
                found, lacking = await control.list_known()
                if lacking is not None and side == "secondary":
                    raise lacking
        except AccessError as error:
            return await self._peeked(side, endpoint, error)
        except SbpairError as error:
            return NamespaceReading.failed(side, endpoint.name, error)
        rows = [self._row(kind, state) for kind, state in found]
        note = lacking.message if lacking else ""
        return NamespaceReading(side, endpoint.name, await self._with_oldest(side, endpoint, rows), note=note)

    def _row(self, kind: str, state: QueueState) -> EntityRow:
        counts, path = state.counts, state.spec.path
        is_backlog = kind == "queue" and backlog.under_prefix(self._pair.primary.name, path)
        size = state.usage.size_bytes if state.usage else None
        shown = "backlog" if is_backlog else kind or "queue"
        if counts is None:
            return EntityRow(path, shown, size_bytes=size)
        named = (counts.active, counts.dead_letter, counts.scheduled)
        transfers = (counts.transfer, counts.transfer_dead_letter)
        deferred = max(0, counts.total - sum(named) - sum(transfers))
        return EntityRow(path, shown, *named, deferred, *transfers, size)

    async def _with_oldest(self, side: str, endpoint: Endpoint, rows: Sequence[EntityRow]) -> list[EntityRow]:
        known = self._oldest[side]
        holding = {each.path for each in rows if each.active and each.kind != "topic"}
        for path in known.keys() - holding:
            del known[path]
        due = sorted(holding, key=lambda path: known.get(path, (0.0, None))[0])[:MAX_OLDEST]
        if due:
            with suppress(SbpairError):
                async with signed_in(connect, endpoint) as client:
                    for path in due:
                        known[path] = (time.monotonic(), await _first_enqueued(client, path))
        return [each._replace(oldest=known[each.path][1]) if each.path in known else each for each in rows]

    async def _peeked(self, side: str, endpoint: Endpoint, error: AccessError) -> NamespaceReading:
        """Read what Listen alone shows: the backlog queues of the secondary."""
        if side == "primary":
            return NamespaceReading.failed(side, endpoint.name, error)
        try:
            found = await status.read_status(self._pair, max_peek_dead_letters=0)
        except SbpairError as failure:
            return NamespaceReading.failed(side, endpoint.name, failure)
        if found.secondary.error is not None:
            return NamespaceReading.failed(side, endpoint.name, found.secondary.error)
        now = time.time()
        rows = [
            EntityRow(
                each.name,
                "backlog",
                each.messages,
                each.dead_letters,
                each.scheduled,
                oldest=None if each.oldest_seconds is None else now - each.oldest_seconds,
                is_sample=not each.exact,
            )
            for each in found.queues
        ]
        return NamespaceReading(side, endpoint.name, rows, note=error.message)

    async def sessions(self, side: str, path: str) -> list[Document]:
        """Return the ids of the first sessions with messages or a state: a client does not see who holds them."""
        try:
            async with signed_in(connect, self.endpoints[side]) as client:
                return [{"id": each} for each in await client.session_ids(path, MAX_SESSIONS)]
        except SbpairError:
            return []

    def control(self) -> Document:
        raise EntityMissing("a pair has no faults and no clock", hint="those are an emulator's")


async def _first_enqueued(client: AmqpClient, path: str) -> float | None:
    """Return when the first message that is neither scheduled nor deferred was enqueued; None if unknown."""
    try:
        headers = await peek_headers(client, path, 0, 10)
    except (SbpairError, ProtocolError):
        return None
    return next((each.enqueued_at / 1000 for each in headers if each.active), None)
