"""The Atom frontend: entities are created, read, listed, changed and deleted over HTTP, as the service does it."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sbpair.emulator.access.sas import AccessRight, scope_of
from sbpair.emulator.entities.description import QueueDescription, check_path
from sbpair.emulator.entities.description_schema import QUEUE, from_elements
from sbpair.emulator.faults.credit_budget import charge_management
from sbpair.emulator.frontends.atom import atom_xml as xml
from sbpair.emulator.frontends.atom.atom_request import (
    API_VERSIONS,
    AtomRequest,
    atom_page,
    atom_response,
    empty_feed,
    method_not_allowed,
    read_atom_request,
    with_creation_times,
)
from sbpair.emulator.frontends.atom.atom_topics import TopicsFrontend
from sbpair.emulator.frontends.http.body import read_body
from sbpair.emulator.frontends.http.request_parts import new_key, with_addresses
from sbpair.emulator.service_errors import ArgumentInvalid, InternalError, ServiceError, Unauthenticated, log_bug
from sbpair.emulator.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity

logger = logging.getLogger(__name__)

_LISTS: Final = {"$resources/queues": "Queues", "$resources/topics": "Topics"}


class AtomFrontend:
    """The Atom frontend of one namespace. Every error becomes the service's error body."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._topics = TopicsFrontend(namespace)

    async def handle(self, http_request: web.BaseRequest) -> web.Response:
        request = read_atom_request(http_request)
        try:
            return self._answer(request, await read_body(http_request))
        except ServiceError as error:
            return self._error(request, error)
        except Exception as error:  # noqa: BLE001  # a bug fails its request only
            log_bug(logger, f"{request.method} request", error)
            return self._error(request, InternalError())

    def _error(self, request: AtomRequest, error: ServiceError) -> web.Response:
        now = self._namespace.clock.now_ms()
        tracker = f"TrackingId:{uuid.uuid4()}_G0, SystemTracker:{self._namespace.name}:{request.path}"
        sub_code = f"SubCode={error.sub_code}. " if error.sub_code else ""
        detail = f"{sub_code}{error.message} {tracker}, Timestamp:{instant(now)}"
        response = atom_response(xml.error_xml(error.status, detail), error.status)
        if error.retry_after_seconds is not None:
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        return response

    def _answer(self, request: AtomRequest, body: bytes) -> web.Response:
        self._namespace.fault_points.check_request(request.method, request.path)
        self._authorize(request)
        charge_management(self._namespace.fault_points, scope_of(request.path))
        if request.api_version not in API_VERSIONS:
            version = request.api_version[:40]
            raise ArgumentInvalid(f"The api-version '{version}' is not one of {', '.join(API_VERSIONS)}.")
        if request.path.lower() in _LISTS or request.path.lower() == "$namespaceinfo":
            return self._answer_of_namespace(request)
        if self._topics.handles(request, body):
            return self._topics.answer(request, body)
        match request.method:
            case "GET":
                return self._get(request)
            case "PUT":
                return self._put(request, body)
            case "DELETE":
                self._namespace.delete_queue(request.path)
                return web.Response(status=200)
        return method_not_allowed()

    def _authorize(self, request: AtomRequest) -> None:
        if not request.token:
            raise Unauthenticated("MissingToken: The authorization header was not found.")
        # `$Resources/…` belongs to the namespace: no entity's keys sign for it.
        grant = self._namespace.authenticate(request.token, request.path)
        grant.require(AccessRight.MANAGE, scope_of(request.path), self._namespace.clock.now_ms())

    def _answer_of_namespace(self, request: AtomRequest) -> web.Response:
        if request.method != "GET":
            return method_not_allowed()
        if request.path.lower() in _LISTS:
            return self._list(request)
        namespace = self._namespace
        times = (namespace.created_at_ms, namespace.created_at_ms)
        info, href = xml.namespace_xml(namespace), request.href("$namespaceinfo")
        return atom_response(xml.entry_xml(href, namespace.name, namespace.name, times, info))

    def _get(self, request: AtomRequest) -> web.Response:
        queue = self._namespace.find_queue(request.path)
        if queue is None:
            return empty_feed(request, self._namespace.clock.now_ms())
        return atom_response(self._entry(request, queue))

    def _entry(self, request: AtomRequest, queue: QueueEntity) -> str:
        # A list that holds such an entity fails too: counts without those of a partition would be wrong.
        queue.check_all_partitions()
        content = xml.queue_xml(queue, with_message_size=request.with_message_size)
        times = (queue.created_at_ms, queue.updated_at_ms)
        return xml.entry_xml(request.href(queue.path), queue.path, self._namespace.name, times, content)

    def _list(self, request: AtomRequest) -> web.Response:
        now, path = self._namespace.clock.now_ms(), request.path.lower()
        if path.endswith("topics"):
            return self._topics.list_topics(request)
        queues = self._namespace.queues()
        return atom_page(request, _LISTS[path], queues, lambda queue: self._entry(request, queue), now)

    def _put(self, request: AtomRequest, body: bytes) -> web.Response:
        check_path(request.path)
        existing = self._namespace.queue(request.path) if request.if_match else None
        description = self._description(request, body, existing)
        if existing is not None:
            existing.check_all_partitions()
            existing.update(description)
            return atom_response(self._entry(request, existing))
        return atom_response(self._entry(request, self._namespace.create_queue(request.path, description)), 201)

    def _description(self, request: AtomRequest, body: bytes, existing: QueueEntity | None) -> QueueDescription:
        now = self._namespace.clock.now_ms()
        requested = xml.read_queue(body, new_key, now)
        before = existing.description if existing else None
        rules = with_creation_times(requested.rules, before.authorization_rules if before else (), now)
        values = with_addresses(requested.values, request.host)
        return from_elements(QUEUE, QueueDescription(), values, before, rules, self._namespace.tier)
