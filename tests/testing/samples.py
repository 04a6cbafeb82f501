"""Tests as a user of the plugin writes them. test_plugin.py runs them in a pytest of their own."""

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.exceptions import ServiceBusError

from sbpair import load_pair


def exchange(connection_string, queue, receive_from=None):
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with client.get_queue_receiver(receive_from or queue) as receiver:
            [message] = receiver.receive_messages(max_wait_time=5)
            receiver.complete_message(message)
    return str(message)


def send(connection_string, queue, body="one"):
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body))


@pytest.mark.service_bus(queues=["orders"])
def test_three_lines_are_enough(service_bus):
    assert exchange(service_bus.connection_string, "orders") == "one"


@pytest.mark.service_bus(queues=["orders"])
@pytest.mark.parametrize("body", ["one", "two"])
def test_each_test_has_a_namespace_of_its_own(service_bus, body):
    assert service_bus.counts("orders").total == 0
    send(service_bus.connection_string, "orders", body)
    assert service_bus.counts("orders").active == 1


def test_entities_may_be_declared_later(service_bus):
    service_bus.declare(queues=["more"])
    assert exchange(service_bus.connection_string, "more") == "one"
    assert service_bus.name == "contoso"


@pytest.mark.service_bus(queues=["orders"])
def test_a_session_has_the_entities_of_all_its_tests(service_bus_session):
    send(service_bus_session.connection_string, "bills")


@pytest.mark.service_bus(queues=["bills"])
def test_a_session_shares_a_namespace(service_bus_session):
    assert service_bus_session.counts("bills").active == 1
    assert service_bus_session.counts("orders").active == 0


@pytest.mark.service_bus(queues=["elsewhere"])
def test_a_session_and_a_test_share_nothing(service_bus, service_bus_session, service_bus_pair_session):
    assert service_bus_pair_session.secondary.counts("elsewhere").active == 0
    assert service_bus_session.counts("bills").active == 1
    with pytest.raises(Exception, match="could not be found"):
        service_bus.counts("bills")


@pytest.mark.service_bus(queues=["orders"])
def test_a_pair_has_the_entities_on_both_sides(service_bus_pair):
    primary, secondary = service_bus_pair
    assert (primary.name, secondary.name) == ("contoso", "contoso-dr")
    assert exchange(primary.connection_string, "orders") == "one"
    assert exchange(secondary.connection_string, "orders") == "one"
    pair = load_pair(environ=service_bus_pair.environ)
    assert (pair.primary.name, pair.secondary.name) == ("contoso", "contoso-dr")
    assert pair.secondary.authority in secondary.connection_string


@pytest.mark.service_bus(
    queues={"orders": {"lock_duration": timedelta(seconds=10), "forward_to": "all"}, "all": {"MaxDeliveryCount": 2}},
    topics={"news": {"audit": {"requires_session": True}, "red": "color = 'red'"}, "plain": ["one", "two"], "none": []},
)
def test_entities_have_properties_subscriptions_and_filters(service_bus):
    assert exchange(service_bus.connection_string, "orders", "all") == "one"
    emulated = service_bus.thread.emulator.namespaces["contoso"]
    assert emulated.queue("orders").description.lock_ms == 10_000
    assert emulated.queue("orders").description.max_delivery_count == 10
    assert emulated.queue("all").description.max_delivery_count == 2
    assert emulated.topic("news").subscription("audit").description.requires_session
    assert emulated.topic("news").subscription("red").rules[0].filter.expression == "color = 'red'"
    assert [each.name for each in emulated.topic("plain").subscriptions] == ["one", "two"]
    assert service_bus.counts("plain/subscriptions/two").total == 0


@pytest.mark.service_bus(hybrid_connections={"hyco": {"requires_client_authorization": False}})
def test_hybrid_connections_are_declared_like_queues(service_bus):
    service_bus.declare(hybrid_connections=["other"])
    found = service_bus.thread.emulator.namespaces["contoso"].hybrid_connections.all()
    described = [(each.path, each.description.requires_client_authorization) for each in found]
    assert described == [("hyco", False), ("other", True)]


@pytest.mark.service_bus(queues={"orders": {"max_delivery_count": 5}, "bills": {}}, topics={"news": ["one"]})
class TestClass:
    @pytest.mark.service_bus(queues={"orders": {"max_delivery_count": 2}}, topics={"news": ["two"]})
    def test_marks_of_a_class_and_a_function_add_up(self, service_bus):
        emulated = service_bus.thread.emulator.namespaces["contoso"]
        assert emulated.queue("orders").description.max_delivery_count == 2
        assert emulated.queue("bills").description.max_delivery_count == 10
        assert [each.name for each in emulated.topic("news").subscriptions] == ["one", "two"]


@pytest.mark.service_bus(config="Config.json")
def test_a_configuration_file_is_found_beside_the_test(service_bus):
    assert exchange(service_bus.connection_string, "queue.1") == "one"
    queue = service_bus.thread.emulator.namespaces["contoso"].queue("queue.1")
    assert queue.description.max_delivery_count == 3


@pytest.mark.service_bus(queues=["orders"])
def test_faults_and_the_clock_are_at_hand(service_bus):
    with ServiceBusClient.from_connection_string(service_bus.connection_string, retry_total=0) as client:
        with client.get_queue_sender("orders") as sender:
            with service_bus.fault("throttle", entity="orders", count=1), pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("refused"))
            sender.send_messages(ServiceBusMessage("accepted"))
        with client.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(max_wait_time=5)
            service_bus.advance(60_000)
            [again] = receiver.receive_messages(max_wait_time=5)
            assert again.delivery_count == 1


@pytest.mark.service_bus(queues=["orders"])
def test_a_test_may_run_a_loop_of_its_own(service_bus):
    async def scenario():
        async with AsyncClient.from_connection_string(service_bus.connection_string) as client:
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("one"))
            assert service_bus.counts("orders").active == 1
            async with client.get_queue_receiver("orders") as receiver:
                [message] = await receiver.receive_messages(max_wait_time=5)
                await receiver.complete_message(message)

    asyncio.run(scenario())
    assert service_bus.counts("orders").active == 0
