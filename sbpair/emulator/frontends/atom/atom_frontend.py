"""The management door: entities created, read, listed, changed and deleted over HTTP, in Atom, as the service does.

Reads the request, asks the namespace, writes the answer. Every refusal becomes the service's error body.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sbpair.emulator.access.sas import AccessRight, scope_of
from sbpair.emulator.entities.description import QueueDescription, check_path, from_elements
from sbpair.emulator.faults.credit_budget import charge_management
from sbpair.emulator.frontends.atom import atom_xml as xml
from sbpair.emulator.frontends.atom.atom_request import (
    API_VERSIONS,
    AtomRequest,
    forward_address,
    list_page,
    new_key,
    not_a_verb,
    nothing_there,
    read_ask,
    respond,
    with_times,
)
from sbpair.emulator.frontends.atom.atom_topics import TopicsFrontend
from sbpair.emulator.frontends.http.body import read_body
from sbpair.emulator.service_errors import ArgumentInvalid, InternalError, ServiceError, Unauthenticated, log_bug

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity

logger = logging.getLogger(__name__)

_LISTS: Final = {"$resources/queues": "Queues", "$resources/topics": "Topics"}


class AtomFrontend:
    """The management door of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._topics = TopicsFrontend(namespace)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        ask = read_ask(request)
        try:
            return self._answer(ask, await read_body(request))
        except ServiceError as refusal:
            return self._refuse(ask, refusal)
        except Exception as error:  # noqa: BLE001  # a mistake of ours is told to whoever asked, and costs nobody else
            log_bug(logger, f"{ask.method} request", error)
            return self._refuse(ask, InternalError())

    def _refuse(self, ask: AtomRequest, refusal: ServiceError) -> web.Response:
        now = self._namespace.clock.now_ms()
        tracker = f"TrackingId:{uuid.uuid4()}_G0, SystemTracker:{self._namespace.name}:{ask.path}"
        sub_code = f"SubCode={refusal.sub_code}. " if refusal.sub_code else ""
        detail = f"{sub_code}{refusal.message} {tracker}, Timestamp:{xml.instant(now)}"
        answer = respond(xml.error_xml(refusal.status, detail), refusal.status)
        if refusal.retry_after_seconds is not None:
            answer.headers["Retry-After"] = str(refusal.retry_after_seconds)
        return answer

    def _answer(self, ask: AtomRequest, body: bytes) -> web.Response:
        self._namespace.fault_points.check_request(ask.method, ask.path)
        self._authorize(ask)
        charge_management(self._namespace.fault_points, scope_of(ask.path))
        if ask.api_version not in API_VERSIONS:
            raise ArgumentInvalid(f"The api-version '{ask.api_version[:40]}' is not one of {', '.join(API_VERSIONS)}.")
        if ask.path.lower() in _LISTS or ask.path.lower() == "$namespaceinfo":
            return self._answer_of_namespace(ask)
        if self._topics.concerns(ask, body):
            return self._topics.answer(ask, body)
        match ask.method:
            case "GET":
                return self._get(ask)
            case "PUT":
                return self._put(ask, body)
            case "DELETE":
                self._namespace.delete_queue(ask.path)
                return web.Response(status=200)
        return not_a_verb()

    def _authorize(self, ask: AtomRequest) -> None:
        if not ask.token:
            raise Unauthenticated("MissingToken: The authorization header was not found.")
        # `$Resources/…` is nobody's but the namespace's: no entity has keys that sign for it.
        grant = self._namespace.authenticate(ask.token, ask.path)
        grant.require(AccessRight.MANAGE, scope_of(ask.path), self._namespace.clock.now_ms())

    def _answer_of_namespace(self, ask: AtomRequest) -> web.Response:
        if ask.method != "GET":
            return not_a_verb()
        if ask.path.lower() in _LISTS:
            return self._list(ask)
        namespace = self._namespace
        times = (namespace.created_at_ms, namespace.created_at_ms)
        info = xml.namespace_xml(namespace)
        return respond(xml.entry_xml(ask.href("$namespaceinfo"), namespace.name, namespace.name, times, info))

    def _get(self, ask: AtomRequest) -> web.Response:
        queue = self._namespace.find_queue(ask.path)
        if queue is None:
            return nothing_there(ask, self._namespace.clock.now_ms())
        return respond(self._entry(ask, queue))

    def _entry(self, ask: AtomRequest, queue: QueueEntity) -> str:
        # A list that holds such an entity fails as well: counts without what is in a partition would be wrong.
        queue.check_all_partitions()
        content = xml.queue_xml(queue, with_message_size=ask.api_version >= "2021-05")
        times = (queue.created_at_ms, queue.updated_at_ms)
        return xml.entry_xml(ask.href(queue.path), queue.path, self._namespace.name, times, content)

    def _list(self, ask: AtomRequest) -> web.Response:
        now, path = self._namespace.clock.now_ms(), ask.path.lower()
        if path.endswith("topics"):
            return self._topics.list_topics(ask)
        return list_page(ask, _LISTS[path], self._namespace.queues(), lambda queue: self._entry(ask, queue), now)

    def _put(self, ask: AtomRequest, body: bytes) -> web.Response:
        check_path(ask.path)
        existing = self._namespace.queue(ask.path) if ask.if_match else None
        description = self._description(ask, body, existing)
        if existing is not None:
            existing.check_all_partitions()
            existing.update(description)
            return respond(self._entry(ask, existing))
        return respond(self._entry(ask, self._namespace.create_queue(ask.path, description)), 201)

    def _description(self, ask: AtomRequest, body: bytes, existing: QueueEntity | None) -> QueueDescription:
        now = self._namespace.clock.now_ms()
        wanted = xml.read_queue(body, new_key, now)
        before = existing.description if existing else None
        rules = with_times(wanted.rules, before.authorization_rules if before else (), now)
        values = wanted.values
        for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
            if values.get(name):
                values[name] = forward_address(values[name], ask.host)
        return from_elements(values, rules, before, self._namespace.tier)
