"""The acts of an emulator's page: as a client of its namespaces, and through its faults and its clock."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from sbpair import backlog
from sbpair.amqp.types import Int, Timestamp
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.azure.data_plane import open_sender
from sbpair.cli.page.documents import entity_of
from sbpair.cli.page.emulator_source import EmulatorSource
from sbpair.cli.render.screen import Document
from sbpair.emulator.emulator_control import EmulatorControl
from sbpair.emulator.faults.active import BadField, read_count, read_fault
from sbpair.emulator.service_errors import ServiceError
from sbpair.errors import EntityMissing, ServiceRefused, UsageError
from sbpair.management.entity_limits import violations
from sbpair.message_io.message_json import parse_json
from sbpair.model.entities import DURATIONS, Queue, Subscription, Topic, subscription_of
from sbpair.model.pair import Endpoint, Ends
from sbpair.move.filter import MessageFilter
from sbpair.move.message.dead_letters import dead_letter_path
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, kept_for
from sbpair.syphon.move_checks import check_ends
from sbpair.syphon.move_spec import EntityAddress, MoveSpec
from sbpair.syphon.run_plan import MoveOptions
from sbpair.syphon.runner import run
from sbpair.timespan import iso_duration, ticks

SEND_SECONDS: Final = 30.0
MAX_DELETED: Final = 4_000
LATER_SECONDS: Final = 86_400
KINDS: Final = {"queue": Queue, "topic": Topic}

Values = Mapping[str, Any]


class EmulatorActs:
    """Carries out acts by name: an instance is the `act` of a PageServer."""

    def __init__(self, emulator: EmulatorControl, source: EmulatorSource) -> None:
        self._emulator = emulator
        self._source = source
        self._acts: dict[str, Callable[[Values], Awaitable[Document]]] = {
            "send": self._send,
            "resubmit": self._resubmit,
            "remove": self._remove,
            "purge": self._purge,
            "create": self._create,
            "delete": self._delete,
            "fault": self._fault,
            "end-fault": self._end_fault,
            "clock": self._clock,
        }

    async def __call__(self, name: str, values: Values) -> Document:
        if name not in self._acts:
            raise EntityMissing(f"there is no act {name[:100]!r}", hint=f"it is one of {', '.join(self._acts)}")
        try:
            return await self._acts[name](values)
        except OverflowError as error:
            raise UsageError("a value is out of range", hint="choose a smaller number or a shorter time") from error
        except BadField as error:
            raise UsageError(error.message, hint="see sbpair help emulator") from error
        except ServiceError as error:
            raise ServiceRefused(error.message, hint="choose another entity, or change it first") from error

    async def _send(self, values: Values) -> Document:
        """Send one message, which is an object as `sbpair send --json` reads it."""
        entity = entity_of(self._source.endpoints, values)
        message = parse_json(json.dumps(values.get("message")).encode())
        async with open_sender(entity.endpoint, entity.path) as sender:
            await sender.send(message, SEND_SECONDS)
        return {"sent": 1}

    async def _resubmit(self, values: Values) -> Document:
        """Move dead letters back, all or those of one reason, as `sbpair redrive` does."""
        entity, reason = entity_of(self._source.endpoints, values), values.get("reason")
        if not isinstance(reason, str | None):
            raise UsageError("reason is not a text", hint="leave it out for all dead letters")
        where = None if reason is None else MessageFilter("", reasons=[reason])
        source = entity._replace(path=dead_letter_path(entity.path))
        subscription = subscription_of(entity.path)
        to = entity._replace(path=subscription.topic) if subscription else entity
        if (primary := backlog.primary_of(entity.path)) is None:
            found, ends, form = await check_ends(source, to, None, allow_discard=True), entity.alone, kept_for(to.path)
        else:
            found, form = await check_ends(source, None, None), BACKLOG_DEAD_LETTERS
            ends = self._pair_of(primary, entity.endpoint)
        spec = MoveSpec(ends, "redrive", form, source.path, found.sessions, keeps_refused=True)
        result = await run(ends, MoveOptions(where=where), once=True, spec=spec, lease=False)
        for _, error in result.failures:
            raise error
        return {"sent": result.receipt.sent, "stayed": result.receipt.received - result.receipt.sent}

    async def _remove(self, values: Values) -> Document:
        """Delete the dead letters of an entity."""
        entity = entity_of(self._source.endpoints, values)
        return await self._delete_messages(entity._replace(path=dead_letter_path(entity.path)))

    async def _purge(self, values: Values) -> Document:
        """Delete the messages of an entity that are neither locked, deferred nor scheduled."""
        return await self._delete_messages(entity_of(self._source.endpoints, values))

    async def _delete_messages(self, entity: EntityAddress) -> Document:
        deleted = 0
        # The emulator's clock may be ahead.
        before = Timestamp(max(self._emulator.clock.now_ms(), int(time.time() * 1000)) + LATER_SECONDS * 1000)
        async with connect(entity.endpoint) as client:
            while True:
                wanted = {"message-count": Int(MAX_DELETED), "enqueued-time-utc": before}
                answer = await client.request(entity.path, "batch-delete-messages", dict(wanted))
                if answer.status != 200:
                    break
                deleted += int(answer.body.get("message-count") or 0)
        if answer.status != 204:
            raise ServiceRefused(answer.description, hint=f"{deleted} messages were deleted before that")
        return {"deleted": deleted}

    async def _create(self, values: Values) -> Document:
        """Create a queue, a topic or a subscription, with properties by their names in Python's SDK."""
        entity, properties = entity_of(self._source.endpoints, values), values.get("properties", {})
        subscription = subscription_of(entity.path)
        if subscription is None and str(values.get("kind")) not in KINDS:
            raise UsageError("kind is not queue or topic", hint="a subscription is TOPIC/subscriptions/NAME")
        like: Queue | Topic | Subscription = subscription or KINDS[str(values["kind"])](entity.path)
        known = {each.name: each.default for each in fields(like)}
        if not isinstance(properties, dict):
            raise UsageError("properties is not an object", hint='such as {"requires_session": true}')
        for name, value in properties.items():
            if name not in known or type(value) is not (int if known[name] is None else type(known[name])):
                raise UsageError(
                    f"{name[:100]} is not a property of a {like.kind}, or has another type",
                    hint=", ".join(sorted(known)),
                )
        given: dict[str, Any] = {
            name: iso_duration(ticks(value)) if name in DURATIONS else value for name, value in properties.items()
        }
        wanted = replace(like, **given)
        for wrong in violations(wanted):
            raise UsageError(wrong.message, hint=wrong.hint)
        async with open_atom(entity.endpoint) as control:
            created = await control.create(wanted)
        if not created:
            raise UsageError(f"{entity.path} exists already", hint="delete it first, or choose another name")
        return {"created": entity.path}

    async def _delete(self, values: Values) -> Document:
        """Delete an entity with all its messages."""
        entity = entity_of(self._source.endpoints, values)
        async with open_atom(entity.endpoint) as control:
            await control.delete(entity.path)
        return {"deleted": entity.path}

    async def _fault(self, values: Values) -> Document:
        """Begin a fault, as a request to the control API describes it."""
        return {"id": self._emulator.faults.begin(read_fault(dict(values)))}

    async def _end_fault(self, values: Values) -> Document:
        self._emulator.faults.end(str(values.get("id")))
        return {"id": values.get("id")}

    async def _clock(self, values: Values) -> Document:
        """Advance the emulator's clock."""
        self._emulator.advance(read_count("advance_ms", values.get("advance_ms")))
        return {"now_ms": self._emulator.clock.now_ms()}

    def _pair_of(self, primary: str, secondary: Endpoint) -> Ends:
        for name, endpoint in self._source.endpoints.items():
            if name.lower() == primary.lower():
                return Ends(primary, endpoint, secondary)
        raise EntityMissing(f"the emulator has no namespace {primary!r}", hint="the backlog's messages belong there")
