"""A client of the Atom frontend for tests: it signs requests, and reads and writes entries."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from xml.etree import ElementTree as ET

from aiohttp import ClientSession
from yarl import URL

from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.testing import Emulator
from tests.kit.sas import sign

ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


class Manager:
    """A client that sends requests, with a valid token by default."""

    def __init__(self, emulator: Emulator, session: ClientSession) -> None:
        self.emulator = emulator
        self.namespace = emulator.namespaces["contoso"]
        self._session = session
        self.last: Mapping[str, str] = {}
        """The headers of the last answer."""

    def token(self, rule: AuthorizationRule | None = None, path: str = "", seconds: int = 60) -> str:
        resource = f"https://{self.namespace.authority}{path}"
        return sign(rule or self.namespace.keys[0], resource, self.emulator.clock.now_ms() // 1000 + seconds)

    async def ask(
        self, method: str, path: str, body: str | bytes = b"", token: str | None = None, **headers: str
    ) -> tuple[int, str]:
        """Send a request; return status and body. An empty `token` sends none."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token != "":
            sent["Authorization"] = token or self.token()
        mark = "&" if "?" in path else "?"
        version = "" if "api-version" in path or path.endswith("?") else f"{mark}api-version=2024-05"
        url = URL(f"http://{self.namespace.authority}/{path}{version}", encoded=True)
        async with self._session.request(method, url, data=body, headers=sent) as answer:
            self.last = answer.headers
            return answer.status, await answer.text()

    async def put(
        self, path: str, elements: str = "", kind: str = "QueueDescription", **headers: str
    ) -> tuple[int, str]:
        token = self.token()
        own = {"ServiceBusSupplementaryAuthorization": token, "ServiceBusDlqSupplementaryAuthorization": token}
        return await self.ask("PUT", path, entry(elements, kind), **own | headers)


@asynccontextmanager
async def open_manager(**options: Any) -> AsyncIterator[Manager]:
    async with Emulator([("contoso", 0)], **options) as emulator, ClientSession() as session:
        yield Manager(emulator, session)


def entry(elements: str = "", kind: str = "QueueDescription") -> str:
    return (
        f'<entry xmlns="{ATOM[1:-1]}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS[1:-1]}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{elements}</{kind}>'
        "</content></entry>"
    )


def read(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314  # it comes from the emulator


def elements_of(text: str, kind: str = "QueueDescription") -> dict[str, str]:
    description = read(text).find(f"{ATOM}content/{SERVICE_BUS}{kind}")
    assert description is not None
    return {child.tag.removeprefix(SERVICE_BUS): child.text or "" for child in description}


def sub_code(text: str) -> int:
    found = re.search(r"<Detail>SubCode=(\d+)\. ", text)
    assert found is not None
    return int(found[1])
