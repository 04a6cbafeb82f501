"""A server whose answers to HTTP requests are given byte by byte."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sbpair.model.pair import Endpoint, SasKey

SECRET = "c2VjcmV0a2V5"


def http(status: int, body: str = "") -> bytes:
    head = f"HTTP/1.1 {status} \r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


@dataclass
class AnsweringPeer:
    """Gives its answers in turn, `per_connection` to each connection, which it then closes; none for an empty one."""

    answers: list[bytes]
    per_connection: int = 100
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(min(self.per_connection, len(self.answers))):
            head = await reader.read(4096)
            if not head:
                break
            text, _, body = head.partition(b"\r\n\r\n")
            self.requests.append(text.decode())
            length = re.search(rb"(?i)content-length: (\d+)", text)
            self.bodies.append(body + await reader.readexactly(int(length[1]) - len(body) if length else 0))
            writer.write(answer := self.answers.pop(0))
            if b"Connection: close" in answer or answer.startswith(b"HTTP/1.0") or not self.answers:
                break
        writer.close()

    @property
    def endpoint(self) -> Endpoint:
        address, key = f"127.0.0.1:{self.port}", SasKey("Root", SECRET)
        return Endpoint("contoso-dr", address, "127.0.0.1", self.port, tls=False, credential=key, emulator=True)


@asynccontextmanager
async def answering(*answers: bytes, per_connection: int = 100) -> AsyncIterator[AnsweringPeer]:
    peer = AnsweringPeer(list(answers), per_connection)
    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        peer.port = server.sockets[0].getsockname()[1]
        yield peer
