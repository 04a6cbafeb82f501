"""The paired client's guarantee under each fault: accepted messages arrive unaltered, and duplicates are reported."""

import gc
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.server import EmulatorOptions
from sbpair.errors import FirewallRefused, NotAuthenticated, NotAuthorized, UsageError
from sbpair.failover.entity_states import State
from sbpair.failover.events import EntityChanged, QueueLeft
from sbpair.failover.side_connections import ClientFactory
from sbpair.model.pair import Identity, Pair
from sbpair.sync_async import drive
from tests.kit.failover_rig import PAIRED_CLIENTS, PRIMARY, SECONDARY, SLOW, Rig, ids
from tests.kit.running import Running

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]


def body(name: str) -> bytes:
    return f"{name}: \u00e4 ".encode() * 40


def outbox_is_empty(client: Any) -> None:
    """Wait until the outbox is empty."""
    while client.outbox is not None and client.outbox.holds("orders"):
        continue


class Promised:
    """The messages whose sends returned, and those whose sends raised."""

    def __init__(self, sender: Any, seconds: float = 3) -> None:
        self._sender, self._seconds = sender, seconds
        self.names: list[str] = []
        self.raised: list[Exception] = []

    def send(self, *names: str) -> None:
        messages = [
            ServiceBusMessage(body(name), message_id=name, application_properties={"name": name}, subject="proof")
            for name in names
        ]
        try:
            self._sender.send_messages(messages if len(messages) > 1 else messages[0], timeout=self._seconds)
        except ServiceBusError as error:
            self.raised.append(error)
        else:
            self.names += names

    def are_kept(self, rig: Rig, doubtful_ids: set[str]) -> None:
        arrived = rig.brought_back()
        counted = Counter(ids(arrived))
        assert set(self.names) <= counted.keys()
        assert {name for name, times in counted.items() if times > 1} <= doubtful_ids
        for each in arrived:
            name = each.read_properties().message_id
            assert each.body == b"\x00\x53\x75\xb0" + len(body(name)).to_bytes(4) + body(name)
            assert each.read_properties().subject == "proof"
            assert each.read_application_properties().pairs == (("name", name),)


QUEUES = ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]
THE_NAMESPACE = ("namespace_down", PRIMARY)
FAULTS: dict[str, list[tuple[str, ...]]] = {
    "the entity": [("entity_down", PRIMARY, "orders")],
    "the namespace": [THE_NAMESPACE],
    "stalled": [("stall", PRIMARY)],
    "throttled": [("throttle", PRIMARY, "orders")],
    "unanswered": [("swallow_acks", PRIMARY, "orders")],
    "a queue too": [THE_NAMESPACE, ("entity_down", SECONDARY, QUEUES[0])],
    "all queues too": [THE_NAMESPACE, *(("throttle", SECONDARY, queue) for queue in QUEUES)],
    "both": [THE_NAMESPACE, ("namespace_down", SECONDARY)],
}
FAST = {
    *(("sync", fault) for fault in ("the namespace", "stalled", "throttled", "a queue too", "both")),
    *(("aio", fault) for fault in ("the entity", "all queues too")),
}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, marks=() if (kind, fault) in FAST else SLOW)
        for fault in FAULTS
        for kind in ("sync", "aio")
    ],
)
def test_all_sends_return_and_arrive_during_an_outage(rig: Rig, tmp_path: Path, kind: str, fault: str) -> None:
    with rig.client(kind, outbox=tmp_path / "outbox.db") as (client, log):
        promised = Promised(client.get_queue_sender("orders"))
        promised.send("before")
        with rig.all_broken(*FAULTS[fault]):
            for number in range(2):
                promised.send(f"m{number}")
            promised.send("m2", "m3")
        log.wait_for(lambda event: getattr(event, "after", None) is State.HEALTHY)
        promised.send("after")
        outbox_is_empty(client)
    assert log.path[:3] == [State.FAILING, State.FAILED_OVER, State.HEALTHY]
    assert not promised.raised
    promised.are_kept(rig, log.doubtful_ids)


def test_an_error_that_is_no_outage_is_raised(rig: Rig, tmp_path: Path) -> None:
    rig.do(lambda: rig.running.namespace.create_queue("full", QueueDescription(max_size_in_megabytes=1)))
    with rig.client(outbox=tmp_path / "outbox.db") as (client, log):
        for entity in ("full", "missing"):
            promised = Promised(client.get_queue_sender(entity))
            while not promised.raised:
                promised.send(*(f"m{number}" for number in range(200)))
        assert log.events == []
    rig.with_key("primary", "d3Jvbmc=")
    with rig.client(outbox=tmp_path / "outbox.db") as (client, log):
        promised = Promised(client.get_queue_sender("orders"))
        promised.send("wrong key")
        assert promised.raised
    assert (rig.in_backlog(), rig.in_queue(rig.orders)) == ([], [])


def with_identity(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Return the pair of a rig whose secondary is signed in to by an identity."""
    for name, value in rig.running.emulator.ready.identity.environment.items():
        monkeypatch.setenv(name, value)
    return replace(rig.pair, secondary=replace(rig.pair.secondary, credential=Identity("managed")))


def test_the_end_of_a_token_is_no_error_of_a_backlog_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(options=EmulatorOptions(identity=True, token_life=4)) as running:
        rig = Rig(running, queues=1)
        with_keys, rig.pair = rig.pair, with_identity(rig, monkeypatch)
        with rig.broken("namespace_down", "contoso"), rig.client(ping_interval=60) as (client, log):
            client.force_failover()
            promised, numbers = Promised(client.get_queue_sender("orders"), seconds=15), count()
            while not log.doubtful_ids:
                promised.send(f"m{next(numbers)}")
        assert promised.raised == []
        assert not log.of(QueueLeft)
        rig.pair = with_keys  # the syphon is not the subject
        promised.are_kept(rig, log.doubtful_ids)
    gc.collect()


def test_a_token_that_ends_before_it_is_looked_at_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(options=EmulatorOptions(identity=True)) as running:
        rig = Rig(running, queues=1)
        rig.pair = with_identity(rig, monkeypatch)
        with rig.broken("expire_tokens", "contoso-dr", count=1), rig.client(ping_interval=60) as (client, log):
            client.force_failover()
            promised = Promised(client.get_queue_sender("orders"), seconds=15)
            promised.send("message")
        assert (promised.raised, log.of(QueueLeft)) == ([], [])
        promised.are_kept(rig, log.doubtful_ids)
    gc.collect()


@pytest.mark.parametrize("tls", [False, True])
def test_what_the_service_refuses_is_no_outage(tmp_path: Path, *, tls: bool) -> None:
    with Running(options=EmulatorOptions(tls=True)) as running:
        rig = Rig(running, queues=1)
        if tls:  # the SDK is given an address of its own then, and has other errors
            primary = replace(rig.pair.primary, tls=True, ca_file=str(running.emulator.ready.ca_file))
            rig.pair = replace(rig.pair, primary=primary)
        with rig.client(outbox=tmp_path / "outbox.db") as (client, log):
            promised = Promised(client.get_queue_sender("orders"))
            for kind, wanted in (("firewall", FirewallRefused), ("local_auth_disabled", NotAuthorized)):
                with rig.broken(kind, "contoso"):
                    promised.send(kind)
                assert isinstance(promised.raised.pop(), wanted)
            rig.with_key("primary", "d3Jvbmc=")
            assert log.events == []
        with rig.client() as (client, _log):
            promised = Promised(client.get_queue_sender("orders"))
            promised.send("wrong key")
            assert isinstance(promised.raised.pop(), NotAuthenticated)
        assert (rig.in_backlog(), rig.in_queue(rig.orders)) == ([], [])
    gc.collect()


def test_without_backlog_queues_the_error_names_them(rig: Rig) -> None:
    for path in rig.paths:
        rig.do(lambda path=path: rig.running.other.delete_queue(path))
    with rig.client() as (client, _log):
        client.force_failover()
        promised = Promised(client.get_queue_sender("orders"))
        promised.send("message")
    (raised,) = promised.raised
    assert "There is no queue contoso/x-servicebus-transfer/" in raised.__notes__[-1]
    assert "create it with `sbpair provision`" in raised.__notes__[-1]


def test_sdk_clients_share_the_tokens_of_their_identity(rig: Rig) -> None:
    factory = ClientFactory(is_async=False)
    ends = [replace(rig.pair.primary, credential=Identity(client_id=each)) for each in ("a", "b", "a")]
    clients = [factory.client(each, 1.0) for each in ends]
    first, second, third = (each._credential for each in clients)
    assert first is third is not second
    for each in clients:
        each.close()
    drive(factory.close())
    with pytest.raises(UsageError, match="closed"):
        first.get_token("scope")


@pytest.mark.parametrize(
    ("kind", "mode", "kept_in"),
    [("sync", "500", "backlog"), ("aio", "refuse", "outbox"), pytest.param("sync", "throttle", "outbox", marks=SLOW)],
)
def test_sends_outlast_an_identity_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str, kept_in: str
) -> None:
    with Running(options=EmulatorOptions(identity=True, token_life=4)) as running:
        rig = Rig(running, queues=1)
        for name, value in running.emulator.ready.identity.environment.items():
            monkeypatch.setenv(name, value)
        identity = Identity("managed", client_id=running.emulator.ready.namespaces[0].client_id)
        sides = ("primary",) if kept_in == "backlog" else ("primary", "secondary")
        ends = {side: replace(getattr(rig.pair, side), credential=identity) for side in sides}
        rig.pair = replace(rig.pair, **ends)
        with rig.client(kind, outbox=tmp_path / "outbox.db", retries=1) as (client, log):
            sender = client.get_queue_sender("orders")
            promised = Promised(sender, seconds=15)
            promised.send("before")
            with rig.broken("identity_down", "contoso", mode):
                numbers = count()
                while not getattr(sender.delivered, kept_in):
                    promised.send(f"during {next(numbers)}")
            log.wait_for(lambda event: getattr(event, "after", None) is State.HEALTHY)
            outbox_is_empty(client)
        assert promised.raised == []
        assert "the identity provider is away" in str(log.of(EntityChanged)[0])
        promised.are_kept(rig, log.doubtful_ids)
    gc.collect()


@pytest.mark.parametrize(
    ("kind", "secured"),
    [
        ("sync", "tls"),
        ("aio", "identity"),
        pytest.param("aio", "tls", marks=SLOW),
        pytest.param("sync", "identity", marks=SLOW),
    ],
)
def test_failover_works_over_tls_with_an_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, secured: str
) -> None:
    with Running(options=EmulatorOptions(tls=secured == "tls", identity=secured == "identity")) as running:
        rig = Rig(running, queues=2)
        if secured == "tls":
            ca_file = str(running.emulator.ready.ca_file)
            ends = {
                side: replace(getattr(rig.pair, side), tls=True, ca_file=ca_file) for side in ("primary", "secondary")
            }
        else:
            for name, value in running.emulator.ready.identity.environment.items():
                monkeypatch.setenv(name, value)
            ends = {side: replace(getattr(rig.pair, side), credential=Identity()) for side in ("primary", "secondary")}
        rig.pair = replace(rig.pair, **ends)
        with rig.client(kind, outbox=tmp_path / "outbox.db") as (client, log):
            promised = Promised(client.get_queue_sender("orders"), seconds=15)
            promised.send("before")
            with rig.all_broken(*FAULTS["both"]):
                promised.send("kept")
            log.wait_for(lambda event: getattr(event, "after", None) is State.HEALTHY)
            outbox_is_empty(client)
            client.force_failover()
            promised.send("around")
            outbox_is_empty(client)  # it went there where both backlog queues were still resting
        assert promised.raised == []
        promised.are_kept(rig, log.doubtful_ids)
    gc.collect()
