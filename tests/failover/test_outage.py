"""A simulated outage: one client behaves as in a real one, and others are not affected."""

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from sbpair.failover import failover_send
from sbpair.failover.entity_states import State
from sbpair.failover.events import EntityChanged, QueueLeft, QueueReturned
from sbpair.failover.simulated_outage import SimulatedOutage
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


def test_callers_see_the_error_of_a_lost_connection(rig: Rig) -> None:
    outage = SimulatedOutage()
    outage.begin("primary")
    with (
        rig.client(outage=outage, failover_interval=60) as (client, _),
        pytest.raises(ServiceBusConnectionError, match="simulated outage: orders cannot be reached"),
    ):
        client.get_queue_sender("orders").send_messages(a_message("m"))
