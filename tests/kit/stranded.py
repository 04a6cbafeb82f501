"""Messages as a paired client leaves them in a backlog queue."""

from typing import Any

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Int
from sbpair.backlog import Aliases, write_aliases
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.queue import QueueEntity


def stranded(message_id: str, aliases: Aliases | str | None, body: bytes = b"body") -> bytes:
    """Encode a message for a destination, or for the one that the aliases name; without aliases, for none."""
    named = Aliases(aliases) if isinstance(aliases, str) else aliases
    return Sections(
        properties=Properties(message_id=message_id).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, write_aliases(named)) if named else b"",
        body=data_body(body),
    ).join()


def numbered(number: int, to: str, *, size: int = 20, **changed: Any) -> bytes:
    """Encode message `m<number>`, with other aliases or sections where these are given."""
    aliases = {name: value for name, value in changed.items() if name in ("session_id", "ttl_ticks", "scheduled_at")}
    own = {"number": Int(number), **write_aliases(Aliases(to, **aliases))}
    sections = {
        "properties": Properties(message_id=f"m{number}").encode(),
        "application_properties": encode_map(APPLICATION_PROPERTIES, own),
        "body": data_body(bytes([number % 256]) * size),
    }
    return Sections(**{**sections, **changed.get("sections", {})}).join()


def in_session(number: int, sessions: int = 3) -> bytes:
    """Encode message `m<number>` without aliases, of one of so many sessions in turns."""
    return Sections(
        properties=Properties(message_id=f"m{number}", group_id=f"S{number % sessions}").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, {"number": Int(number)}),
        body=data_body(b"x"),
    ).join()


def put(queue: QueueEntity, payload: bytes) -> None:
    """Store an encoded message in an emulated queue."""
    queue.send(service_envelope.read_delivery(payload, 0))
