"""A replay to another namespace than the primary, which is lost: a listener in its place counts connections."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.backlog import queue_path
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.replay import driver
from sbpair.replay.archive import LEDGER, SEGMENTS, Archive
from sbpair.replay.delivery import ReplayDelivery
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.progress import run_status
from sbpair.replay.run_description import ReplayMode, ReplayOptions, ReplayRequest, ReplaySelection, load_run
from sbpair.replay.verify import prove_run
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Journal, Key, message_keys
from tests.replay.segments import rows_of
from tests.replay.tasks import job_of, move, proof_of
from tests.replay.test_direct import keys
from tests.replay.world import NAMESPACE, OTHER, SENDING, VARIABLES, World

QUICK = ReplayOptions(empty_seconds=0.1)
TO_SECONDARY = ReplayDelivery("secondary")
RENAMED = ReplayDelivery("secondary", map=("ORDERS=orders-v2", "gone=gone-v2"))
UNUSED = "no message was for the old name of --map gone=gone-v2"


class LostPrimary:
    """Requests of a pair whose primary's address only counts connections, and whose key is in no variable."""

    def __init__(self, place: World, port: int) -> None:
        self.place, self.port = place, port
        self.connections = 0

    def request(self, directory: Path, **changes: Any) -> ReplayRequest:
        pair = self.place.pair
        lost = replace(pair.primary, host="127.0.0.1", port=self.port, key_source="SBPAIR_LOST_KEY")
        made = self.place.request(directory, to=pair.secondary, **changes)
        return replace(made, pair=replace(pair, primary=lost))

    def create(self, *names: str) -> None:
        """Create queues in the secondary."""
        for name in names:
            self.place.running.do(lambda name=name: self.place.running.other.create_queue(name))  # type: ignore[misc]

    def arrived(self, name: str) -> list[Any]:
        """Return the messages in a queue of the secondary."""
        other = self.place.running.other
        return self.place.running.do(lambda: list(other.queue(name).messages.peek(0, 1_000_000)))

    def ids(self, name: str) -> list[str]:
        return [each.sections.read_properties().message_id for each in self.arrived(name)]


@pytest.fixture
def lost(place: World) -> Iterator[LostPrimary]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = LostPrimary(place, listener.getsockname()[1])
        threading.Thread(target=_count, args=(listener, found), daemon=True).start()
        yield found
        assert found.connections == 0
        listener.shutdown(socket.SHUT_RDWR)


def _count(listener: socket.socket, found: LostPrimary) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return
        found.connections += 1


def nothing(_event: object) -> None:
    """Ignore an event."""


def archive_of(directory: Path) -> Archive:
    [run] = [each.name for each in (directory / "archive").iterdir()]
    return Archive(str(directory / "archive"), run)


def half_sent(place: World, directory: Path, count: int) -> Archive:
    """Send what is for orders to the primary. What is for invoices stays in the archive."""
    place.strand_many(count)
    orders = replace(QUICK, selection=ReplaySelection(("orders",)))
    first = driver.start_run(place.request(directory), orders, place.queues, nothing)
    assert (first.proof.acknowledged, first.proof.unsent) == (count // 2, count // 2)
    assert first.proof.namespaces == {NAMESPACE: count // 2}
    return archive_of(directory)


@pytest.mark.java
def test_a_resume_sends_what_is_unsent_and_what_only_the_primary_has(
    place: World, lost: LostPrimary, tmp_path: Path
) -> None:
    """One run serves several checks, since a start takes ten seconds."""
    count, directory = 60, tmp_path
    archive = half_sent(place, directory, count)
    lost.create("orders-v2", "invoices")
    sent = {each.sections.read_properties().message_id: each.sections for each in place.arrived()["orders"]}

    resume = driver.resume_run
    result = resume(lost.request(directory), archive.run, nothing, ReplaySelection(), delivery=RENAMED)

    half = count // 2
    assert result.end.notes == (
        f"{half} messages were accepted by the lost primary {NAMESPACE}; --include-acknowledged sends them, too",
        UNUSED,
    )
    proof = result.proof
    assert (proof.acknowledged, proof.accepted_elsewhere, proof.balanced) == (count, half, True)
    assert (proof.namespaces, proof.doubtful) == ({NAMESPACE: half, OTHER: half}, [])
    assert sorted(lost.ids("invoices")) == sorted({f"m{number}" for number in range(count)} - {*sent})
    assert lost.ids("orders-v2") == []

    everything = replace(RENAMED, include_acknowledged=True)
    proof = resume(lost.request(directory), archive.run, nothing, ReplaySelection(), delivery=everything).proof

    assert (proof.archived, proof.acknowledged, proof.accepted_elsewhere, proof.balanced) == (count, count, 0, True)
    assert proof.destinations == {"orders-v2": half, "invoices": half}
    assert {each.message_id: each.reason for each in proof.doubtful} == dict.fromkeys(
        sent, f"also accepted by {NAMESPACE}"
    )
    assert proof.doubtful_total == half
    arrived = {each.sections.read_properties().message_id: each.sections for each in lost.arrived("orders-v2")}
    assert arrived == sent, "each field is as the primary got it"

    again = resume(lost.request(directory), archive.run, nothing)
    assert (again.proof, again.run.delivery) == (proof, replace(everything, namespace=OTHER))
    assert Counter(lost.ids("orders-v2")) == Counter([*sent])
    assert prove_run(archive)[1] == proof
    assert run_status(archive).acknowledged_rows == count
    assert {row["destination"] for row in rows_of(archive, SEGMENTS)} == {"orders", "invoices"}


@pytest.mark.parametrize("mode", SENDING)
@pytest.mark.usefixtures("local_tasks")
def test_a_run_begins_with_the_secondary_and_a_resume_needs_to_know_it(
    place: World, lost: LostPrimary, tmp_path: Path, mode: ReplayMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLES[0])
    lost.create("orders-v2", "invoices")
    place.strand_many(20)
    options = replace(QUICK, mode=mode, delivery=RENAMED)
    result = driver.start_run(lost.request(tmp_path), options, place.queues, nothing)
    assert (result.proof.acknowledged, result.proof.balanced, result.end.notes) == (20, True, (UNUSED,))
    assert (len(lost.ids("orders-v2")), len(lost.ids("invoices")), place.left()) == (10, 10, 0)
    archive = archive_of(tmp_path)
    assert load_run(archive).delivery == replace(RENAMED, namespace=OTHER)
    assert {row["namespace"] for row in rows_of(archive, LEDGER)} == {OTHER}
    monkeypatch.setenv(VARIABLES[0], place.environment[VARIABLES[0]])
    with pytest.raises(errors.StateRefused, match=r"delivers to secondary \(contoso-dr\), not to contoso"):
        driver.resume_run(replace(place.request(tmp_path), primary_is_back=True), archive.run, nothing)
    with pytest.raises(errors.Unsafe, match="the backlog was last delivered to secondary, and contoso was lost"):
        driver.resume_run(place.request(tmp_path), archive.run, nothing)
    if mode is ReplayMode.DIRECT:
        wanted = replace(RENAMED, include_acknowledged=True)
        with pytest.raises(errors.UsageError, match="is direct: it has no copies"):
            driver.resume_run(lost.request(tmp_path), archive.run, nothing, delivery=wanted)


def test_a_direct_move_sends_what_a_killed_task_had_sent_to_the_primary(
    place: World, lost: LostPrimary, tmp_path: Path
) -> None:
    """The backlog still has it: the primary's acceptance does not complete it."""
    lost.create("orders", "invoices")
    place.strand_many(6)
    made = job_of(place, tmp_path, tasks=2, started_ms=2**53, mode=ReplayMode.DIRECT)
    first, second, _third = keys(place)
    for delivery, key in ((None, first), (replace(TO_SECONDARY, namespace=OTHER), second)):
        dead = Ledger(made.open(), made.run.shards, "dead", sync=False, delivery=delivery)
        dead.write(LEDGER, 0, [Entry(key, "orders")])
        dead.record_held([Entry(key, "orders")])
    options = replace(made.run.options, delivery=replace(TO_SECONDARY, namespace=OTHER))
    destination, secondary = lost.request(tmp_path).access()
    made = replace(made, run=replace(made.run, options=options), destination=destination, secondary=secondary)

    move(made)

    arrived = lost.ids("orders") + lost.ids("invoices")
    assert sorted(arrived) == sorted({*place.sent} - {second[3]})
    proof = proof_of(made)
    assert (proof.acknowledged, proof.unsent, place.left()) == (6, 0, 0)
    named = [(each.message_id, each.reason) for each in proof.doubtful]
    assert named == [(first[3], f"also accepted by {NAMESPACE}")]


@pytest.mark.usefixtures("local_tasks")
def test_what_the_journal_has_as_accepted_by_the_primary_is_sent_and_named(
    place: World, lost: LostPrimary, tmp_path: Path
) -> None:
    lost.create("orders", "invoices")
    place.strand_many(6)
    primary_has, secondary_has, _ = keys(place)
    state = tmp_path / "state"
    for namespace, key in ((NAMESPACE, primary_has), (OTHER, secondary_has)):
        with RunDatabase(state, place.pair.ends) as database:
            journal = Journal(database, run=f"to-{namespace}", destination_namespace=namespace)
            asyncio.run(accepted(journal, message_keys(OTHER, [key])))
    options = replace(QUICK, delivery=TO_SECONDARY)
    proof = driver.start_run(lost.request(tmp_path), options, place.queues, nothing).proof
    assert sorted(lost.ids("orders") + lost.ids("invoices")) == sorted({*place.sent} - {secondary_has[3]})
    assert (proof.archived, proof.balanced, place.left()) == (5, True, 0)
    named = [(each.message_id, each.reason) for each in proof.doubtful]
    assert named == [(primary_has[3], f"also accepted by {NAMESPACE}")]


@pytest.mark.usefixtures("local_tasks")
def test_destinations_that_lead_back_to_the_backlog_are_refused_or_said(
    place: World, lost: LostPrimary, tmp_path: Path
) -> None:
    running, back = place.running, queue_path(NAMESPACE, 0)
    running.do(lambda: running.other.create_queue("orders", QueueDescription(forward_to=back)))
    running.do(lambda: running.other.create_topic("invoices", TopicDescription()))
    audit = SubscriptionDescription(forward_to=back)
    running.do(lambda: running.other.topic("invoices").create_subscription("audit", audit))
    place.strand_many(4)
    options = replace(QUICK, delivery=TO_SECONDARY)
    with pytest.raises(errors.Unsafe, match=f"orders would come back to the backlog: orders -> {back}; everything is"):
        driver.start_run(lost.request(tmp_path), options, place.queues, nothing)
    archive = archive_of(tmp_path)
    assert (place.left(), unsent_in(archive)) == (0, 4)
    lost.create("orders-v2")
    wanted = ReplayDelivery("secondary", map=("orders=orders-v2",))
    result = driver.resume_run(lost.request(tmp_path), archive.run, nothing, delivery=wanted)
    assert sorted(lost.ids("orders-v2")) == ["m0", "m2"]
    way = f"messages for invoices would come back to the backlog: invoices -> invoices/subscriptions/audit -> {back}"
    assert way in result.end.notes
    assert result.proof.balanced


async def accepted(journal: Journal, found: list[Key]) -> None:
    journal.note_accepted(journal.note_sending([found], "orders"))
    await journal.flush()


def unsent_in(archive: Archive) -> int:
    return prove_run(archive)[1].unsent
