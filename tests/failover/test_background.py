"""The syphon inside an application: it moves the backlog, and ends with the client."""

import threading
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from sbpair import PairedClient
from sbpair.errors import UsageError
from sbpair.failover import background
from sbpair.failover.events import SyphonFaulted
from sbpair.model.retries import Backoff
from sbpair.move.events import QueueOpened
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.syphon import runner
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PATIENCE_SECONDS, Rig, ids

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]


class Arrivals:
    """Messages enqueued in the primary, which a test may wait for."""

    def __init__(self, rig: Rig) -> None:
        self._count = threading.Semaphore(0)
        enqueue = rig.orders.messages.enqueue

        def watched(*arguments: Any, **keywords: Any) -> Any:
            taken = enqueue(*arguments, **keywords)
            self._count.release()
            return taken

        rig.orders.messages.enqueue = watched  # type: ignore[method-assign]

    def wait(self) -> None:
        assert self._count.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RESTART_BACKOFF", Backoff(0.05, 300.0))
    monkeypatch.setattr(background, "LEASE_WAIT_SECONDS", 0.05)


def syphon_of(client: Any, **options: Any) -> Any:
    """Start the syphon of a client; of an aio client in its loop."""
    if isinstance(client, PairedClient):
        return client.syphon(**options)

    async def make() -> Any:
        return client._wrapped.syphon(**options)

    return client._thread.run(make())


def is_fault(event: Any) -> bool:
    return isinstance(event, SyphonFaulted)


def strand(client: Any, name: str) -> None:
    client.force_failover("orders")
    client.get_queue_sender("orders").send_messages(ServiceBusMessage(name.encode(), message_id=name))
    client.failback("orders")


@KINDS
def test_the_syphon_moves_the_applications_own_backlog(rig: Rig, kind: str) -> None:
    arrivals = Arrivals(rig)
    with rig.client(kind) as (client, log):
        handle = syphon_of(client)
        strand(client, "first")
        arrivals.wait()
        strand(client, "second")
        arrivals.wait()
        assert handle.running
        with pytest.raises(UsageError, match="has a syphon already"):
            syphon_of(client)
    assert not handle.running
    assert (handle.result.receipt.sent, handle.result.receipt.balanced, handle.result.stopped) == (2, True, True)
    assert sorted(ids(rig.in_queue(rig.orders))) == ["first", "second"]
    assert rig.in_backlog() == []
    assert log.of(SyphonFaulted) == []
    assert not [each.name for each in threading.enumerate() if each.name == "sbpair syphon"]


@KINDS
def test_a_fault_is_an_event_and_sending_goes_on(rig: Rig, kind: str) -> None:
    arrivals = Arrivals(rig)
    rig.with_key("secondary", "d3Jvbmc=")
    with rig.client(kind) as (client, log):
        syphon_of(client)
        first = log.wait_for(is_fault)
        assert "does not accept" in first.reason or "signature" in first.reason
        log.wait_for(lambda event: is_fault(event) and event is not first)
        client.get_queue_sender("orders").send_messages(ServiceBusMessage(b"m"))
        arrivals.wait()


def test_an_unexpected_error_is_an_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_arguments: Any, **_options: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(runner, "run", broken)
    with rig.client() as (client, log):
        syphon_of(client)
        fault = log.wait_for(is_fault)
        assert str(fault) == "the syphon is retried after 0.05 s: unexpected ZeroDivisionError"


@pytest.mark.parametrize("state", [None, "mine"])
def test_the_syphon_waits_while_another_process_moves_the_pair(rig: Rig, tmp_path: Path, state: str | None) -> None:
    arrivals = Arrivals(rig)
    with rig.client() as (client, log):
        strand(client, "m")
        with hold_machine_leases(rig.pair, tmp_path / "another", "another-run"):
            syphon_of(client, state=None if state is None else tmp_path / state)
            fault = log.wait_for(is_fault)
            assert "is moving messages of this pair" in fault.reason
            assert rig.in_queue(rig.orders) == []
        arrivals.wait()


def test_closing_releases_messages_of_a_stalled_primary(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpair.failover.background.CLOSE_SECONDS", 0.5)
    opened = threading.Event()
    with rig.client() as (client, _log):
        handle = syphon_of(client, on_event=lambda event: opened.set() if isinstance(event, QueueOpened) else None)
        assert opened.wait(PATIENCE_SECONDS)
        with rig.broken("swallow_acks", "contoso", "orders"):
            arrivals = Arrivals(rig)
            strand(client, "m")
            arrivals.wait()
            client.close()
        assert not handle.running
    assert handle.result.receipt.balanced
    assert handle.result.hurried


def test_a_closed_client_starts_no_syphon(rig: Rig) -> None:
    with rig.client() as (client, _log):
        client.close()
        with pytest.raises(ValueError, match="has been closed"):
            syphon_of(client)


def test_a_stopped_syphon_can_be_started_again(rig: Rig) -> None:
    arrivals = Arrivals(rig)
    with rig.client() as (client, _log):
        first = syphon_of(client)
        first.stop()
        assert not first.running
        second = syphon_of(client)
        strand(client, "m")
        arrivals.wait()
        assert second.running
