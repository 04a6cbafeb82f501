"""`sbpair page`: serves the page of a pair to browsers on this machine."""

import asyncio
import re
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import STATE, PairSelection, flag, option
from sbpair.cli.options.values import selected_profile
from sbpair.cli.render.screen import Screen
from sbpair.model.document import document

HOST = "127.0.0.1"
OWN_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
"""Names of this machine: a page of another name could lead here, too."""
STOP_SECONDS = 1.0


@document("sbpair/page/1")
class ServedPage:
    """Where a browser finds the page."""

    url: Annotated[str, "Its URL, with the port"]


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
    reason, and the runs of the state directory with their reports. Locks and changes nothing. Needs Manage on both,
    and Listen for messages; with Listen only, it peeks the backlog queues, and with the key of an entity of the
    primary it shows that one. Only this machine can reach it. Ctrl-C stops it.

    Examples:
      sbpair page --open
      sbpair page --pair orders --port 8080

    Exit codes: 0 stopped by a signal; 2 a wrong setting; 7 the port is in use
    """
    profile = selected_profile(connection, screen, state=state)
    from aiohttp import web

    from sbpair.cli.page.documents import PageDocuments
    from sbpair.cli.page.page_server import PageServer
    from sbpair.cli.page.pair_source import PairSource
    from sbpair.operating_system import listen
    from sbpair.runs.database import StateOwner

    owner = StateOwner(profile.pair.ends, profile.state_directory)

    async def serve() -> None:
        page = PageServer(PageDocuments(PairSource(profile.pair, owner), owner), is_own=OWN_HOSTS.fullmatch)
        with listen(HOST, port) as listening:
            runner = web.ServerRunner(web.Server(page.handle, access_log=None), shutdown_timeout=STOP_SECONDS)
            await runner.setup()
            await web.SockSite(runner, listening).start()
            url = f"http://{HOST}:{listening.getsockname()[1]}/"
            screen.show(ServedPage(url), [url])
            screen.say("Ctrl-C stops it")
            if open_browser:
                webbrowser.open(url)
            try:
                await asyncio.Event().wait()
            finally:
                await page.close()
                await runner.cleanup()

    with suppress(KeyboardInterrupt):
        run(serve())
    screen.say("stopped")
    return 0
