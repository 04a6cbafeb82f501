"""A client of two relay endpoints, for asyncio: requests go to the active one, or else to its backup, which then swap.

Invariant: a request is sent a second time only if the first one cannot have been executed, its method is idempotent,
or the caller has asked for it.
"""

from __future__ import annotations

import random
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from sbpair.errors import BothFailed, Exhausted, InDoubt, RelayRejected, SbpairError, Unavailable, UsageError
from sbpair.failover.events import EventReporter
from sbpair.model.pair import SIDES, Side
from sbpair.relay.answer_verdicts import (
    AnswerVerdict,
    Reissue,
    judged_answer,
    judged_handshake,
    judged_silence,
    may_reissue,
)
from sbpair.relay.body_parts import RequestBody, SentBody
from sbpair.relay.control_messages import NOT_PASSED, TOKEN_HEADER, Headers, checked_headers
from sbpair.relay.events import (
    OnRelayEvent,
    RelayBothFailed,
    RelayReporter,
    RelayRolesSwapped,
    RelaySideChosen,
    RelaySideFailed,
)
from sbpair.relay.relay_connections import (
    LOST,
    MAX_MESSAGE_BYTES,
    RelayClock,
    RelayTokens,
    SentMark,
    TimeLimit,
    close_session,
    failure_of,
    http_options,
    one_line,
    open_session,
    open_socket,
    service_error,
)
from sbpair.relay.relay_endpoint import RelayPair, other_side

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

    from sbpair.relay.relay_endpoint import RelayEndpoint

TIMEOUT_SECONDS: Final = 70.0
"""A little more than the service's own limit for an answer, 60 s: its answer names the reason."""

MAX_ERROR_BYTES: Final = 16 * 1024

_METHOD: Final = re.compile(r"[A-Za-z][A-Za-z0-9!#$%&'*+.^_`|~-]{0,31}")

T = TypeVar("T")


class SideFailure(Exception):
    """The failure of an attempt on one side, with its verdict."""

    def __init__(self, verdict: AnswerVerdict, error: SbpairError) -> None:
        super().__init__(error.message)
        self.verdict = verdict
        self.error = error


class AsyncRelayResponse:
    """The answer of a listener. Read it whole, or iterate over it; then, or to abandon it, close it.

    `side` is the side that answered. The body is as sent: compressed if its Content-Encoding says so.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, sent: RequestBody, side: Side, clock: RelayClock, seconds: float
    ) -> None:
        self.side = side
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: CIMultiDictProxy[str] = response.headers
        self._response = response
        self._sent = sent
        self._clock = clock
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the parts of the body. Raises InDoubt if it ends too soon, or pauses for the time limit."""
        content = self._response.content
        try:
            while True:
                async with TimeLimit(self._clock, self._seconds):
                    part = await content.readany()
                if not part:
                    return
                yield part
        except (*LOST, RuntimeError):
            # aiohttp raises RuntimeError for a connection that was closed here.
            raise InDoubt(
                "the answer of the relay ended too soon: the request was executed, perhaps not to its end",
                hint="check whether the request was executed",
            ) from None
        finally:
            await self.close()

    async def read(self) -> bytes:
        """Return the whole body. Raises InDoubt."""
        return b"".join([part async for part in self])

    async def close(self) -> None:
        """End the connection, and the sending of a body, unless the answer was read to its end."""
        self._response.close()
        await self._sent.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


class AsyncRelayClient:
    """A client of a service that listens on two relay endpoints.

    One side, chosen at random or by `first`, is active. A request goes there. If that side is not available, the
    request is reissued to the backup, and the two swap roles. Only connections that fail, time-outs and the service's
    own 404, 500, 502, 503 and 504 count. Every answer of a listener is an answer, whatever its status.

    `timeout` is the seconds until an answer begins, and of each pause in a body. Each event is reported to `on_event`.
    Coroutines may share a client. Raises UsageError for invalid arguments, and after `close`.
    """

    def __init__(
        self,
        pair: RelayPair,
        *,
        first: Side | None = None,
        chance: random.Random | None = None,
        timeout: float = TIMEOUT_SECONDS,
        on_event: OnRelayEvent | None = None,
        clock: RelayClock | None = None,
    ) -> None:
        if first is not None and first not in SIDES:
            raise UsageError(f"expected primary or secondary, got {first!r}", hint="leave it out for a random one")
        self.pair = pair
        self._timeout = _checked_timeout(timeout)
        self._clock = clock or RelayClock()
        self._report: RelayReporter = EventReporter("a relay client", on_event)
        chosen: Side = (chance or random.SystemRandom()).choice(SIDES)
        self._active: Side = chosen if first is None else first
        self._tokens: dict[Side, RelayTokens] = {}
        self._session: aiohttp.ClientSession | None = None
        self._answers: weakref.WeakSet[AsyncRelayResponse] = weakref.WeakSet()
        self.is_closed = False
        self._report(RelaySideChosen(pair[self._active].path, self._active))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()

    @property
    def active(self) -> Side:
        """The side that requests go to first."""
        return self._active

    def swap_roles(self) -> None:
        """Swap the roles, as after a failure of the active side."""
        self._become(other_side(self._active), "a swap was commanded")

    async def close(self) -> None:
        """Close all connections, also those of WebSockets."""
        self.is_closed = True
        for answer in list(self._answers):
            await answer.close()
        if self._session is not None:
            await close_session(self._session)
        for each in self._tokens.values():
            await each.close()

    async def request(
        self,
        method: str,
        suffix: str = "",
        *,
        headers: Headers | None = None,
        body: SentBody = None,
        reissue: Reissue = "safe",
        timeout: float | None = None,  # noqa: ASYNC109  # a limit of each attempt
    ) -> AsyncRelayResponse:
        """Send an HTTP request, and return the listener's answer when it begins. `suffix` follows the endpoint's path.

        With `reissue="safe"` a request that may have been executed is reissued only if its method is idempotent. With
        "always" it is reissued in any case, and may be executed twice. Of a body that is an iterator, 64 kB are kept
        for that; a longer one that was begun cannot be reissued. One that is not async is iterated over in a thread.

        Raises InDoubt if it may have been executed and is not reissued. Then, as after each failure of the active side,
        the roles are swapped: the next request goes to the other side. Raises BothFailed, with both reasons, if neither
        side is available; the roles stay. Raises Unavailable for a long body, NotAuthenticated, NotAuthorized and
        ServiceRefused for a refusal of the service, UsageError for invalid arguments, and the error of `body`.
        """
        if reissue not in ("safe", "always"):
            raise UsageError(
                f"expected safe or always as reissue, got {str(reissue)[:40]!r}", hint="safe is the default"
            )
        if not isinstance(method, str) or not _METHOD.fullmatch(method) or method.upper() == "CONNECT":
            raise UsageError("the method of a relay request is not valid", hint="use one such as GET or POST")
        seconds = self._timeout if timeout is None else _checked_timeout(timeout)
        for endpoint in (self.pair.primary, self.pair.secondary):
            endpoint.request_url(suffix)
        given, sent = _sent_headers(headers), RequestBody(body)

        async def attempt(side: Side) -> AsyncRelayResponse:
            return await self._tokens_of(side).spend(
                lambda token: self._request(side, method, suffix, [*given, (TOKEN_HEADER, token.value)], sent, seconds),
                lambda: sent.is_complete,
            )

        def may(verdict: AnswerVerdict) -> bool:
            return may_reissue(verdict, method, reissue, is_complete=sent.is_complete)

        try:
            response = await self._on_either_side(attempt, may)
        except BaseException:
            await sent.close()
            raise
        # Its body may still be on its way.
        self._answers.add(response)
        return response

    async def connect(
        self,
        suffix: str = "",
        *,
        protocols: Iterable[str] = (),
        headers: Headers | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timeout: float | None = None,  # noqa: ASYNC109  # a limit of each attempt
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to a listener, and return it. `protocols` are offered in this order.

        A handshake executes nothing, so that it is always reissued if the active side is not available. A connection
        that breaks later is the caller's: open another one. Raises RelayRejected with the listener's status and reason;
        BothFailed, NotAuthenticated, NotAuthorized, ServiceRefused, UsageError as `request` does.
        """
        seconds = self._timeout if timeout is None else _checked_timeout(timeout)
        for endpoint in (self.pair.primary, self.pair.secondary):
            endpoint.connect_url(suffix)
        given, offered = _sent_headers(headers), tuple(protocols)
        checked_headers([("Sec-WebSocket-Protocol", each) for each in offered])

        async def attempt(side: Side) -> aiohttp.ClientWebSocketResponse:
            return await self._tokens_of(side).spend(
                lambda token: self._connect(
                    side, suffix, offered, [*given, (TOKEN_HEADER, token.value)], max_message_bytes, seconds
                )
            )

        return await self._on_either_side(attempt, lambda verdict: verdict.is_unavailable)

    # Both sides

    async def _on_either_side(self, attempt: Callable[[Side], Awaitable[T]], may: Callable[[AnswerVerdict], bool]) -> T:
        if self.is_closed:
            raise UsageError("the client has been closed", hint="make another one")
        active = self._active
        failures: dict[Side, SideFailure] = {}
        for side in (active, other_side(active)):
            try:
                result = await attempt(side)
            except SideFailure as failure:
                failures[side] = failure
                in_doubt = failure.verdict is AnswerVerdict.IN_DOUBT
                self._report(RelaySideFailed(self.pair[side].path, side, failure.error.message, in_doubt))
                if side == active and not may(failure.verdict):
                    self._leave(active, failure.error.message)
                    raise self._alone(side, failure) from None
            except SbpairError as error:
                if not failures:
                    raise
                failures[side] = SideFailure(AnswerVerdict.REFUSED, error)
            else:
                if failures:
                    self._leave(active, failures[active].error.message)
                return result
        raise self._both_failed(failures)

    def _alone(self, side: Side, failure: SideFailure) -> SbpairError:
        """Return the error of a request that is not reissued."""
        if failure.verdict is not AnswerVerdict.IN_DOUBT:
            if isinstance(failure.error, Unavailable):
                failure.error.side = side
            return failure.error
        error = InDoubt(
            f"a request may have been executed, and was not sent again: the {side}: {failure.error.message}",
            hint='check whether it was executed; reissue="always" sends it again, and may execute it twice',
        )
        error.side = side
        return error

    def _both_failed(self, failures: dict[Side, SideFailure]) -> BothFailed:
        reasons: dict[str, Exception] = {side: each.error for side, each in failures.items()}
        doubtful = tuple(side for side, each in failures.items() if each.verdict is AnswerVerdict.IN_DOUBT)
        text = "; ".join(f"the {side}: {error}" for side, error in reasons.items())
        self._report(RelayBothFailed(self.pair[self._active].path, text))
        hints = {each.error.hint for each in failures.values()}
        hint = hints.pop() if len(hints) == 1 else "send it again once one of them is available"
        if doubtful:
            hint = f"the {' and the '.join(doubtful)} may have executed it: check that before you send it again"
        return BothFailed(f"neither relay endpoint has answered: {text}", reasons=reasons, in_doubt=doubtful, hint=hint)

    def _leave(self, failed: Side, reason: str) -> None:
        """Make the other side active, unless another request has done so."""
        if self._active == failed:
            self._become(other_side(failed), reason)

    def _become(self, active: Side, reason: str) -> None:
        self._active = active
        self._report(RelayRolesSwapped(self.pair[active].path, active, other_side(active), reason))

    # One side

    async def _request(
        self, side: Side, method: str, suffix: str, given: list[tuple[str, str]], body: RequestBody, seconds: float
    ) -> AsyncRelayResponse:
        endpoint, mark = self.pair[side], SentMark()
        headers, session, options = self._prepared(side, given)
        if body.data is body and body.length is not None:
            headers["Content-Length"] = str(body.length)
        try:
            async with TimeLimit(self._clock, seconds) as limit:
                body.on_part = limit.postpone
                response = await session.request(
                    method,
                    URL(endpoint.request_url(suffix), encoded=True),
                    headers=headers,
                    data=body.data,
                    allow_redirects=False,
                    trace_request_ctx=mark,
                    **options,
                )
                has_via = "Via" in response.headers
                verdict = judged_answer(response.status, has_via=has_via, was_repeated=mark.times > 1)
                if verdict is AnswerVerdict.ANSWER:
                    return AsyncRelayResponse(response, body, side, self._clock, seconds)
                refusal = service_error(endpoint, response.status, await _refusal_text(response))
        except LOST as error:
            if body.error is not None:
                raise body.error from None
            raise _lost(error, endpoint, was_sent=mark.times > 0, seconds=seconds) from None
        if verdict.is_unavailable:
            raise SideFailure(verdict, refusal)
        raise refusal

    async def _connect(
        self,
        side: Side,
        suffix: str,
        protocols: tuple[str, ...],
        given: list[tuple[str, str]],
        max_message_bytes: int,
        seconds: float,
    ) -> aiohttp.ClientWebSocketResponse:
        endpoint = self.pair[side]
        headers, session, options = self._prepared(side, given)
        options |= {"protocols": protocols, "headers": headers, "max_msg_size": max_message_bytes}
        try:
            async with TimeLimit(self._clock, seconds):
                return await open_socket(session, endpoint.connect_url(suffix), **options)
        except aiohttp.WSServerHandshakeError as error:
            status, reason = error.status, error.message
            refusal, verdict = service_error(endpoint, status, reason), judged_handshake(status, reason)
        except LOST as error:
            raise _lost(error, endpoint, was_sent=False, seconds=seconds) from None
        if verdict is AnswerVerdict.ANSWER:
            text = one_line(reason)
            what = f"{endpoint}: the listener rejects the WebSocket: {status} {text}".rstrip()
            raise RelayRejected(what, status=status, reason=text)
        if verdict.is_unavailable:
            raise SideFailure(verdict, refusal)
        raise refusal

    def _prepared(
        self, side: Side, given: list[tuple[str, str]]
    ) -> tuple[CIMultiDict[str], aiohttp.ClientSession, dict[str, Any]]:
        if self._session is None:
            self._session = open_session()
        return CIMultiDict(given), self._session, http_options(self.pair[side])

    def _tokens_of(self, side: Side) -> RelayTokens:
        if side not in self._tokens:
            self._tokens[side] = RelayTokens(self.pair[side], self._clock)
        return self._tokens[side]


def _lost(error: Exception, endpoint: RelayEndpoint, *, was_sent: bool, seconds: float) -> SideFailure | Exhausted:
    """Return the failure of a side; Exhausted where this machine cannot reach either, and no roles change."""
    lost = failure_of(error, endpoint, was_sent=was_sent, seconds=seconds)
    return lost if isinstance(lost, Exhausted) else SideFailure(judged_silence(was_sent=was_sent), lost)


async def _refusal_text(response: aiohttp.ClientResponse) -> str:
    """Return the text of the service's error document, or else its reason phrase."""
    import json

    data = b""
    try:
        while len(data) <= MAX_ERROR_BYTES and (part := await response.content.readany()):
            data += part
        text = json.loads(data)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError, aiohttp.ClientError):
        text = ""
    finally:
        # A connection whose answer was read can be used again.
        if not response.content.at_eof():
            response.close()
    return text if isinstance(text, str) and text else response.reason or ""


def _sent_headers(headers: Headers | None) -> list[tuple[str, str]]:
    """Return the headers of a request. Raises UsageError for those that belong to the connection or the relay."""
    pairs = checked_headers(headers)
    for name, _ in pairs:
        if name.lower() in NOT_PASSED or name.lower().startswith("sec-websocket-"):
            raise UsageError(
                f"the header {name[:40]} cannot be given", hint="the client makes it, or the relay drops it"
            )
    return pairs


def _checked_timeout(seconds: float) -> float:
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= 86_400:
        raise UsageError(f"expected a timeout of up to 86400 seconds, got {seconds!r}", hint="70 is the default")
    return float(seconds)
