"""The destinations of a backlog in the primary: their existence and limits. Only reads.

Each destination is requested once: from management if permitted, else by opening an unused link. After one request
without an answer no more are made.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.azure.destinations import DestinationCache, DestinationEntity
from sbpair.errors import (
    AccessError,
    DisabledEntity,
    EntityMissing,
    KeysDisabled,
    NetworkRefused,
    NotAuthorized,
    ProtocolError,
    SbpairError,
    ServiceRefused,
    Unavailable,
    Unreachable,
)
from sbpair.model.pair import Endpoint
from sbpair.move.message.route import OTHERS, DeadLetter, missing, refused

MAX_DESTINATIONS = 1_000
"""Limit of distinct destinations; messages for others are counted together and never held against a limit."""


class DestinationLookup:
    """Cached lookup of destinations in a namespace, `title` in texts. `unavailable` is why it stopped, or empty.

    `unmanaged` is why management does not answer, so that only links tell; empty if it does. `refused` is why one of
    these was refused for lack of a claim, or of a key of that destination. `denied` is whether the namespace was.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        control: DestinationCache,
        stack: AsyncExitStack,
        get_token: GetToken | None,
        title: str = "primary",
    ) -> None:
        self._endpoint, self._title = endpoint, title
        self._control = control
        self._stack = stack
        self._get_token = get_token
        self._names: dict[str, str] = {}
        self._found: dict[str, DestinationEntity | DeadLetter | None] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._opening = asyncio.Lock()
        self._client: AmqpClient | None = None
        self.unmanaged = ""
        self.unavailable = self.refused = ""
        self.denied = False

    async def tier(self) -> str | None:
        try:
            return await self._control.tier()
        except NotAuthorized:
            return None
        except (NetworkRefused, Unavailable) as error:
            self._set_unavailable(error)
            return None

    def name(self, path: str) -> str:
        """Return the name a destination is counted under: Service Bus ignores the case of paths."""
        path = path.strip("/")
        if len(self._names) >= MAX_DESTINATIONS:
            return self._names.get(path.lower(), OTHERS)
        return self._names.setdefault(path.lower(), path)

    def entities(self) -> dict[str, DestinationEntity]:
        return {self._names[name]: found for name, found in self._found.items() if isinstance(found, DestinationEntity)}

    async def find(self, path: str) -> DestinationEntity | DeadLetter | None:
        """Return the entity, or the DeadLetter a message for it would get, or None if unknown."""
        name = self.name(path).lower()
        if name == OTHERS:
            return None
        if name not in self._found:
            async with self._asking[name]:
                if name not in self._found:
                    self._found[name] = await self._ask(path)
        return self._found[name]

    async def _ask(self, path: str) -> DestinationEntity | DeadLetter | None:
        try:
            return None if self.unavailable else await self._read(path)
        except EntityMissing:
            return missing(path, self._title)
        except ServiceRefused as error:
            return refused(path, error.message)
        except NotAuthorized as error:
            if isinstance(error, KeysDisabled):
                self._set_unavailable(error)
            self.refused = self.refused or error.message
            return None
        except (NetworkRefused, Unavailable, ProtocolError) as error:
            self._set_unavailable(error)
            return None

    async def _read(self, path: str) -> DestinationEntity:
        if not self.unmanaged:
            try:
                return await self._control.get(path)
            except NotAuthorized as error:
                self.unmanaged = error.message
        return await self._by_link(path)

    async def _by_link(self, path: str) -> DestinationEntity:
        async with self._opening:
            if self._client is None:
                connecting = connect(self._endpoint, get_token=self._get_token)
                self._client = await self._stack.enter_async_context(connecting)
        try:
            sender = await self._client.sender(path)
        except Unreachable as error:
            if self._client.error is not None:
                raise
            status = "Disabled" if isinstance(error, DisabledEntity) else "Active"
            return DestinationEntity(path, is_topic=None, filters=None, status=status)  # it takes nothing now
        sender.close()
        return DestinationEntity(path, is_topic=None, filters=None, message_bytes=sender.max_message_size or None)

    def _set_unavailable(self, error: SbpairError) -> None:
        self.unavailable = self.unavailable or error.message
        self.denied |= isinstance(error, AccessError)
