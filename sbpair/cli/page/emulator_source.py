"""The namespaces of an emulator of this process, as the page reads them: from its counters."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sbpair import backlog
from sbpair.cli.page.overview import EntityRow, NamespaceReading
from sbpair.cli.page.pair_source import MAX_SESSIONS
from sbpair.cli.render.screen import Document
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.faults.active import KINDS
from sbpair.emulator.frontends.http.http_frontend import state_of
from sbpair.emulator.server import Emulator
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, SasKey, SasToken
from sbpair.model.signature import SAS_SECONDS, sign


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
