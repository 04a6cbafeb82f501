"""The sends of encoded messages, as a proxy has them, for asyncio; and a client of a pair for them.

Invariant: nothing is added to a message but its aliases for the backlog. A delivery is accepted once a side, or the
outbox, has all of it; one that is not is reported if a message of it may have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sbpair.amqp.message import BATCH_FORMAT, Sections, batch_members
from sbpair.amqp.types import text_of
from sbpair.azure.credentials import open_tokens
from sbpair.backlog import MAX_ALIASES_BYTES
from sbpair.errors import InDoubt, ProtocolError, SbpairError, TimedOut
from sbpair.failover.clients import AsyncClientBase
from sbpair.failover.events import SendInDoubt
from sbpair.failover.failover_send import FailoverSend
from sbpair.failover.failures import describe_error, join_sdk_errors
from sbpair.failover.property_values import MAX_PROPERTIES_BYTES, properties_size
from sbpair.failover.shared_state import SendTarget
from sbpair.failover.side_connections import AsyncClosable
from sbpair.model.tiers import SMALLEST_TIER_BYTES
from sbpair.move.message.batches import BatchKey, batches, encode_batch
from sbpair.move.message.envelope import aliased, partition_key
from sbpair.move.raw_destination import RawDestination, RawDestinationLink
from sbpair.sync_async import Action, Call, Steps, drive_async

if TYPE_CHECKING:
    from sbpair.failover.shared_state import SendSide
    from sbpair.model.pair import Pair

SendRaw: TypeAlias = "Callable[[SendSide, str, bytes, int, float], Awaitable[None]]"
"""Sends one delivery: (side, path, payload, message-format, seconds). It returns once the entity has accepted it.

Raises the refusal, TimedOut or Unreachable if nothing was sent, and InDoubt if no answer came.
"""

SMALL_BYTES = MAX_PROPERTIES_BYTES - MAX_ALIASES_BYTES
"""The size of a message which a backlog queue accepts with its aliases, whatever its properties are."""


class RawMessage(NamedTuple):
    """An encoded message. `given` are its bytes as the client sent them, and `payload` those that are sent."""

    given: bytes
    payload: bytes
    key: BatchKey = BatchKey(None, None)


class RawCalls:
    """Calls of functions of a SendTarget. `unanswered` is whether the last one may have sent something.

    A function calls `begin` before it sends: until then, its link is opened.
    """

    unanswered = False
    _has_begun = False

    def begin(self) -> None:
        self._has_begun = True

    def call(
        self, side: SendSide, path: str, action: Action, seconds: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Perform `action` and return its result. Raises the errors of `action`, of which `failed` has been one."""
        self.unanswered, self._has_begun = False, failed is not None
        try:
            if failed is not None:
                raise failed  # noqa: TRY301  it is judged like an error of `action`
            return (yield Call(action, SendTarget(side, path), seconds))
        except BaseException as error:
            self.unanswered = isinstance(error, InDoubt) or (self._has_begun and not isinstance(error, SbpairError))
            if isinstance(error, TimeoutError):
                if not self._has_begun:
                    raise TimedOut(f"link to {path!r}: no answer within {seconds:g} s") from error
                raise InDoubt(f"sending to {path!r}: no answer came within {seconds:g} s") from error
            raise


class RawFailoverSend(FailoverSend[RawMessage], AsyncClosable):
    """Sends deliveries to one entity with failover. They take turns, and go in the order of the calls.

    `send` sends to the entity in the primary, and in the secondary once the primary is lost. By default the client's
    own connections do, as they always do for the backlog.
    """

    def __init__(self, client: RawFailoverClient, entity: str, send: SendRaw | None = None) -> None:
        super().__init__(client.failover_state, entity, client.policy, client.now, client.outbox)
        self._connections: RawCalls = RawCalls()
        self._client, self._send_own = client, send
        self._doing = f"sending to {entity!r}"

    @property
    def is_direct(self) -> bool:
        """Whether a delivery may go to the primary without this sender, the common case: the entity is healthy.

        The caller then calls `accepted`, or `deliver` with the error.
        """
        return self.entity_name.lower() not in self._state.unhealthy and not self._in_outbox

    def accepted(self, messages: int = 1) -> None:
        """Record that the primary has accepted so many messages without this sender."""
        self._count_sent(messages)

    async def deliver(
        self,
        payload: bytes,
        message_format: int,
        seconds: float,
        *,
        since: float | None = None,
        failed: Exception | None = None,
        retries: int | None = None,
    ) -> None:
        """Send one delivery, a message or a batch. Returns once a side, or the outbox, has accepted all of it.

        `failed` is the error of an attempt on the primary by the caller, which started at `since`. `retries` replaces
        those of the client. Sizes are not checked: `check_sizes` does. Raises SbpairError: UsageError for a reserved
        property, ProtocolError for what is no message. The event SendInDoubt then names the messages that may have
        arrived.
        """
        messages, deadline = _members(payload, message_format), (self._now() if since is None else since) + seconds
        async with self._turn:
            with self._reporting(messages):
                self._retries = self._policy.retries if retries is None else retries
                self.unanswered = isinstance(failed, InDoubt)
                if failed is not None and (self._in_outbox or self._side(None) != "primary"):
                    # Others have failed in the meantime: this one follows them.
                    self._report_left(messages, 0, failed)
                    failed = None
                await drive_async(self._deliver(messages, self._action(payload, message_format), deadline, failed))

    async def schedule(
        self, messages: Sequence[bytes], seconds: float, attempt: Callable[[SendSide, float], Awaitable[list[int]]]
    ) -> list[int]:
        """Schedule messages at the times that they state. Returns their numbers; negative ones are in no entity.

        `attempt(side, seconds)` schedules them in the entity of the primary, or of the secondary once that is lost.
        """
        prepared, deadline = [RawMessage(each, each) for each in messages], self._now() + seconds

        def action(target: SendTarget, left: float) -> Awaitable[list[int]]:
            self._connections.begin()
            return attempt(target.side, left)

        async with self._turn:
            with self._reporting(prepared):
                self.unanswered = False
                return await drive_async(self._scheduled(prepared, action, deadline))

    async def check_sizes(self, payload: bytes, message_format: int, seconds: float) -> None:
        """Raise ServiceRefused for a delivery with a message that the backlog would not accept with its aliases.

        The first one that is large asks the backlog for its limit, for `seconds` at most.
        """
        if len(payload) > SMALL_BYTES:
            with join_sdk_errors(self._doing):
                await drive_async(self._check_sizes(_members(payload, message_format), self._now() + seconds))

    @property
    def _in_outbox(self) -> bool:
        return self._outbox is not None and self._outbox.holds(self.entity_name)

    @contextmanager
    def _reporting(self, messages: list[RawMessage]) -> Iterator[None]:
        """Raise sbpair's errors, and report the messages that may have arrived all the same."""
        in_backlog = self._delivered.backlog
        with join_sdk_errors(self._doing):
            try:
                yield
            except Exception as error:
                self._report_left(messages, self._delivered.backlog - in_backlog, error)
                raise

    def _report_left(self, messages: list[RawMessage], accepted: int, error: Exception) -> None:
        """Report the messages of a delivery that may have arrived though it was not accepted."""
        reason = describe_error(error)
        if self.unanswered and messages[accepted:]:
            self._state.publish(SendInDoubt(self.entity_name, self._message_ids(messages[accepted:]), reason))
        if accepted:
            reason = f"the backlog has them, and not the rest of their batch: {reason}"
            self._state.publish(SendInDoubt(self.entity_name, self._message_ids(messages[:accepted]), reason))

    def _action(self, payload: bytes, message_format: int) -> Action:
        async def send(target: SendTarget, seconds: float) -> None:
            if self._client.outage is not None:
                self._client.outage.check_ping(*target)
            if self._send_own is None or target.side == "backlog":
                await self._client.send(*target, payload, message_format, seconds, self._connections.begin)
            else:
                self._connections.begin()
                await self._send_own(*target, payload, message_format, seconds)

        return send

    def _for_backlog(self, message: RawMessage) -> RawMessage:
        copy = aliased(Sections.split(message.given), self.entity_name)
        return RawMessage(message.given, copy.join(), BatchKey(None, partition_key(copy)))

    def _backlog_batches(self, copies: list[RawMessage]) -> Iterator[tuple[Action, list[RawMessage]]]:
        for batch in batches(copies, SMALLEST_TIER_BYTES):
            yield self._action(*encode_batch(batch)), batch

    def _encode(self, message: RawMessage) -> bytes:
        return message.payload

    def _message_ids(self, messages: Iterable[RawMessage]) -> tuple[str, ...]:
        return tuple(message_name(each.given) for each in messages)

    def _is_small(self, message: RawMessage) -> bool:
        return len(message.given) <= SMALL_BYTES

    def _sizes(self, message: RawMessage, *, with_aliases: bool) -> tuple[int, int]:
        sections = Sections.split(message.given)
        if with_aliases:
            sections = aliased(sections, self.entity_name)
        return _properties_size(sections), len(sections)

    def _ask_limit(self, queue: str, seconds: float) -> Steps[int]:
        limit = yield Call(self._client.max_message_size, queue, seconds)
        return int(limit)

    def _closing(self) -> Steps[None]:
        self._closed = True
        self._client.forget(self)
        yield from ()


class RawFailoverClient(AsyncClientBase[RawFailoverSend]):
    """A PairedClient whose senders take encoded messages. It has one connection to each namespace, opened when needed.

    Its arguments are those of `PairedClient`.
    """

    _sender_class = RawFailoverSend

    def __init__(self, pair: Pair, **options: Any) -> None:
        super().__init__(pair, **options)
        self._opened = AsyncExitStack()
        self._destinations: dict[bool, RawDestination] = {}

    def sender(self, entity: str, send: SendRaw | None = None) -> RawFailoverSend:
        """Return a sender for a queue or topic, which may have a `send` of its own. Raises NameInvalid."""
        return self._get_sender(entity, send)

    async def send(
        self,
        side: SendSide,
        path: str,
        payload: bytes,
        message_format: int,
        seconds: float,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Send one delivery over the client's own connection to a side; `begin` is called once the link is open."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        link = await self._link(side, path, seconds)
        begin()
        await link.deliver(payload, message_format, deadline - loop.time())

    async def max_message_size(self, queue: str, seconds: float) -> int:
        """Return the maximum message size of a backlog queue, 0 if it states none."""
        return (await self._link("backlog", queue, seconds)).sender.max_message_size

    async def close(self) -> None:
        """Stop its syphon and its pings, and close its connections. Messages in the outbox stay in its file."""
        await super().close()
        await self._opened.aclose()

    async def _link(self, side: SendSide, path: str, seconds: float) -> RawDestinationLink:
        is_primary = side == "primary"
        try:
            async with asyncio.timeout(seconds):
                if is_primary not in self._destinations:
                    get_token = await self._opened.enter_async_context(open_tokens())
                    endpoint = self.pair.primary if is_primary else self.pair.secondary
                    made = self._destinations[is_primary] = RawDestination(endpoint, get_token=get_token)
                    self._opened.push_async_callback(made.close)
                return await self._destinations[is_primary].ready(path)
        except TimeoutError as error:
            raise TimedOut(f"link to {path!r}: no answer within {seconds:g} s") from error


def _members(payload: bytes, message_format: int) -> list[RawMessage]:
    members = batch_members(payload) if message_format == BATCH_FORMAT else [payload]
    if payload and not members:
        raise ProtocolError("a batch has no messages")
    return [RawMessage(each, each) for each in members]


def message_name(given: bytes) -> str:
    """Return the id of a message; without one, the SHA-256 of its bytes, and the time."""
    try:
        text = text_of(Sections.split(given).read_properties().message_id)
    except ProtocolError:
        text = None
    return text or f"sha256:{sha256(given).hexdigest()} of {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _properties_size(sections: Sections) -> int:
    """Return the bytes of all properties as the service counts them at least; of few properties, all of the section."""
    if len(sections.application_properties) <= MAX_PROPERTIES_BYTES:
        return len(sections.application_properties)
    pairs = sections.read_application_properties().pairs
    return properties_size({key: value for key, value in pairs if isinstance(key, str | bytes)})
