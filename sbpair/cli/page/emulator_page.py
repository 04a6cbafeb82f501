"""The page of an emulator: its namespaces by its counters, and acts as a client, through its faults and its clock."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sbpair import backlog
from sbpair.amqp_client.client import connect
from sbpair.amqp_server.refusals import ServiceError
from sbpair.azure.atom import open_atom
from sbpair.cli.page.documents import PageDocuments, entity_of
from sbpair.cli.page.overview import EntityRow, NamespaceReading
from sbpair.cli.page.page_server import PageServer
from sbpair.cli.page.pair_source import MAX_SESSIONS
from sbpair.cli.render.screen import Document
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.faults.fault_kinds import KINDS, BadField, read_count, read_fault
from sbpair.emulator.frontends.http.http_frontend import state_of
from sbpair.emulator.server import Emulator
from sbpair.errors import EntityMissing, ServiceRefused, UsageError
from sbpair.management.entities_file import with_properties
from sbpair.message_io.line_reader import LineReader
from sbpair.message_io.send_lines import open_direct
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.entities import Queue, Subscription, Topic, subscription_of
from sbpair.model.message_state import MessageState
from sbpair.model.pair import Endpoint, Ends, SasKey, SasToken
from sbpair.model.signature import SAS_SECONDS, sign
from sbpair.move.filter import MessageFilter
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, kept_for
from sbpair.syphon.move_ends import EntityAddress, check_ends
from sbpair.syphon.run_request import RunRequest
from sbpair.syphon.runner import run
from sbpair.timespan import MAX_MS

SEND_SECONDS: Final = 30.0
MAX_DELETED: Final = 500


def page_of(emulator: Emulator, *, may_act: bool) -> PageServer:
    source = EmulatorSource(emulator)
    return PageServer(
        PageDocuments(source),
        is_own=emulator.host_names.is_own,
        prefix="/$page/",
        act=EmulatorActs(emulator, source) if may_act else None,
        refusal="" if may_act else "other machines can reach the emulator: it acts here with --page-acts only",
    )


class EmulatorSource:
    """The namespaces of an emulator, from the document of its control API: they are shown while they are down, too.

    The backlog queues of a namespace are those of any other namespace of the emulator.
    """

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The namespaces with tokens that are valid by the emulator's clock, which can be ahead."""
        expires_at = self._emulator.clock.now_ms() // 1000 + SAS_SECONDS
        return {
            name: replace(
                endpoint_from_connection_string(each.connection_string),
                name=name,
                credential=SasToken(sign(f"{each.endpoint}/", SasKey(key.key_name, key.primary_key), expires_at)),
            )
            for name, each in self._emulator.namespaces.items()
            for key in each.keys[:1]
        }

    async def read(self) -> Sequence[NamespaceReading]:
        # Its clock can be ahead of a browser's. Rounded, the difference does not make a row differ from the one before.
        ahead = round(self._emulator.clock.now_ms() / 1000 - time.time())
        return [self._reading(each, ahead) for each in state_of(self._emulator)["namespaces"]]

    async def sessions(self, side: str, path: str) -> list[Document]:
        entity = self._emulator.namespaces[side].find(path)
        if entity is None or not isinstance(entity.messages, SessionMessages):
            return []
        return [
            {"id": name, "locked_until": until, "locked": locked, "owner": owner}
            for name, until, locked, owner in entity.messages.locks()[:MAX_SESSIONS]
        ]

    def control(self) -> Document:
        """Return the time and the faults, as the control API does; and the fields of each kind of fault."""
        state, kinds = state_of(self._emulator), {name: (*kind.needs, *kind.takes) for name, kind in KINDS.items()}
        return {"now_ms": state["now_ms"], "faults": state["faults"], "kinds": kinds}

    def _reading(self, found: Mapping[str, Any], ahead: int) -> NamespaceReading:
        kinds = ((each, "queue" if backlog.primary_of(each["path"]) is None else "backlog") for each in found["queues"])
        rows = [_emulated(kind, each, ahead) for each, kind in kinds]
        for topic in found["topics"]:
            rows.append(_emulated("topic", topic, ahead))
            rows += (_emulated("subscription", each, ahead) for each in topic["subscriptions"])
        state = ("down", "a fault takes the namespace down") if found["down"] else ("up", "")
        return NamespaceReading(found["name"], found["name"], rows, *state)


def _emulated(kind: str, state: Mapping[str, Any], ahead: int) -> EntityRow:
    names = ("active", "dead_letter", "scheduled", "transfer", "transfer_dead_letter", "size_bytes")
    oldest = state.get("oldest_ms")
    counts: dict[str, Any] = {name: state.get(name) for name in names}
    return EntityRow(state["path"], kind, **counts, oldest=None if oldest is None else oldest / 1000 - ahead)


class EmulatorActs:
    """Carries out acts by name: an instance is the `act` of a PageServer."""

    def __init__(self, emulator: Emulator, source: EmulatorSource) -> None:
        self._emulator = emulator
        self._source = source

    async def __call__(self, name: str, values: Mapping[str, Any]) -> Document:
        try:
            return self._control(name, values) or await self._change(name, values)
        except OverflowError as error:
            raise UsageError("a value is out of range", hint="choose a smaller number or a shorter time") from error
        except BadField as error:
            raise UsageError(error.message, hint="see sbpair help emulator") from error
        except ServiceError as error:
            raise ServiceRefused(error.message, hint="choose another entity, or change it first") from error

    def _control(self, name: str, values: Mapping[str, Any]) -> Document | None:
        """Do what a request to the control API does; None for another act."""
        match name:
            case "fault":
                return {"id": self._emulator.faults.begin(read_fault(dict(values)))}
            case "end-fault":
                self._emulator.faults.end(str(values.get("id")))
                return {"id": values.get("id")}
            case "clock":
                self._emulator.advance(read_count("advance_ms", values.get("advance_ms")))
                return {"now_ms": self._emulator.clock.now_ms()}
        return None

    async def _change(self, name: str, values: Mapping[str, Any]) -> Document:
        """Do what a client of the entity's namespace does."""
        entity = entity_of(self._source.endpoints, values)
        match name:
            case "send":
                if message := LineReader().read(json.dumps(values.get("message")).encode()):
                    async with open_direct(entity.endpoint, entity.path) as sender:
                        await sender.deliver(message.payload, 0, SEND_SECONDS)
                return {"sent": 1}
            case "resubmit":
                return await self._resubmit(entity, values.get("reason"))
            case "remove":
                return await _delete_messages(entity.in_state(MessageState.DEAD))
            case "purge":
                return await _delete_messages(entity)
            case "create":
                return await _create(entity, values.get("kind"), values.get("properties", {}))
            case "delete":
                async with open_atom(entity.endpoint) as control:
                    await control.delete(entity.path)
                return {"deleted": entity.path}
        raise EntityMissing(f"there is no act {name[:100]!r}", hint="load the page again")

    async def _resubmit(self, entity: EntityAddress, reason: object) -> Document:
        """Move dead letters back, all or those of one reason, as `sbpair redrive` does."""
        if not isinstance(reason, str | None):
            raise UsageError("reason is not a text", hint="leave it out for all dead letters")
        where = None if reason is None else MessageFilter("", reasons=[reason])
        source = entity.in_state(MessageState.DEAD)
        subscription = subscription_of(entity.path)
        to = entity._replace(path=subscription.topic) if subscription else entity
        if (primary := backlog.primary_of(entity.path)) is None:
            found, ends, form = await check_ends(source, to, None, allow_discard=True), entity.alone, kept_for(to.path)
        else:
            found, form = await check_ends(source, None, None), BACKLOG_DEAD_LETTERS
            ends = self._pair_of(primary, entity.endpoint)
        request = RunRequest(
            ends=ends,
            once=True,
            command="redrive",
            form=form,
            source=source.path,
            sessions=found.sessions,
            keeps_refused=True,
            where=where,
            lease=False,
        )
        result = await run(request)
        for _, error in result.failures:
            raise error
        return {"sent": result.receipt.sent, "stayed": result.receipt.received - result.receipt.sent}

    def _pair_of(self, primary: str, secondary: Endpoint) -> Ends:
        for name, endpoint in self._source.endpoints.items():
            if name.lower() == primary.lower():
                return Ends(name=primary, source=secondary, destination=endpoint)
        raise EntityMissing(f"the emulator has no namespace {primary!r}", hint="the backlog's messages belong there")


async def _delete_messages(entity: EntityAddress) -> Document:
    """Delete the messages of an entity that are neither locked, deferred nor scheduled."""
    deleted = 0
    async with connect(entity.endpoint) as client:
        while count := await client.delete_batch(entity.path, MAX_DELETED, MAX_MS):
            deleted += count
    return {"deleted": deleted}


async def _create(entity: EntityAddress, kind: object, properties: object) -> Document:
    """Create a queue, a topic or a subscription, with properties as in a file of `sbpair provision`."""
    named: Queue | Topic | Subscription | None = subscription_of(entity.path)
    if named is None:
        if kind not in ("queue", "topic"):
            raise UsageError("kind is not queue or topic", hint="a subscription is TOPIC/subscriptions/NAME")
        named = Queue(entity.path) if kind == "queue" else Topic(entity.path)
    if not isinstance(properties, dict):
        raise UsageError("properties is not an object", hint='such as {"requires_session": true}')
    async with open_atom(entity.endpoint) as control:
        created = await control.create(with_properties(named, properties))
    if not created:
        raise UsageError(f"{entity.path} exists already", hint="delete it first, or choose another name")
    return {"created": entity.path}
