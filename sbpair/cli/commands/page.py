"""`sbpair page`: serves the page of a pair to browsers on this machine."""

import asyncio
import webbrowser
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import STATE, PairSelection, flag, option
from sbpair.cli.options.values import selected_profile
from sbpair.cli.render.screen import Screen

if TYPE_CHECKING:
    from sbpair.runs.database import RunDatabase

HOST = "127.0.0.1"
STOP_SECONDS = 1.0


def command(
    *,
    port: int = option("--port PORT", "Port on 127.0.0.1; 0 is any free port", default=0, at_least=0, at_most=65535),
    open_browser: bool = flag("--open", "Open the page in the browser"),
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show both namespaces and the runs in a browser.

    Queues, topics, subscriptions and backlog queues with their counts, their messages by peeking, dead letters by
    reason, and the runs of the state directory with their reports. Locks and changes nothing. Needs Manage on both;
    with Listen only, it peeks the backlog queues. Only this machine can reach it. Ctrl-C stops it.

    Examples:
      sbpair page --open
      sbpair page --pair orders --port 8080

    Exit codes: 0 stopped by a signal; 2 a wrong setting; 7 the port is in use
    """
    profile = selected_profile(connection, screen, state=state)
    from aiohttp import web

    from sbpair.cli.commands.runs import rendered_report
    from sbpair.cli.page.documents import PageDocuments
    from sbpair.cli.page.page_server import PageServer
    from sbpair.cli.page.pair_source import PairSource
    from sbpair.operating_system import listen
    from sbpair.runs.database import state_if_any

    def open_runs() -> "AbstractContextManager[RunDatabase | None]":
        return state_if_any(profile.state_directory, profile.pair) or nullcontext()

    def report(run_id: str) -> str:
        return rendered_report(profile.state_directory, profile.pair, run_id, ("html",))[1]["html"]

    async def serve() -> None:
        documents = PageDocuments(PairSource(profile.pair), open_runs, report)
        page = PageServer(documents, is_own=_is_loopback)
        server = web.Server(page.handle, access_log=None)
        with listen(HOST, port) as listening:
            opened = await asyncio.get_running_loop().create_server(server, sock=listening)
            url = f"http://{HOST}:{listening.getsockname()[1]}/"
            screen.result("sbpair/page/1", {"url": url}, [url])
            screen.say("Ctrl-C stops it")
            if open_browser:
                webbrowser.open(url)
            try:
                await asyncio.Event().wait()
            finally:
                opened.close()
                await page.close()
                server.pre_shutdown()
                await server.shutdown(STOP_SECONDS)

    with suppress(KeyboardInterrupt):
        run(serve())
    screen.say("stopped")
    return 0


def _is_loopback(authority: str) -> bool:
    """Return whether a `host:port` is of this machine: a page of another name could lead here, too."""
    with suppress(ValueError):
        return urlsplit(f"//{authority}").hostname in ("127.0.0.1", "localhost", "::1")
    return False
