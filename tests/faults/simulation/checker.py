"""What must hold of a whole history: nothing lost, nothing altered, order kept, and no duplicate without a word on it.

Pure: it reads the tracks of the messages and the receipts of the runs, and answers what is wrong, a line each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from sbpair.amqp.message import Sections
from sbpair.drill.drill_messages import message_differences
from sbpair.move.receipt import Receipt
from sbpair.timespan import TICKS_PER_DAY, TICKS_PER_MS
from tests.faults.simulation.history import History, Track
from tests.faults.simulation.plan import Plan
from tests.faults.simulation.workload import EXPIRED, MISSING

UNDER_WAY_MS = 10_000
"""A message that was locked longer ago has reached the syphon, where nothing keeps it from doing so."""


@dataclass
class Course:
    """What else is known of a run: receipts of the syphons that lived to give one, and what the dead ones had in hand.

    What a dead one has in the journal, the next one tells; but not what it had in hand while there was yet another, who
    may have sent it too. `missing` are the destinations, in lower case, that were not there for a while.
    """

    plan: Plan
    history: History
    receipts: list[Receipt] = field(default_factory=list)
    in_flight_at_death: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)

    def note_death(self, name: str) -> None:
        """Record what a syphon that is killed has in hand, or has doubled."""
        for track in self.history.tracks.values():
            if name in track.held_by and (not track.completed or len(track.arrivals) > 1):
                self.in_flight_at_death.add(track.stranded.id)


def check(course: Course) -> list[str]:
    tracks = list(course.history.tracks.values())
    return [
        *_lost(course, tracks),
        *_altered(course, tracks),
        *_dead(course, tracks),
        *_doubled(course, tracks),
        *_overtaken(course),
        *_receipts(course, tracks),
        *_ramps(course),
    ]


def _lost(course: Course, tracks: Iterable[Track]) -> Iterator[str]:
    for track in tracks:
        if track.arrivals or track.deleted or track.dead is not None:
            continue
        if course.plan.keeps_refused and track.stranded.doom and not track.completed:
            if track.holder is not None or track.message.delivery_count > track.locks_lost:
                yield f"stays, and is locked or counted as delivered: {track}"
            continue
        yield f"{'lost' if track.completed else 'left behind'}: {track}"
    for track in tracks:
        if track.arrivals and not (track.completed or track.deleted or track.dead):
            yield f"arrived, and is still in the backlog: {track}"


def _altered(course: Course, tracks: Iterable[Track]) -> Iterator[str]:
    for track in tracks:
        for payload in track.arrivals:
            original = track.stranded.original
            if course.plan.remaining and original.ttl_ticks is not None:
                left = _left_to_live(payload)
                if not 0 < left <= original.ttl_ticks // TICKS_PER_MS - _waited_ms(course, track):
                    yield f"altered: {track}: it has {left} ms to live"
                original = replace(original, ttl_ticks=left * TICKS_PER_MS)
            for line in message_differences(original, Sections.split(payload)):
                yield f"altered: {track}: {line}"


def _waited_ms(course: Course, track: Track) -> int:
    """How much of its time to live a message has spent in the backlog, at the least. A ms of it may be rounded away."""
    if track.stranded.original.scheduled_at is not None or course.plan.kinds & {"clock", "freeze"}:
        return 0
    return max(0, track.waited_ms - 2)


def _left_to_live(payload: bytes) -> int:
    """In ms: what the header says, unless that is full."""
    sections = Sections.split(payload)
    properties = sections.read_properties()
    if properties.absolute_expiry_time is not None and properties.creation_time is not None:
        return properties.absolute_expiry_time - properties.creation_time
    return sections.read_header().ttl or 0


def _dead(course: Course, tracks: Iterable[Track]) -> Iterator[str]:
    for track in tracks:
        doom = track.stranded.doom
        if doom is not None and track.arrivals:
            yield f"arrived, and cannot have: {track}"
        if track.dead is None:
            continue
        reason = track.dead[0]
        lawful = {doom} | ({MISSING} if track.road[1] in course.missing else set())
        if course.plan.keeps_refused:
            lawful = set()
        if course.plan.remaining and (track.stranded.original.ttl_ticks or TICKS_PER_DAY) < TICKS_PER_DAY:
            lawful.add(EXPIRED)
        if reason not in lawful:
            yield f"dead-lettered for {reason} ({track.dead[1]}): {track}"
        if track.arrivals and track.stranded.id not in _doubtful(course):
            yield f"arrived and dead-lettered: {track}"
        if track.message.sections.join() != track.stranded.payload:
            yield f"altered in the dead-letter queue: {track}"


def _doubtful(course: Course) -> set[str]:
    named = {each.message_id or "" for receipt in course.receipts for each in receipt.doubtful}
    return named | course.in_flight_at_death if "second" in course.plan.kinds else named


def _doubled(course: Course, tracks: Iterable[Track]) -> Iterator[str]:
    doubtful = _doubtful(course)
    for track in tracks:
        if len(track.arrivals) > 1 and track.stranded.id not in doubtful:
            yield f"arrived {len(track.arrivals)} times, and no receipt says so: {track}"
    if course.plan.harmless and any(receipt.doubtful for receipt in course.receipts):
        yield "there is doubt, and no reason for any"


def _overtaken(course: Course) -> Iterator[str]:
    for each in course.history.overtaken if course.plan.ordered else ():
        held = each.in_turn or (course.plan.backlog_is_heard and each.since_ms > UNDER_WAY_MS)
        stays = course.plan.keeps_refused and each.earlier.stranded.doom
        if held and each.earlier.dead is None and not each.earlier.deleted and not stays:
            yield f"overtaken in hand: {each.earlier} by {each.later}"
    if course.plan.ordered and course.plan.locks_hold:
        for road, arrived in course.history.first_arrivals.items():
            numbers = [track.number for track in arrived]
            if numbers != sorted(numbers):
                yield f"out of order: {road[0]} to {road[1]}: {numbers}"


def _receipts(course: Course, tracks: Iterable[Track]) -> Iterator[str]:
    for receipt in course.receipts:
        if not receipt.balanced:
            yield f"a receipt does not balance: {receipt}"
    if course.plan.kinds & {"crash"}:
        return
    sent = sum(receipt.sent for receipt in course.receipts)
    doubtful = _doubtful(course)
    arrived = sum(len(track.arrivals) for track in tracks)
    certain = sum(len(track.arrivals) for track in tracks if track.stranded.id not in doubtful)
    if certain > sent or (sent > arrived and not _detects_duplicates(course)):
        yield f"{sent} sent, and {arrived} have arrived, {arrived - certain} of them in doubt"


def _detects_duplicates(course: Course) -> bool:
    """Where the service drops what it has already, more is sent than arrives."""
    return any(goal.detects_duplicates for goal in course.plan.goals)


def _ramps(course: Course) -> Iterator[str]:
    """Yield each step that sent more than it may."""
    for receipt in course.receipts:
        for step in receipt.ramp.steps if receipt.ramp else ():
            if step.sent > step.total:
                yield f"a ramp has sent {step.sent} messages in a step that ends at {step.total}"
