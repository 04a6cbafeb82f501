"""Times of peeked messages: in UTC, on this machine's clock, and from now."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sbpair.amqp.message import MESSAGE_ANNOTATIONS, Header, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Long, Symbol, Timestamp, UInt
from sbpair.backlog import Aliases
from sbpair.cli.render.messages import message_table, when
from sbpair.message_io.message_json import moment as iso
from sbpair.message_io.message_json import render_peeked
from sbpair.model.document import encoded
from sbpair.move.message.envelope import ENQUEUED, SCHEDULE, SEQUENCE_NUMBER, read_facts
from sbpair.move.peek.peeker import PeekedMessage
from tests.kit.stranded import stranded

NOW = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "moment", "text"),
    [
        ("UTC", "2026-12-01T01:00:00+00:00", "2026-12-01 01:00Z, in 3h"),
        ("Europe/Berlin", "2026-12-01T01:00:00+00:00", "2026-12-01 01:00Z, 02:00 here, in 3h"),
        ("Europe/Berlin", "2026-11-30T23:30:00+00:00", "2026-11-30 23:30Z, 2026-12-01 00:30 here, in 1h 30m"),
        ("America/New_York", "2026-11-30T21:55:00+00:00", "2026-11-30 21:55Z, 16:55 here, 5m ago"),
        ("Asia/Tokyo", "9999-12-31T23:59:59+00:00", "9999-12-31 23:59Z, in 2912109d"),
        ("UTC", None, ""),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_a_time_is_shown_in_utc_here_and_from_now(moment: str | None, text: str) -> None:
    assert when(moment, NOW) == text


HOUR_MS = 3_600_000
ENQUEUED_MS = 1_800_000_000_000
SEQUENCE = 2**53 + 1


def peeked(payload: bytes, **changed: int | None) -> dict[str, object]:
    annotations = {Symbol(ENQUEUED): Timestamp(ENQUEUED_MS), Symbol(SEQUENCE_NUMBER): Long(SEQUENCE)}
    if changed.get("scheduled"):
        annotations[SCHEDULE] = Timestamp(int(changed["scheduled"] or 0))
    sections = Sections.split(payload)
    sections.message_annotations = encode_map(MESSAGE_ANNOTATIONS, annotations)
    if changed.get("ttl"):
        sections.header = Header(ttl=UInt(int(changed["ttl"] or 0))).encode()
    split, facts = read_facts("orders", sections.join())
    found: dict[str, object] = encoded(render_peeked("primary", PeekedMessage(facts, split), None))
    return found


PLAIN = Sections(properties=Properties(message_id="m").encode(), body=data_body(b"x")).join()


@pytest.mark.parametrize(
    ("payload", "changed", "scheduled", "expires"),
    [
        (PLAIN, {}, None, None),
        (PLAIN, {"ttl": HOUR_MS}, None, ENQUEUED_MS + HOUR_MS),
        (PLAIN, {"scheduled": ENQUEUED_MS + 5, "ttl": HOUR_MS}, ENQUEUED_MS + 5, ENQUEUED_MS + 5 + HOUR_MS),
        (
            stranded("s", Aliases("orders", None, HOUR_MS * 10_000, ENQUEUED_MS + 7)),
            {},
            ENQUEUED_MS + 7,
            ENQUEUED_MS + 7 + HOUR_MS,
        ),
    ],
    ids=["neither", "expiry", "both", "stranded"],
)
def test_a_peeked_message_has_its_schedule_and_expiry(
    payload: bytes, changed: dict[str, int | None], scheduled: int | None, expires: int | None
) -> None:
    entry = peeked(payload, **changed)
    assert (entry["scheduled_at"], entry["expires_at"]) == (iso(scheduled or 0), iso(expires or 0))
    heading, row = message_table([entry])
    assert ("SCHEDULED" in heading, "EXPIRES" in heading) == (scheduled is not None, expires is not None)
    assert str(SEQUENCE) in row.split()
