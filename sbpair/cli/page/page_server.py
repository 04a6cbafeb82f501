"""The page over HTTP: its files, what has changed as server-sent events, and the documents of the commands.

Invariant: a page of another origin reads nothing and does nothing here. The Host of a request must be a name of this
machine, the answers allow no other origin, and an act needs the token that only the page has.
"""

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from importlib.resources import files
from typing import Any, Final

from aiohttp import hdrs, web

from sbpair.cli.page.documents import PageDocuments
from sbpair.cli.page.overview import Overview
from sbpair.cli.render.screen import Document
from sbpair.errors import EntityMissing, SbpairError, UsageError

TOKEN_HEADER: Final = "X-Page-Token"  # noqa: S105  # the name of a header
MAX_BODY: Final = 1_100_000
FILES: Final = {"": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; sandbox"
)
COMMON: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    hdrs.CACHE_CONTROL: "no-store",
}

Act = Callable[[str, Mapping[str, Any]], Awaitable[Document]]
"""Carries out the act of a name with the values of a JSON object. Raises SbpairError."""


class PageServer:
    """Answers requests whose path begins with `prefix`.

    `is_own` returns whether a Host names this server. `act` is None for a page that only reads; `refusal` is why, where
    a user could expect acts. `close` ends the streams of open pages, and readings.
    """

    def __init__(
        self,
        documents: PageDocuments,
        *,
        is_own: Callable[[str], object],
        prefix: str = "/",
        act: Act | None = None,
        refusal: str = "",
    ) -> None:
        self._documents = documents
        self._overview = Overview(documents.source.read)
        self._is_own = is_own
        self._prefix = prefix
        self._act = act
        self._refusal = refusal
        self._token = secrets.token_urlsafe(24)
        self.close = self._overview.close

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; 404 outside the prefix, and for what the page does not have."""
        if request.path == "/" != self._prefix:
            return web.Response(status=302, headers={hdrs.LOCATION: self._prefix})
        name = request.path.removeprefix(self._prefix)
        if not self._is_own(request.headers.get(hdrs.HOST, "")):
            return _refused(403, "the Host of the request is not a name of this page")
        if _is_of_another_origin(request):
            return _refused(403, "a page of another origin sent the request")
        try:
            match request.method, name.partition("/"):
                case "GET", ["events", "", _]:
                    return await self._stream(request)
                case "GET" | "HEAD", [file, "", _] if file in FILES:
                    return self._file(file)
                case "GET" | "HEAD", ["runs", "/", run]:
                    return _answer(self._documents.report(run), "text/html", REPORT_POLICY)
                case "GET" | "HEAD", [document, "", _]:
                    return _json(await self._documents.read(document, dict(request.query)))
                case "POST", ["acts", "/", act]:
                    return _json(await self._carry_out(request, act))
        except SbpairError as error:
            status = 404 if isinstance(error, EntityMissing) else 400
            return _refused(status, error.message, error.hint)
        return _refused(404, "the page has no such document")

    def _file(self, name: str) -> web.Response:
        text = (files(__package__) / "static" / (name or "page.html")).read_text(encoding="utf-8")
        token = "" if self._act is None else self._token
        for key, value in (("token", token), ("server", self._overview.server), ("refusal", self._refusal)):
            text = text.replace(f"{{{{{key}}}}}", value)
        return _answer(text, FILES[name], POLICY)

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={**COMMON, hdrs.CONTENT_TYPE: "text/event-stream"})
        await response.prepare(request)
        async with aclosing(self._overview.events()) as events:
            with suppress(ConnectionError, TimeoutError):
                async for document in events:
                    await response.write(f"data: {document}\n\n".encode() if document else b":\n\n")
                await response.write_eof()
        return response

    async def _carry_out(self, request: web.BaseRequest, name: str) -> Document:
        if self._act is None:
            raise UsageError("the page only reads here", hint=self._refusal or "acts are for an emulator")
        given = request.headers.get(TOKEN_HEADER, "").encode(errors="replace")
        if not hmac.compare_digest(given, self._token.encode()):
            raise UsageError(
                f"the header {TOKEN_HEADER} is missing, or not the token of this page", hint="load the page again"
            )
        if (request.content_length or 0) > MAX_BODY:
            raise UsageError(f"the request is larger than {MAX_BODY} bytes", hint="send a smaller message")
        values = None
        with suppress(ValueError, RecursionError):
            values = json.loads(await request.read())
        if not isinstance(values, dict):
            raise UsageError("the request is not a JSON object", hint="send an object of the act's values")
        done = await self._act(name, values)
        await self._overview.read_again()
        return done


def _json(document: Document, status: int = 200) -> web.Response:
    return _answer(json.dumps(document, separators=(",", ":")), "application/json", POLICY, status)


def _is_of_another_origin(request: web.BaseRequest) -> bool:
    """Return whether a page of another origin sent a request. Old browsers send an Origin at most."""
    site, host = request.headers.get("Sec-Fetch-Site", "same-origin"), request.headers.get(hdrs.HOST, "")
    origin = request.headers.get(hdrs.ORIGIN, f"//{host}")
    return site not in ("same-origin", "none") or origin.partition("//")[2] != host


def _refused(status: int, reason: str, hint: str = "") -> web.Response:
    return _json({"error": {"message": reason, "hint": hint}}, status)


def _answer(text: str, kind: str, policy: str, status: int = 200) -> web.Response:
    headers = {**COMMON, "Content-Security-Policy": policy}
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=headers, status=status)
