"""A signed-in connection to one namespace: `async with connect(endpoint) as client`, then senders and receivers.

Each receiving link has its own session, since delivery ids are numbered per session; senders share one until it is
full. Claims are requested when a link opens, and renewed in the background until the connection ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from sbpair import errors
from sbpair.amqp.conditions import MISSING_HINT, RETRY_HINT, status_error
from sbpair.amqp.link import Delivery
from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Properties, Sections, encode_map, value_body
from sbpair.amqp.performatives import Accepted, Outcome, Rejected, Source, Target
from sbpair.amqp.session import Session
from sbpair.amqp.types import Array, Described, Int, Long, Map, Symbol, Timestamp, UInt, Value
from sbpair.amqp_client.limits import ANSWER_SECONDS
from sbpair.amqp_client.raw_links import ClientLink, RawReceiver, RawSender
from sbpair.amqp_client.stream import MakeStream, Stream, open_stream
from sbpair.http_tunnel import ask_time
from sbpair.model.connect_errors import FIRST_ANSWER_SECONDS, refused_link, unreachable
from sbpair.model.pair import Credential, Endpoint, Identity, SasKey, SasToken
from sbpair.model.rotated_key import has_another
from sbpair.model.signature import Token, signed_token

log = logging.getLogger(__name__)

Link = TypeVar("Link", bound=ClientLink)
Now = Callable[[], float]
GetToken = Callable[[Identity, str], Awaitable[tuple[str, float]]]
"""(identity, scope) -> (token, its expiry in seconds since 1970)"""

SAS_TYPE, JWT_TYPE = "servicebus.windows.net:sastoken", "jwt"
ENTRA_SCOPE = "https://servicebus.azure.net/.default"

RENEW_LEFT = 1 / 3
"""The remaining part of a token's life at which it is renewed."""

MIN_RENEW_SECONDS = 1.0

CLOCK_SECONDS = 2.0
"""How far the clocks of this machine and a namespace may differ, as far as that is known."""

RETRY_RENEW_SECONDS = 10.0
"""Delay before a failed renewal is retried, if the token lives that long."""

CREDIT = 100
"""Answers that a node may send at once."""

SESSION_PAGE = 100
"""Sessions that the service lists at once."""

ANY_TIME = Timestamp(253_402_300_800_000)
"""The end of the year 9999, as .NET rounds it: with it, the service lists all sessions with messages or a state."""

FILTER = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
TIMEOUT = Symbol("com.microsoft:timeout")

_TICKS_TO_1970 = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class SessionReceiver(RawReceiver):
    """Receives from one session, and holds it: no other receiver gets it while the link lives and is renewed.

    Invariant: the lock belongs to the link, and ends with it. `AmqpClient.renew_session` renews it.
    """

    def __init__(
        self, stream: Stream, session: Session, address: str, session_id: str | None, seconds: float = 0.0
    ) -> None:
        """Create a link to one session, or without an id to the next one that is free within `seconds`."""
        super().__init__(stream, session, address)
        self.session_id = session_id or ""
        self._any = session_id is None
        if self._any:
            self._terms["properties"] = Map([(TIMEOUT, UInt(int(1000 * seconds)))])
            self._attach_seconds += seconds
        self._terms["source"] = Source(address, filter=Map([(FILTER, Described(FILTER, session_id))]))

    async def attach(self) -> Self:
        """Open the link. Raises SessionLocked; TimedOut without a free session; ServiceRefused for another one."""
        await super().attach()
        granted = self._granted_session()
        if self._any and isinstance(granted, str):
            self.session_id = granted
        elif str(granted).lower() != self.session_id.lower():  # the service may show another case
            self.close()
            raise errors.ServiceRefused(
                f"link to {self.address!r}: the session was not granted",
                condition="amqp:not-allowed",
                hint="the same request would be refused again",
            )
        return self

    @property
    def locked_until_ms(self) -> int:
        """The lock's expiry when the link was opened, in ms since 1970 by the service; 0 if unknown."""
        ticks = (self._link.remote.properties or {}).get(LOCKED_UNTIL)
        return (int(ticks) - _TICKS_TO_1970) // _TICKS_PER_MS if isinstance(ticks, int) else 0

    def _granted_session(self) -> Any:
        source = self._link.remote.source
        given = source.filter.get(FILTER) if isinstance(source, Source) and isinstance(source.filter, Map) else None
        return given.value if isinstance(given, Described) else given


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    description: str
    condition: str | None
    body: Map


class RequestClient:
    """One node, `$cbs` or `<entity>/$management`, and its pending requests, which may overlap."""

    def __init__(self, stream: Stream, session: Session, node: str) -> None:
        self._sender = RawSender(stream, session, node, source=node)
        self._receiver = _ReplyReceiver(stream, session, node)
        self._ids = itertools.count(1)

    @property
    def error(self) -> errors.SbpairError | None:
        return self._sender.error or self._receiver.error

    async def open(self) -> None:
        await self._sender.attach()
        await self._receiver.attach()
        self._receiver.grant(CREDIT)

    async def call(self, properties: dict[str, Value], body: Value, *, seconds: float = ANSWER_SECONDS) -> Response:
        """Send a request and wait for the response. Raises TimedOut, or why the links were lost."""
        number = f"sbpair-{next(self._ids)}"
        request = Sections(
            properties=Properties(message_id=number, reply_to=self._receiver.reply_to).encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, properties),
            body=value_body(body),
        )
        asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                with self._receiver.expecting(number) as answer:
                    await self._sender.send(request.join())
                    return await answer
        except TimeoutError:
            self._sender.stream.check_silence(asked_at)
            raise errors.TimedOut(
                f"{self._sender.address} did not answer within {seconds:g} s", hint="retry in a minute"
            ) from None


class _ReplyReceiver(RawReceiver):
    """Matches responses to requests; one that no request waits for is dropped."""

    def __init__(self, stream: Stream, session: Session, node: str) -> None:
        super().__init__(stream, session, node)
        self.reply_to = f"{node}-{self.name}"
        self._terms |= {"target": Target(self.reply_to), "snd_settle_mode": 1, "rcv_settle_mode": 0}
        self._expected: dict[str, asyncio.Future[Response]] = {}

    @contextmanager
    def expecting(self, number: str) -> Iterator[asyncio.Future[Response]]:
        if self.error is not None:
            raise self.error
        self._expected[number] = answer = asyncio.get_running_loop().create_future()
        try:
            yield answer
        finally:
            del self._expected[number]

    def on_lost(self, error: errors.SbpairError) -> None:
        super().on_lost(error)
        for answer in self._expected.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # mark as retrieved: the send may fail first

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._on_reply(delivery)

    def _on_reply(self, delivery: Delivery) -> None:
        if not delivery.settled:
            self._link.session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)
        if self.credit <= CREDIT // 2:
            self.grant(CREDIT)
        try:
            sections = Sections.split(delivery.payload)
            answer = self._expected.get(str(sections.read_properties().correlation_id))
            if answer is not None and not answer.done():
                answer.set_result(_response(sections))
        except errors.ProtocolError as error:
            # The request it answers is unknown.
            self.on_lost(errors.Unreachable(f"{self.address} sent a malformed response: {error.message}"))


def _response(sections: Sections) -> Response:
    """Decode a response: `$cbs` and `$management` use different names for status and description."""
    properties = sections.read_application_properties()
    status = properties.get("statusCode", properties.get("status-code"))
    if not isinstance(status, int):
        raise errors.ProtocolError("it has no status")
    description = properties.get("statusDescription", properties.get("status-description"))
    body = next((value for code, value in sections.read_body() if code == VALUE), None)
    return Response(
        int(status), str(description or ""), properties.get("errorCondition"), body if isinstance(body, Map) else Map()
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """The state of a claim for one audience. Both are seconds since 1970."""

    renew_at: float
    expires_at: float


class AmqpClient:
    """A signed-in connection. Created by `connect`."""

    def __init__(self, stream: Stream, endpoint: Endpoint, get_token: GetToken | None, now: Now | None) -> None:
        self._stream = stream
        self._endpoint = endpoint
        self._get_token = get_token
        self._now, self._signing_time = now or endpoint.clock.now, now or endpoint.clock.latest
        self._nodes: dict[str, RequestClient] = {}
        self._claims: dict[str, Claim] = {}
        self._claimed = asyncio.Event()
        self._opening = asyncio.Lock()
        self._sending: Session | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def error(self) -> errors.SbpairError | None:
        """Why the connection was lost, else None."""
        return self._stream.error

    async def sender(self, address: str) -> RawSender:
        """Open a link that sends to an entity. Raises EntityMissing, NotAuthorized, NotAuthenticated, Unavailable."""
        await self.authorize(address)
        if self._sending is None or not self._sending.usable or self._sending.is_full:
            self._sending = self.begin()
        return await self._attached(RawSender(self._stream, self._sending, address))

    async def receiver(self, address: str) -> RawReceiver:
        """Open a link that receives from an entity under lock, without credit until `grant`."""
        await self.authorize(address)
        return await self._attached(RawReceiver(self._stream, self.begin(), address))

    async def session(self, address: str, session_id: str) -> SessionReceiver:
        """Lock a session of an entity for the link's life; its lock must be renewed.

        Raises SessionLocked if another receiver holds it, ServiceRefused if the entity has no sessions.
        """
        await self.authorize(address)
        return await self._attached(SessionReceiver(self._stream, self.begin(), address, session_id))

    async def next_session(self, address: str, seconds: float) -> SessionReceiver:
        """Lock the next session of an entity that has messages. Raises TimedOut if none is free within `seconds`."""
        await self.authorize(address)
        return await self._attached(SessionReceiver(self._stream, self.begin(), address, None, seconds))

    async def _attached(self, link: Link) -> Link:
        """Attach a link. Raises TokenExpired for a refusal once its token has ended."""
        with self._naming_ends(link.address):
            return await link.attach()

    @contextmanager
    def _naming_ends(self, address: str) -> Iterator[None]:
        try:
            yield
        except errors.AccessError as error:
            claim = self._claims.get(self._audience(address))
            if claim is None or not self._may_have_ended(claim.expires_at):
                raise
            raise errors.TokenExpired(error.message, hint=RETRY_HINT) from error

    def _may_have_ended(self, expires_at: float) -> bool:
        return self._now() + CLOCK_SECONDS >= expires_at

    async def request(
        self, entity: str, operation: str, body: dict[str, Value], *, link: RawReceiver | None = None
    ) -> Response:
        """Call the entity's management node, and return any status. It counts as a use of `link`."""
        await self.authorize(entity)
        async with self._opening:
            with self._naming_ends(entity):
                node = await self._node(f"{entity}/$management")
        properties: dict[str, Value] = {"operation": f"com.microsoft:{operation}"}
        if link is not None:
            properties["associated-link-name"] = link.name
        return await node.call(properties, body)

    async def _call(
        self,
        entity: str,
        operation: str,
        body: dict[str, Value],
        doing: str,
        *statuses: int,
        link: RawReceiver | None = None,
    ) -> Response:
        """Call the management node. Raises for a refusal: TokenExpired once the token has ended."""
        answer = await self.request(entity, operation, body, link=link)
        with self._naming_ends(entity):
            _check_status(answer, doing, 200, *statuses)
        return answer

    async def renew_session(self, session: SessionReceiver) -> int:
        """Renew a session's lock; return its expiry, in ms since 1970 by the service. Raises SessionLockLost."""
        answer = await self._request_for(session, "renew-session-lock", {})
        return int(answer.body.get("expiration") or 0)

    async def set_session_state(self, session: SessionReceiver, state: bytes | None) -> None:
        """Store the state of a held session. Raises SessionLockLost."""
        await self._request_for(session, "set-session-state", {"session-state": state})

    async def session_state(self, entity: str, session_id: str) -> bytes | None:
        """Return the state of a session, held or not."""
        doing = f"asking about a session of {entity!r}"
        answer = await self._call(entity, "get-session-state", {"session-id": session_id}, doing)
        state = answer.body.get("session-state")
        return state if isinstance(state, bytes) else None

    async def session_ids(self, entity: str, limit: int) -> list[str]:
        """Return the ids of up to `limit` sessions with messages or a state. Raises ServiceRefused without sessions."""
        found: list[str] = []
        while len(found) < limit:
            page: dict[str, Value] = {"last-updated-time": ANY_TIME, "skip": Int(len(found))}
            page["top"] = Int(min(SESSION_PAGE, limit - len(found)))
            answer = await self._call(entity, "get-message-sessions", page, f"listing the sessions of {entity!r}", 204)
            ids = list(map(str, answer.body.get("sessions-ids") or ()))
            if not ids:
                break
            found += ids
        return found

    async def _request_for(self, session: SessionReceiver, operation: str, body: dict[str, Value]) -> Response:
        named = {"session-id": session.session_id, **body}
        return await self._call(session.address, operation, named, f"{operation} in {session.address!r}", link=session)

    async def renew_locks(self, entity: str, lock_tokens: Sequence[uuid.UUID]) -> list[int]:
        """Renew locks; return their expiry times, in ms since 1970. Raises MessageLockLost."""
        body: dict[str, Value] = {"lock-tokens": Array(lock_tokens, of=uuid.UUID)}
        answer = await self._call(entity, "renew-lock", body, f"renewing locks in {entity!r}")
        return [int(moment) for moment in answer.body.get("expirations") or ()]

    async def settle_locked(
        self, entity: str, lock_tokens: Sequence[uuid.UUID], outcome: Outcome, session: SessionReceiver | None = None
    ) -> None:
        """Settle locked messages alike, without the link that they came from. RELEASED abandons, as there is no better.

        Those of a session need its lock. Raises MessageLockLost if it was too late for one of them; none of them may be
        settled then.
        """
        body: dict[str, Value] = {"lock-tokens": Array(lock_tokens, of=uuid.UUID), "disposition-status": "abandoned"}
        body |= _in_session(session)
        if isinstance(outcome, Accepted):
            body["disposition-status"] = "completed"
        elif isinstance(outcome, Rejected):
            info = (outcome.error and outcome.error.info) or Map()
            body |= {"disposition-status": "suspended", "deadletter-reason": info.get("DeadLetterReason")}
            body["deadletter-description"] = info.get("DeadLetterErrorDescription")
        await self._call(entity, "update-disposition", body, f"settling in {entity!r}", link=session)

    async def receive_deferred(
        self, entity: str, numbers: Sequence[int], session: SessionReceiver | None = None
    ) -> list[tuple[uuid.UUID, bytes]]:
        """Lock deferred messages by their sequence numbers; return their lock tokens and encoded messages.

        Those of a session need its lock. Raises ServiceRefused if one of them is not deferred, and locks none then.
        """
        locking: dict[str, Value] = {"receiver-settle-mode": UInt(1), **_in_session(session)}
        body: dict[str, Value] = {"sequence-numbers": Array(map(Long, numbers), of=Long), **locking}
        doing = f"receiving deferred messages of {entity!r}"
        answer = await self._call(entity, "receive-by-sequence-number", body, doing, link=session)
        return [(entry["lock-token"], entry["message"]) for entry in answer.body.get("messages") or ()]

    async def schedule(self, entity: str, entries: Sequence[Map]) -> list[int]:
        """Send messages that state when they are due; return their sequence numbers.

        An entry has the encoded `message`, and its `message-id`, `session-id` and `partition-key` if it has them.
        """
        answer = await self._call(entity, "schedule-message", {"messages": [*entries]}, f"scheduling in {entity!r}")
        return [int(number) for number in answer.body.get("sequence-numbers") or ()]

    async def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        """Remove scheduled messages. Raises ServiceRefused if one of them is not scheduled, and removes none then."""
        body: dict[str, Value] = {"sequence-numbers": Array(map(Long, numbers), of=Long)}
        await self._call(entity, "cancel-scheduled-message", body, f"cancelling scheduled messages of {entity!r}")

    async def peek(self, entity: str, from_sequence: int, count: int, *, bodies: bool = True) -> list[bytes]:
        """Return up to `count` encoded messages from a sequence number on; [] if there are none. Locks nothing.

        Without `bodies`, the service may leave those out.
        """
        body: dict[str, Value] = {"from-sequence-number": Long(from_sequence), "message-count": Int(count)}
        if not bodies:
            body["omit-message-body"] = True
        answer = await self._call(entity, "peek-message", body, f"peeking in {entity!r}", 204)
        return [entry["message"] for entry in answer.body.get("messages") or () if "message" in entry]

    async def delete_batch(self, entity: str, count: int, before_ms: int) -> int:
        """Delete up to `count` messages that were enqueued before a time, unseen; return how many.

        Locked, deferred and scheduled ones stay. Raises ServiceRefused for too many at once, and where there is no such
        request, as in partitioned entities.
        """
        body: dict[str, Value] = {"message-count": Int(count), "enqueued-time-utc": Timestamp(before_ms)}
        answer = await self._call(entity, "batch-delete-messages", body, f"deleting in {entity!r}", 204)
        return int(answer.body.get("message-count") or 0) if answer.status == 200 else 0

    async def renew_claims(self) -> None:
        """Renew each claim before it expires, until cancelled; a claim that cannot be renewed ends the connection."""
        try:
            while self.error is None:
                await self._wait_for_renewal()
                async with self._opening:
                    for audience in [each for each in self._claims if not self._is_claimed(each)]:
                        await self._renew(audience)
        except errors.SbpairError as error:
            self._stream.fail(error)

    async def lost(self) -> None:
        """Wait until the connection is lost."""
        await self._stream.lost.wait()

    def abort(self, error: errors.SbpairError) -> None:
        """End the connection at once; pending requests fail with this error."""
        self._stream.abort(error)

    async def close(self) -> None:
        await self._stream.close()

    def begin(self) -> Session:
        """Begin a session. Raises Unavailable once the connection is lost."""
        if self._stream.error is not None:
            raise self._stream.error
        try:
            return self._stream.connection.begin()
        except errors.ProtocolError as error:
            raise errors.Unreachable(f"no session with {self._endpoint.authority}: {error.message}") from error

    # Called with `_opening` held.

    async def _renew(self, audience: str) -> None:
        try:
            await self._put_token(audience)
        except errors.Unavailable:
            claim, again = self._claims[audience], self._now() + RETRY_RENEW_SECONDS
            if again >= claim.expires_at:
                raise
            self._claims[audience] = Claim(again, claim.expires_at)

    async def _put_token(self, audience: str) -> None:
        entity = audience.split("/", 3)[3]
        endpoint = self._endpoint.keyed_for(entity)
        credential = endpoint.present
        kind, token = await self._token(credential, audience)
        doing = f"signing in to {self._endpoint.authority} for {entity!r}"
        try:
            async with asyncio.timeout(None if self._claims else FIRST_ANSWER_SECONDS):
                cbs = await self._node("$cbs")
                answer = await cbs.call({"operation": "put-token", "type": kind, "name": audience}, token.value)
            _check_status(answer, doing, 200, 202)
        except TimeoutError:
            silent = unreachable(self._endpoint.name, self._stream.peer, FIRST_ANSWER_SECONDS, doing=doing)
            # Its close is not waited for.
            self._stream.abort(silent)
            raise silent from None
        except errors.EntityMissing as error:
            # Of a queue's parts, such as its dead letters, the queue is named.
            text = f"{entity.partition('/$')[0]} does not exist in {self._endpoint.name}"
            raise errors.EntityMissing(text, entity=entity, namespace=self._endpoint.name, hint=MISSING_HINT) from error
        except (errors.ServiceRefused, errors.NotAuthenticated) as error:
            if isinstance(self._endpoint.credential, Identity) and self._may_have_ended(token.expires_at):
                # It ended on the way.
                raise errors.TokenExpired(error.message, hint=RETRY_HINT) from error
            # Not the fault of a message, whatever the reason.
            if await self._may_sign_again() or await has_another(endpoint.rotated, credential):
                await self._put_token(audience)
                return
            raise refused_link(endpoint, entity, error.message) from error
        self._endpoint.signed.add(entity)
        now = self._now()
        life = max((token.expires_at - now) * (1 - RENEW_LEFT), MIN_RENEW_SECONDS)
        self._claims[audience] = Claim(min(now + life, max(now, token.expires_at)), token.expires_at)
        self._claimed.set()

    async def _may_sign_again(self) -> bool:
        """Ask for the time, unless it is known. Return whether it explains that a new signature was refused."""
        if self._endpoint.clock.known() is not None:
            return False
        await ask_time(self._endpoint)
        return isinstance(self._endpoint.credential, SasKey) and bool(self._endpoint.clock.difference())

    async def _token(self, credential: Credential, audience: str) -> tuple[str, Token]:
        if isinstance(credential, SasKey | SasToken):
            return SAS_TYPE, signed_token(credential, audience, self._signing_time())
        if self._get_token is None:
            raise errors.UsageError("sign-in by identity needs a token provider", hint="pass get_token")
        return JWT_TYPE, Token(*await self._get_token(credential, ENTRA_SCOPE))

    async def _node(self, name: str) -> RequestClient:
        node = self._nodes.get(name)
        if node is None or node.error is not None:
            node = RequestClient(self._stream, self.begin(), name)
            await node.open()
            self._nodes[name] = node
        return node

    # Called without it.

    def _audience(self, address: str) -> str:
        return f"sb://{self._endpoint.authority}/{address}"

    async def authorize(self, address: str) -> None:
        """Put a token for an entity, unless there is one. Raises NotAuthenticated, EntityMissing, Unavailable."""
        audience = self._audience(address)
        if self._is_claimed(audience):
            return
        async with self._opening:
            if not self._is_claimed(audience):
                await self._put_token(audience)

    def forget_claim(self, address: str) -> None:
        """Put a token again before the next link to an entity: the service has refused the one that it has."""
        self._claims.pop(self._audience(address), None)

    def _is_claimed(self, audience: str) -> bool:
        claim = self._claims.get(audience)
        return claim is not None and self._now() < claim.renew_at

    async def _wait_for_renewal(self) -> None:
        self._claimed.clear()
        next_at = min((claim.renew_at for claim in self._claims.values()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if next_at is None else max(0.0, next_at - self._now())):
                await self._claimed.wait()


@asynccontextmanager
async def connect(
    endpoint: Endpoint,
    *,
    get_token: GetToken | None = None,
    now: Now | None = None,
    container_id: str = "",
    make: MakeStream = Stream,
) -> AsyncIterator[AmqpClient]:
    """Connect to a namespace; the connection closes at the end of the block.

    `get_token` ((identity, scope) -> token, seconds since 1970) is required if the endpoint's
    credential is an Identity. `now` is the time by which claims are made and renewed, instead of the endpoint's clock.
    """
    if isinstance(endpoint.credential, Identity) and get_token is not None:
        # Without a token a connection is of no use, and its peer is not to blame.
        await get_token(endpoint.credential, ENTRA_SCOPE)
    stream = await open_stream(endpoint, container_id or f"sbpair-{uuid.uuid4()}", make=make)
    client = AmqpClient(stream, endpoint, get_token, now)
    renewing = asyncio.create_task(client.renew_claims(), name=f"renew claims of {endpoint.name}")
    try:
        yield client
    finally:
        renewing.cancel()
        await client.close()


def _in_session(session: SessionReceiver | None) -> dict[str, Value]:
    return {} if session is None else {"session-id": session.session_id}


def _check_status(answer: Response, doing: str, *statuses: int) -> None:
    if answer.status not in statuses:
        raise status_error(answer.status, answer.description, doing, answer.condition)


def lock_token(tag: bytes) -> uuid.UUID:
    """Return the lock token of a delivery: its tag is a GUID in .NET's byte order. Raises ProtocolError."""
    if len(tag) != 16:
        raise errors.ProtocolError("a delivery's tag is not a lock token", condition="amqp:invalid-field")
    return uuid.UUID(bytes_le=tag)
