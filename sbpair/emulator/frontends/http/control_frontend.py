"""The control API: faults, clock and state, as JSON over HTTP under `/$control`.

It stays reachable during outages and needs no token. The answer to an invalid request is 400, with the field.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sbpair.emulator.faults.active import BadField, FaultUnknown, read_count, read_fault
from sbpair.emulator.frontends.http.request_parts import read_body, split_target
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.topic import TopicEntity
    from sbpair.emulator.server import Emulator

PREFIX: Final = "$control"


class ControlFrontend:
    """The control API of an emulator."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    async def handle(self, request: web.BaseRequest) -> web.Response:
        try:
            return await self._answer(request)
        except ServiceError as error:
            where = error.where if isinstance(error, BadField) else ""
            return web.json_response({"error": {"where": where, "message": error.message}}, status=error.status)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        parts = split_target(request)[0].strip("/").split("/")[1:]
        match request.method, parts:
            case "POST", ["faults"]:
                identity = self._emulator.faults.begin(read_fault(await document_of(request)))
                return web.json_response({"id": identity}, status=201)
            case "DELETE", ["faults", identity]:
                self._emulator.faults.end(identity)
                return web.json_response({"id": identity})
            case "POST", ["clock"]:
                self._emulator.advance(advance_ms(await document_of(request)))
                return web.json_response({"now_ms": self._emulator.clock.now_ms()})
            case "GET", ["state"]:
                return web.json_response(self._state())
        raise FaultUnknown("The control API has POST faults, DELETE faults/ID, POST clock and GET state.")

    def _state(self) -> dict[str, object]:
        faults = {
            identity: {name: value for name, value in asdict(fault).items() if value is not None}
            for identity, fault in self._emulator.faults.active().items()
        }
        namespaces = [
            {
                "name": name,
                "down": namespace.is_down,
                "queues": [queue_state(queue) for queue in namespace.queues()],
                "topics": [topic_state(topic) for topic in namespace.topics()],
            }
            for name, namespace in self._emulator.namespaces.items()
        ]
        return {"now_ms": self._emulator.clock.now_ms(), "faults": faults, "namespaces": namespaces}


def queue_state(queue: QueueEntity) -> dict[str, object]:
    counts = queue.counts()
    return {
        "path": queue.path,
        "active": counts.active,
        "locked": queue.messages.locked_count,
        "scheduled": counts.scheduled,
        "dead_letter": counts.dead_letter,
        "size_bytes": queue.size_bytes,
    }


def topic_state(topic: TopicEntity) -> dict[str, object]:
    return {
        "path": topic.path,
        "scheduled": topic.counts().scheduled,
        "size_bytes": topic.size_bytes,
        "subscriptions": [queue_state(subscription) for subscription in topic.subscriptions],
    }


async def document_of(request: web.BaseRequest) -> object:
    try:
        return json.loads(await read_body(request))
    except ArgumentInvalid as error:
        raise BadField("body", error.message) from error
    except (ValueError, RecursionError) as error:
        raise BadField("body", f"not JSON: {error}") from error


def advance_ms(document: object) -> int:
    if not isinstance(document, dict) or set(document) != {"advance_ms"}:
        raise BadField("body", 'an object {"advance_ms": N} is expected')
    return read_count("advance_ms", document["advance_ms"])
