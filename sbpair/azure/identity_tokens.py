"""The tokens of identities: each is used until the second it expires, and renewed in the background before.

azure-identity has one error for a provider that is away and for one that refuses. Here they differ: `NoToken` may be
waited for, `NotAuthenticated` may not. Invariant: no error and no log has a token or a secret.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AioHttpTransport
from azure.identity import aio

from sbpair.azure.management_errors import SIGN_IN_HINT
from sbpair.azure.transport import bounded_session
from sbpair.errors import NotAuthenticated, NoToken, SbpairError
from sbpair.http_tunnel import client_context
from sbpair.model.connect_errors import cause_of
from sbpair.model.pair import PROVIDER_REMEDIES, Identity
from sbpair.operating_system.shortages import shortage_of
from sbpair.sync_async import LoopThread

if TYPE_CHECKING:
    import aiohttp
    from azure.core.credentials_async import AsyncTokenCredential

TOKEN_SECONDS = 30.0
"""Time limit of one request for a token, its repetitions by azure-identity included."""

GRACE_SECONDS = 5.0
"""How long `close` waits for a pending request that may run a program."""

BRIEF_SECONDS = 0.1
"""The same for one over HTTP, which can be cancelled: the identities of all pairs are closed one by one."""

RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
"""The first and the longest wait between requests for a new token."""

AWAY_SECONDS = 2.0
"""The longest wait without a valid token."""

WARN_SECONDS = 300.0
"""How long the next warning of the same failure waits."""

AWAY_HINT = f"it is asked again; {PROVIDER_REMEDIES}"
REFUSED = frozenset({400, 401, 403})
METADATA_HOST = "169.254.169.254"
"""The address of managed identities in virtual machines. No machine outside of Azure has it."""

_ENTRA_CODE = re.compile(r"AADSTS\d{1,8}")

Now: TypeAlias = Callable[[], float]
Sleep: TypeAlias = Callable[[float], Awaitable[object]]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Attempt:
    """How the last request of an attempt to get a token ended: its host and status, or why there was no answer."""

    host: str = ""
    status: int = 0
    failure: str = ""


_ATTEMPT: ContextVar[Attempt] = ContextVar("_ATTEMPT")


class ObservedTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core loads it lazily
    """A transport that notes how a request ends: the errors of azure-identity's chains do not tell."""

    def __init__(self, ca_file: str | None) -> None:
        super().__init__()
        self.session: aiohttp.ClientSession | None = None
        self._ca_file = ca_file
        self._opened = False

    async def open(self) -> None:
        if not self._opened:  # in the loop that uses it
            self._opened = True
            self.session = bounded_session(client_context(self._ca_file) if self._ca_file else True)
        await super().open()

    async def send(self, request: Any, **options: Any) -> Any:
        noted = _ATTEMPT.get()
        noted.host, noted.status, noted.failure = str(urlsplit(request.url).hostname), 0, ""
        try:
            response = await super().send(request, **options)
        except AzureError as error:
            noted.failure = cause_of(error.__cause__ or error)
            raise
        noted.status = response.status_code
        return response


class KeptToken:
    """One token, used until it expires. From half of its life on, `ask` is called again and again for a new one.

    An answer that expires no later is the old token. Callers share a pending request, even if some are cancelled: one
    that runs a program (`az`) is slow, and causes a warning if it is abandoned.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, AccessToken]], now: Now, sleep: Sleep) -> None:
        self._ask = ask
        self._now = now
        self._sleep = sleep
        self._token: AccessToken | None = None
        self._error: SbpairError | None = None
        self.pending: asyncio.Task[AccessToken] | None = None
        self.renewing: asyncio.Task[None] | None = None

    async def get(self) -> AccessToken:
        """Return a valid token. Raises NoToken, NotAuthenticated, Exhausted."""
        if self._token is not None and self._left > 0:
            return self._token
        if self._token is not None and self._error is not None:
            raise type(self._error)(self._error.message, hint=self._error.hint)
        return await self._request()

    @property
    def _left(self) -> float:
        return 0.0 if self._token is None else max(0.0, self._token.expires_on - self._now())

    async def _request(self) -> AccessToken:
        if self.pending is None:
            self.pending = asyncio.create_task(self._ask(), name="request a token")
            self.pending.add_done_callback(self._on_done)
        return await asyncio.shield(self.pending)

    def _on_done(self, done: asyncio.Task[AccessToken]) -> None:
        self.pending = None
        # The exception is marked as retrieved: every caller may have been cancelled.
        if done.cancelled() or done.exception() is not None:
            return
        self._error = None
        if self._token is None or done.result().expires_on > self._token.expires_on:
            self._token = done.result()
        if self.renewing is None and self._left > 0:
            self.renewing = asyncio.create_task(self._renew(), name="renew a token")

    async def _renew(self) -> None:
        """Request a new token until one is refused, and none is left."""
        loop, token, wait, warn_at = asyncio.get_running_loop(), None, RETRY_SECONDS, -math.inf
        while self._token is not None:
            if self._token is not token:
                token, wait, warn_at = self._token, RETRY_SECONDS, -math.inf
                await self._sleep(self._left / 2)
            else:
                await self._sleep(min(wait, self._left or AWAY_SECONDS))
                wait = min(2 * wait, MAX_RETRY_SECONDS)
            try:
                await self._request()
            except SbpairError as error:
                self._error = error
                if self._left and loop.time() >= warn_at:
                    warn_at = loop.time() + WARN_SECONDS
                    log.warning("%s; the present token is good for %.0f s more", error.message, self._left)
                if not (self._left or isinstance(error, NoToken)):
                    self._token = None
        self.renewing = None


class IdentityTokens:
    """An AsyncTokenCredential whose tokens are kept. `source` is a credential of azure-identity, sync or async.

    `title` names it in errors, if it is one of several; `owned` are closed with it.
    """

    def __init__(
        self,
        source: Any,
        title: str = "",
        *owned: Any,
        now: Now = time.time,
        sleep: Sleep = asyncio.sleep,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._source = source
        self._title = title
        self._owned = owned
        self._now = now
        self._sleep = sleep
        self._grace_seconds = grace_seconds
        self._answered: set[str] = set()
        self._given: dict[tuple[str, ...], str] = {}
        self._kept: dict[tuple[object, ...], KeptToken] = {}

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a valid token. Raises NoToken, NotAuthenticated, Exhausted."""
        ask = partial(self._ask, *scopes, **options)
        if options.get("claims"):
            return await ask()
        key = (scopes, *sorted(options.items()))
        if key not in self._kept:
            self._kept[key] = KeptToken(ask, self._now, self._sleep)
        return await self._kept[key].get()

    async def _ask(self, *scopes: str, **options: Any) -> AccessToken:
        attempt = Attempt()
        _ATTEMPT.set(attempt)
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                if inspect.iscoroutinefunction(self._source.get_token):
                    token = await self._source.get_token(*scopes, **options)
                else:
                    # It may run a program, or ask the network.
                    token = await asyncio.to_thread(self._source.get_token, *scopes, **options)
                    token = await token if inspect.isawaitable(token) else token
        except (AzureError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            # azure-identity lets the last four out where another program, such as a portal, answers for the provider.
            raise self._failed(error, attempt) from error
        if self._given.get(scopes) == token.token and (attempt.failure or attempt.status >= HTTPStatus.BAD_REQUEST):
            # azure-identity hides that a new one could not be had, as long as its cache has one.
            raise self._failed(AzureError("the cached token"), attempt)
        self._answered.add(attempt.host)
        self._given[scopes] = token.token
        return AccessToken(token.token, token.expires_on)

    def _failed(self, error: Exception, attempt: Attempt) -> SbpairError:
        doing = f"cannot sign in as {self._title}" if self._title else "cannot sign in"
        if (lack := shortage_of(error, doing)) is not None:
            return lack
        status = attempt.status or getattr(error, "status_code", None) or 0
        if attempt.host == METADATA_HOST and METADATA_HOST not in self._answered:
            # A machine outside of Azure has no such host; Docker's and proxies answer in its place.
            attempt, status = Attempt(), 0
        if isinstance(error, TimeoutError):
            why = f"no answer within {TOKEN_SECONDS:g} s"
        elif isinstance(error, OSError):
            why = cause_of(error)
        elif not isinstance(error, AzureError) or HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            why = "its answer has no token"
        elif attempt.failure:
            why = f"{attempt.host} cannot be reached: {attempt.failure}"
        elif status in REFUSED:
            code = _ENTRA_CODE.search(str(error))
            shown = f"{status}, {code[0]}" if code else str(status)
            hint = "check the client id, the tenant and the secret, and that the identity exists"
            return NotAuthenticated(f"{doing}: the identity provider refuses it ({shown})", hint=hint)
        elif status >= 300:
            why = f"status {status}"
        elif self._answered:
            why = "it was signed in before"
        else:
            return NotAuthenticated(f"{doing}: no identity is signed in", hint=SIGN_IN_HINT)
        return NoToken(f"{doing}: the identity provider is away ({why})", hint=AWAY_HINT)

    async def close(self) -> None:
        """Wait briefly for pending requests, then cancel them."""
        for each in self._kept.values():
            if each.renewing is not None:
                each.renewing.cancel()
        try:
            await self._wait()
            for each in self._kept.values():
                if each.pending is not None:
                    each.pending.cancel()
            await self._wait()
        finally:
            for owned in self._owned:
                await owned.close()

    async def _wait(self) -> None:
        pending = [each.pending for each in self._kept.values() if each.pending is not None]
        if pending:
            await asyncio.wait(pending, timeout=self._grace_seconds)

    async def __aenter__(self) -> IdentityTokens:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


def tokens_of(identity: Identity) -> IdentityTokens:
    """Create the tokens of an identity, outside of any loop if need be. Close them."""
    transport = ObservedTransport(identity.ca_file)
    credential = _credential(identity, transport)
    title = "" if identity == Identity() else str(identity)
    seconds = GRACE_SECONDS if identity.kind in ("default", "cli") else BRIEF_SECONDS
    return IdentityTokens(credential, title, credential, transport, grace_seconds=seconds)


def _credential(identity: Identity, transport: ObservedTransport) -> AsyncTokenCredential:
    common: dict[str, Any] = {"transport": transport, "retry_total": 1}
    if identity.authority:
        common |= {"authority": identity.authority, "disable_instance_discovery": True}
    client, tenant = identity.client_id or None, identity.tenant or None
    if identity.kind == "managed":
        return aio.ManagedIdentityCredential(client_id=client, transport=transport, retry_total=1)
    if identity.kind == "workload":
        return aio.WorkloadIdentityCredential(client_id=client, tenant_id=tenant, **common)
    if identity.kind == "cli":
        return aio.AzureCliCredential(tenant_id=identity.tenant)
    if identity.kind == "client-secret":
        return aio.ClientSecretCredential(identity.tenant, identity.client_id, identity.secret, **common)
    chosen = {"managed_identity_client_id": client, "workload_identity_client_id": client} if client else {}
    return aio.DefaultAzureCredential(**common, **chosen)


class BlockingTokens:
    """The tokens of an identity for programs that block: a TokenCredential. A caller waits for `seconds` at most."""

    def __init__(self, identity: Identity, seconds: float) -> None:
        self._tokens = tokens_of(identity)
        self._seconds = seconds
        self._thread = LoopThread("tokens")

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return self._thread.run(self._get(*scopes, **options))

    async def _get(self, *scopes: str, **options: Any) -> AccessToken:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._tokens.get_token(*scopes, **options)
        except TimeoutError:
            text = f"cannot sign in: the identity provider is away (no answer within {self._seconds:g} s)"
            raise NoToken(text, hint=AWAY_HINT) from None

    def close(self) -> None:
        if self._thread.running:
            self._thread.run(self._tokens.close())
            self._thread.end()


# One identity has one set of tokens in each event loop.


@dataclass(slots=True)
class _Shared:
    tokens: IdentityTokens
    users: int = 0


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Identity, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared(identity: Identity) -> AsyncIterator[IdentityTokens]:
    """Open the tokens of an identity, which all users in this event loop share while one has them open."""
    known = _SHARED.setdefault(asyncio.get_running_loop(), {})
    if identity not in known:
        known[identity] = _Shared(tokens_of(identity))
    entry = known[identity]
    entry.users += 1
    try:
        yield entry.tokens
    finally:
        entry.users -= 1
        if not entry.users:
            del known[identity]
            await entry.tokens.close()
