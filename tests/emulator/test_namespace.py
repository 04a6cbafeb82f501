"""Entities by path, and outages."""

import pytest

from sbpair.emulator.service_errors import EntityExists, EntityFull, EntityNotFound


def test_paths_are_compared_in_lower_case_and_kept_as_written(namespace) -> None:
    namespace.create_queue("Contoso/X-ServiceBus-Transfer/0")
    assert namespace.queue("contoso/x-servicebus-transfer/0").path == "Contoso/X-ServiceBus-Transfer/0"
    with pytest.raises(EntityExists) as refused:
        namespace.create_queue("CONTOSO/x-servicebus-transfer/0")
    assert (refused.value.status, refused.value.sub_code) == (409, 40900)


@pytest.mark.parametrize("path", ["News/subscriptions/AUDIT", "/news/SUBSCRIPTIONS/audit/"])
def test_the_path_of_a_subscription_is_no_other_entitys(namespace, path) -> None:
    news = namespace.create_topic("news")
    for create, delete in (
        (namespace.create_queue, namespace.delete_queue),
        (namespace.create_topic, namespace.delete_topic),
    ):
        first = create(path)
        with pytest.raises(EntityExists, match="'news/Subscriptions/Audit' already exists"):
            news.create_subscription("Audit")
        assert namespace.resolve("news/subscriptions/audit").entity is first
        delete(path)
        audit = news.create_subscription("Audit")
        with pytest.raises(EntityExists, match=path.strip("/")):
            create(path)
        assert namespace.resolve("news/subscriptions/audit").entity is audit
        news.subscription("audit").delete()


@pytest.mark.parametrize("suffix", ["", "/$deadletterqueue", "/$DeadLetterQueue"])
@pytest.mark.parametrize("management", ["", "/$management"])
@pytest.mark.parametrize("address", ["orders", "/ORDERS", "amqps://127.0.0.1:5672/Orders", "sb://host/orders"])
def test_an_address_is_resolved_to_messages_or_dead_letters(namespace, queue, address, suffix, management) -> None:
    target = namespace.resolve(f"{address}{suffix}{management}")
    assert target.messages is (queue.dead_letters if suffix else queue.messages)
    assert (target.is_dead_letters, target.management) == (bool(suffix), bool(management))


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    "address", ["nothing", "", "$management", "orders/$else", "orders/$deadletterqueue/x", "orders/subscriptions/x"]
)
def test_an_unknown_address_is_not_found(namespace, address) -> None:
    with pytest.raises(EntityNotFound) as refused:
        namespace.resolve(address)
    assert refused.value.condition == "amqp:not-found"


def test_a_namespace_holds_ten_thousand_entities(namespace) -> None:
    for index in range(10_000):
        namespace.create_queue(f"q{index}")
    with pytest.raises(EntityFull):
        namespace.create_queue("one-too-many")


def test_overlapping_outages_are_reported_once(namespace) -> None:
    states = []
    namespace.on_outage.add(lambda: states.append(namespace.is_down))
    namespace.take_down()
    namespace.take_down()
    assert states == [True]
    namespace.bring_up()
    assert namespace.is_down
    namespace.bring_up()
    assert not namespace.is_down
    with pytest.raises(ValueError, match="not down"):
        namespace.bring_up()
