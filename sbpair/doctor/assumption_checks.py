"""The checks of ASSUMPTIONS.md that a client of one namespace can make, each by the name of its entry.

A check returns `trial.expected` if the assumption holds, else a text of what it observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sbpair import backlog
from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
)
from sbpair.amqp.performatives import Outcome
from sbpair.amqp.types import Described, Long, Map, Symbol, Timestamp, UByte, ULong, Value, same, text_of
from sbpair.amqp_client.client import lock_token
from sbpair.amqp_client.raw_links import ABANDONED, ACCEPTED, RELEASED, dead_letter
from sbpair.doctor.assumptions import CHECKS, LOCK_SECONDS, AssumptionTrial, check
from sbpair.errors import AccessError, EntityMissing, InDoubt, ServiceRefused, SessionLocked, SessionLockLost
from sbpair.model.message_state import dead_letter_path
from sbpair.move.message import dead_letters, envelope

__all__ = ["CHECKS"]

MARGIN_SECONDS = 0.5
SCHEDULE_SECONDS, TTL_SECONDS, RENEW_SECONDS = 2.0, 1.0, 1.0
SMALLEST_LIMIT = 256 * 1024
LOCKED_TTL_SECONDS = 2.0
"""A time to live that ends while a message is locked."""

MAX_DELIVERIES = 10
"""The limit of an entity that does not state one."""

# Sending


@check("in the queue once accepted")
async def acceptance(trial: AssumptionTrial) -> str:
    await trial.put("a")
    return trial.expected if await trial.peek() else "accepted, and not in the queue"


@check("in the order of their acceptance")
async def sequence_numbers(trial: AssumptionTrial) -> str:
    sent = [str(number) for number in range(5)]
    await trial.put(*sent)
    async with trial.receiving() as link:
        taken = await trial.take(link, *sent)
        for each in taken:
            await each.settle()
    numbers = [envelope.sequence_number(each.sections) for each in taken]
    names = [trial.own(each.sections) for each in taken]
    if names != sent or sorted(set(numbers)) != numbers:
        return f"{', '.join(names)} with the numbers {', '.join(map(str, numbers))}"
    return trial.expected


@check("unpacked, in order")
async def batch(trial: AssumptionTrial) -> str:
    await trial.put_batch("a", "b", "c")
    peeked = [name for name, _ in await trial.peek()]
    return trial.expected if peeked == ["a", "b", "c"] else f"stored as {', '.join(peeked) or 'nothing'}"


@check("both 0")
async def annotations_of_zero(trial: AssumptionTrial) -> str:
    await trial.put("a")
    annotations = (await trial.receive("a")).read_message_annotations()
    found = [annotations.get(key) for key in (envelope.ENQUEUE_SEQUENCE_NUMBER, envelope.MESSAGE_STATE)]
    return trial.expected if found == [0, 0] else f"{found[0]} and {found[1]}"


async def _changed(trial: AssumptionTrial, parts: Sequence[str], *, dead: bool = False) -> str:
    """Name those of these parts that a message has not kept when it is received, or is a dead letter."""
    timespan = Described(Symbol("com.microsoft:timespan"), Long(600_000_000))
    values: dict[str, Value] = {"byte": UByte(255), "large": ULong(2**64 - 1), "at": Timestamp(1), "life": timespan}
    own = Properties(
        *(f"{trial.name} full", b"user", "to", "subject", "reply-to", "correlation", "text/plain", "utf-8"),
        group_id="group",
        reply_to_group_id="reply-group",
    )
    sent = Sections(
        header=Header(durable=True, priority=7).encode(),
        delivery_annotations=encode_map(DELIVERY_ANNOTATIONS, {Symbol("x-sbpair-delivery"): Long(-7)}),
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-sbpair"): ULong(7)}),
        properties=own.encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, values),
        body=data_body(b"body"),
        footer=encode_map(FOOTER, {Symbol("x-sbpair-footer"): "end"}),
    )
    await trial.put(sent)
    received = await (_dead(trial, "full") if dead else trial.receive("full"))
    changed = [each for each in parts if not _keeps(getattr(received, each), getattr(sent, each))]
    return f"changed: {', '.join(changed).replace('_', ' ')}" if changed else trial.expected


async def _dead(trial: AssumptionTrial, name: str) -> Sections:
    """Dead-letter a message; receive it from the dead letters. Raises ServiceRefused."""
    async with trial.receiving() as link:
        taken = await trial.one(link, name)
        await link.settle([taken.delivery], dead_letter("reason", "description"))
    return await trial.receive(name, dead_letter_path(trial.path))


KEPT: dict[str, tuple[str, ...]] = {
    "content": ("properties", "body"),
    "property_types": ("application_properties",),
    "sender_annotations": ("message_annotations", "delivery_annotations"),
    "footer": ("footer",),
}
"""The parts of a message that each of these checks compares."""

for _name, _parts in KEPT.items():
    check("kept", name=_name)(partial(_changed, parts=_parts))
_every = tuple(part for parts in KEPT.values() for part in parts)
check("kept", name="dead_letter_parts")(partial(_changed, parts=_every, dead=True))


def _keeps(received: bytes, sent: bytes) -> bool:
    """Return whether a section has every value that was sent, with its type. The service may add others."""
    if not received:
        return False
    found, given = (codec.decode_all(each).value for each in (received, sent))
    if isinstance(found, Map) and isinstance(given, Map):
        return all(same(found.get(key), value) for key, value in given.pairs)
    if isinstance(found, list) and isinstance(given, list):
        return all(value is None or same(found[at], value) for at, value in enumerate(given) if at < len(found))
    return same(found, given)


@check("refused as missing")
async def missing_entity(trial: AssumptionTrial) -> str:
    try:
        await trial.client.sender(f"{trial.path}-missing")
    except EntityMissing:
        return trial.expected
    except AccessError:
        return "refused as if the key lacked rights"
    except ServiceRefused as error:
        return f"refused: {error.condition}"
    return "accepted"


@check("the same queue")
async def path_case(trial: AssumptionTrial) -> str:
    try:
        await trial.put("a", path=trial.path.upper())
    except EntityMissing:
        return "another entity"
    return trial.expected if await trial.is_delivered("a") else "another queue"


@check("accepted without an error", "topic")
async def topic_discards(trial: AssumptionTrial) -> str:
    try:
        await trial.put("a")
    except ServiceRefused as error:
        return f"refused: {error.condition}"
    return trial.expected


@check("confirmed and dropped, also once received", "duplicates")
async def duplicates(trial: AssumptionTrial) -> str:
    await trial.put("a", "a")
    if (stored := len(await trial.peek())) != 1:
        return f"stored {stored} times"
    await trial.receive("a")
    await trial.put("a")
    return "stored again once received" if await trial.peek() else trial.expected


@check("never delivered", "messages")
async def ping(trial: AssumptionTrial) -> str:
    await trial.put(backlog.ping(f"{trial.name} ping"))
    return "delivered" if await trial.is_delivered("ping") else trial.expected


@check("accepted", "messages")
async def largest_message(trial: AssumptionTrial) -> str:
    sender = await trial.client.sender(trial.path)
    sender.close()
    try:
        await trial.put(message_of(f"{trial.name} a", sender.max_message_size or SMALLEST_LIMIT))
    except ServiceRefused as error:
        return error.message
    await trial.receive("a")
    return trial.expected


def message_of(message_id: str, size: int) -> Sections:
    """Return a message of exactly so many bytes, at least 400."""
    properties = Properties(message_id=message_id).encode()
    overhead = len(properties) + len(data_body(bytes(300))) - 300
    return Sections(properties=properties, body=data_body(bytes(size - overhead)))


# Receiving and settling


@check("no more than granted")
async def credit(trial: AssumptionTrial) -> str:
    await trial.put("a", "b", "c")
    async with trial.receiving() as link:
        link.grant(1)
        first = await link.take(1, seconds=trial.seconds)
        await trial.peek()  # an answer of the service: what it sent before has arrived
        more = link.take_remaining()
        await link.settle_each(first + more, RELEASED)
    return trial.expected if not more else f"{1 + len(more)} for a credit of 1"


@check("locked, and settled by its token")
async def lock_outlives_link(trial: AssumptionTrial) -> str:
    await trial.put("held")
    async with trial.receiving() as link:
        held = await trial.one(link, "held")
    if await trial.is_delivered("held"):
        return "delivered again once its link was closed"
    try:
        await trial.client.settle_locked(trial.path, [lock_token(held.delivery.tag)], ACCEPTED)
    except ServiceRefused as error:
        return f"locked, and its token is refused: {error.condition}"
    return trial.expected


@check("completion refused, delivered again with count 1")
async def lock_expires(trial: AssumptionTrial) -> str:
    await trial.put("held")
    async with trial.receiving() as link:
        held = await trial.one(link, "held")
        await trial.sleep(LOCK_SECONDS + MARGIN_SECONDS)
        if await held.settle():
            return f"completed {LOCK_SECONDS + MARGIN_SECONDS:g} s after its delivery"
        again = await trial.one(link, "held")
        await again.settle()
    return f"completion refused, delivered again with count {again.count}"


@check(f"{LOCK_SECONDS:.0f} s after the delivery")
async def locked_until(trial: AssumptionTrial) -> str:
    await trial.put("a")
    received = await trial.receive("a")
    until, enqueued = envelope.locked_until(received), envelope.enqueued_at(received)
    if not until:
        return "not stated"
    seconds = (until - enqueued) / 1000
    # The delivery is later than the time of enqueueing by the latency.
    holds = LOCK_SECONDS - MARGIN_SECONDS <= seconds <= 2 * LOCK_SECONDS
    return trial.expected if holds else f"{seconds:.0f} s after the delivery"


@check("extended, and completed")
async def lock_renewal(trial: AssumptionTrial) -> str:
    await trial.put("a")
    async with trial.receiving() as link:
        held = await trial.one(link, "a")
        await trial.sleep(RENEW_SECONDS)
        [until] = await trial.client.renew_locks(trial.path, [lock_token(held.delivery.tag)])
        completed = await held.settle()
    extended_ms = until - envelope.locked_until(held.sections)
    if extended_ms < 1000 * (RENEW_SECONDS - MARGIN_SECONDS):
        return f"extended by {extended_ms} ms after {RENEW_SECONDS:g} s"
    return trial.expected if completed else "extended, and completion refused"


async def _returned(outcome: Outcome, trial: AssumptionTrial) -> str:
    await trial.put("a")
    async with trial.receiving() as link:
        first = await trial.one(link, "a")
        if not await first.settle(outcome):
            return "refused"
        again = await trial.one(link, "a")
        await again.settle()
    ahead = envelope.locked_until(again.sections) - envelope.locked_until(first.sections)
    at_once = "at once" if ahead < 1000 * (LOCK_SECONDS - MARGIN_SECONDS) else "when its lock ran out"
    return f"delivered again {at_once} with count {again.count}"


for _name, _outcome, _count in (("release", RELEASED, 0), ("abandon", ABANDONED, 1)):
    check(f"delivered again at once with count {_count}", name=_name)(partial(_returned, _outcome))


@check("ascending from the number on, locked ones too")
async def peek(trial: AssumptionTrial) -> str:
    await trial.put("a", "b", "c")
    async with trial.receiving() as link:
        taken = await trial.take(link, "a", "b", "c")
        peeked = [name for name, _ in await trial.peek(envelope.sequence_number(taken[1].sections))]
        for each in taken:
            await each.settle()
    return trial.expected if peeked == ["b", "c"] else f"{', '.join(peeked)} of b, c"


@check("stored with reason and description")
async def dead_lettering(trial: AssumptionTrial) -> str:
    await trial.put("a")
    try:
        properties = (await _dead(trial, "a")).read_application_properties()
    except ServiceRefused as error:
        return f"refused: {error.condition}"
    found = [properties.get(key) for key in (dead_letters.REASON, dead_letters.DESCRIPTION)]
    if found == ["reason", "description"]:
        return trial.expected
    return f"stored with reason {found[0]!r} and description {found[1]!r}"


@check("kept beyond its time to live, with its delivery count")
async def dead_letters_stay(trial: AssumptionTrial) -> str:
    path = dead_letter_path(trial.path)
    async with trial.receiving() as link:
        await trial.put(trial.message("a", ttl_ms=int(1000 * LOCKED_TTL_SECONDS)))
        await (await trial.one(link, "a")).settle(dead_letter("reason", "description"))
    await trial.sleep(LOCKED_TTL_SECONDS + MARGIN_SECONDS)
    async with trial.receiving(path) as link:
        first = again = await trial.one(link, "a")
        for _ in range(MAX_DELIVERIES):
            await again.settle(ABANDONED)
            again = await trial.one(link, "a")
        await again.settle()
    return trial.expected if again.count == first.count else f"delivered again with count {again.count}"


async def _dead_reason(trial: AssumptionTrial) -> str:
    """Receive the dead letter `a`, and return its reason. Raises NotDelivered."""
    received = await trial.receive("a", dead_letter_path(trial.path))
    return text_of(received.read_application_properties().get(dead_letters.REASON)) or "None"


@check(f"dead-lettered as MaxDeliveryCountExceeded after {MAX_DELIVERIES} deliveries")
async def delivery_limit(trial: AssumptionTrial) -> str:
    await trial.put("a")
    async with trial.receiving() as link:
        for _ in range(MAX_DELIVERIES):
            await (await trial.one(link, "a")).settle(ABANDONED)
    if await trial.is_delivered("a"):
        return f"delivered more than {MAX_DELIVERIES} times"
    return f"dead-lettered as {await _dead_reason(trial)} after {MAX_DELIVERIES} deliveries"


@check("not delivered, dead-lettered as TTLExpiredException")
async def expiry(trial: AssumptionTrial) -> str:
    await trial.put(trial.message("a", ttl_ms=int(1000 * TTL_SECONDS)))
    await trial.sleep(TTL_SECONDS + MARGIN_SECONDS)
    if await trial.is_delivered("a"):
        return "delivered after its time to live"
    return f"not delivered, dead-lettered as {await _dead_reason(trial)}"


@check("completed, and no dead letter")
async def locked_expiry(trial: AssumptionTrial) -> str:
    async with trial.receiving() as link:
        await trial.put(trial.message("a", ttl_ms=int(1000 * LOCKED_TTL_SECONDS)))
        held = await trial.one(link, "a")
        await trial.sleep(LOCKED_TTL_SECONDS + MARGIN_SECONDS)
        if not await held.settle():
            return "completion refused"
    dead = await trial.peek(path=dead_letter_path(trial.path))
    return "completed, and a dead letter" if dead else trial.expected


@check("peeked as scheduled, delivered when due")
async def schedule(trial: AssumptionTrial) -> str:
    await trial.put("now")
    now = envelope.enqueued_at(await trial.receive("now"))  # by the service's clock
    due = Timestamp(now + int(1000 * SCHEDULE_SECONDS))
    await trial.put(trial.message("later", due=due))
    states = [envelope.message_state(each) for name, each in await trial.peek() if name == "later"]
    if await trial.is_delivered("later"):
        return "delivered before its time"
    await trial.sleep(SCHEDULE_SECONDS + MARGIN_SECONDS)
    await trial.receive("later")
    return f"peeked as {'scheduled' if states == [envelope.SCHEDULED] else states}, delivered when due"


# Sessions: each check has one of its own name


@check("in order", "sessions")
async def session_order(trial: AssumptionTrial) -> str:
    sent = [str(number) for number in range(5)]
    await trial.put(*sent, session=trial.name)
    session = await trial.client.session(trial.path, trial.name)
    taken = [trial.own(each.sections) for each in await trial.take(session, *sent)]
    session.close()
    return trial.expected if taken == sent else f"as {', '.join(taken)}"


@check("refused as locked", "sessions")
async def session_lock(trial: AssumptionTrial) -> str:
    first = await trial.client.session(trial.path, trial.name)
    try:
        (await trial.client.session(trial.path, trial.name)).close()
    except SessionLocked:
        return trial.expected
    finally:
        first.close()
    return "given to two receivers"


@check("unlocked at once, with its messages", "sessions")
async def session_ends_with_link(trial: AssumptionTrial) -> str:
    await trial.put("a", session=trial.name)
    first = await trial.client.session(trial.path, trial.name)
    await trial.one(first, "a")
    first.close()
    try:
        second = await trial.client.session(trial.path, trial.name)
    except SessionLocked:
        return "locked after the end of its link"
    await (await trial.one(second, "a")).settle()
    second.close()
    return trial.expected


@check("settlement and renewal refused, and given to another receiver", "sessions")
async def session_lock_expires(trial: AssumptionTrial) -> str:
    await trial.put("a", session=trial.name)
    first = await trial.client.session(trial.path, trial.name)
    held = await trial.one(first, "a")
    await trial.sleep(LOCK_SECONDS + MARGIN_SECONDS)
    with suppress(InDoubt):  # the service has closed the link since: nothing is settled over it
        if await held.settle():
            return "settled after its end"
    try:
        await trial.client.renew_session(first)
    except SessionLockLost:
        (await trial.client.session(trial.path, trial.name)).close()
        return trial.expected
    finally:
        first.close()
    return "renewed after its end"


@check("none at first, then kept", "sessions")
async def session_state(trial: AssumptionTrial) -> str:
    first = await trial.client.session(trial.path, trial.name)
    at_first = await trial.client.session_state(trial.path, trial.name)
    await trial.client.set_session_state(first, b"state")
    first.close()
    second = await trial.client.session(trial.path, trial.name)
    later = await trial.client.session_state(trial.path, trial.name)
    second.close()
    return trial.expected if (at_first, later) == (None, b"state") else f"{at_first!r} at first, then {later!r}"


@check("refused without a session", "sessions")
async def session_required(trial: AssumptionTrial) -> str:
    try:
        await trial.put("a")
    except ServiceRefused:
        return trial.expected
    return "accepted without a session"
