"""A simulated outage: one client behaves as in a real one, and others are not affected."""

from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from sbpair.failover import failover_send
from sbpair.failover.entity_states import State
from sbpair.failover.events import EntityChanged, OutboxBegun, OutboxEmptied, QueueLeft, QueueReturned
from sbpair.failover.side_connections import SimulatedOutage
from sbpair.model.retries import Backoff
from tests.kit.failover_rig import PAIRED_CLIENTS, SYNC_FIRST, Rig, a_message, ids

pytestmark = PAIRED_CLIENTS


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_send, "SEND_BACKOFF", Backoff(0.01, 5.0))


@SYNC_FIRST
def test_a_simulated_outage_affects_one_client_only(rig: Rig, kind: str) -> None:
    outage = SimulatedOutage()
    with rig.client(kind, outage=outage) as (client, log), rig.client() as (other, other_log):
        sender, others = client.get_queue_sender("orders"), other.get_queue_sender("orders")
        sender.send_messages(a_message("before"))
        outage.begin("primary")
        sender.send_messages(a_message("during"))
        others.send_messages(a_message("another's"))
        outage.begin("backlog", sender.backlog_queue)
        sender.send_messages(a_message("to the other queue"))
        assert len(log.of(QueueLeft)) == 1
        outage.end()
        log.wait_for(lambda event: isinstance(event, EntityChanged) and event.after is State.HEALTHY)
        log.wait_for(lambda event: isinstance(event, QueueReturned))
        sender.send_messages(a_message("after"))
        assert log.path == [State.FAILING, State.FAILED_OVER, State.HEALTHY]
        assert other_log.events == []
    assert set(ids(rig.in_queue(rig.orders))) >= {"before", "another's", "after"}
    assert sorted(ids(rig.in_backlog())) == ["during", "to the other queue"]


def test_an_outage_may_concern_one_entity(rig: Rig) -> None:
    outage = SimulatedOutage()
    rig.do(lambda: rig.running.namespace.create_queue("billing"))
    with rig.client(outage=outage) as (client, _log):
        outage.begin("primary", "ORDERS")
        client.get_queue_sender("billing").send_messages(a_message("m"))
        client.get_queue_sender("orders").send_messages(a_message("n"))
        assert client.states() == {"billing": State.HEALTHY, "orders": State.FAILED_OVER}


def test_callers_see_the_error_of_a_lost_connection(rig: Rig) -> None:
    outage = SimulatedOutage()
    outage.begin("primary")
    with (
        rig.client(outage=outage, failover_interval=60) as (client, _),
        pytest.raises(ServiceBusConnectionError, match="simulated outage: orders cannot be reached"),
    ):
        client.get_queue_sender("orders").send_messages(a_message("m"))


def test_the_outbox_keeps_messages_until_the_outage_ends(rig: Rig, tmp_path: Path) -> None:
    outage = SimulatedOutage()
    with rig.client(outage=outage, outbox=tmp_path / "outbox.db") as (client, log):
        outage.begin("primary")
        outage.begin("backlog")
        client.get_queue_sender("orders").send_messages(a_message("m"), timeout=5)
        log.wait_for(lambda event: isinstance(event, OutboxBegun))
        assert (rig.in_queue(rig.orders), rig.in_backlog()) == ([], [])
        outage.end()
        log.wait_for(lambda event: isinstance(event, OutboxEmptied))
        assert ids(rig.in_queue(rig.orders) + rig.in_backlog()) == ["m"]
