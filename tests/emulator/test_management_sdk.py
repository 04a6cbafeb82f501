"""The official administration client, unmodified, sync and aio, managing queues on the emulator.

Only its transport is the test's: the client always speaks https, and the emulator's port is plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.management import AccessRights, ApiVersion, AuthorizationRule, QueueProperties

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.stored_message import StoredMessage

FOR_EVER = timedelta(days=10_675_199, hours=2, minutes=48, seconds=5, microseconds=477_581)
"""What the SDK makes of TimeSpan.MaxValue when it reads it."""

BACKLOG = "contoso/x-servicebus-transfer/0"


@pytest.fixture
def served(another: Any) -> Iterator[Any]:
    """An emulator for one test, since many are about all that there is."""
    with another() as served:
        yield served


@pytest.fixture
def admin(official: Any, served: Any) -> Iterator[Any]:
    with official.admin(served.connection_string) as admin:
        yield admin


def shown(queue: QueueProperties) -> dict[str, Any]:
    return dict(queue.items())


def test_a_backlog_queue_reads_back_as_it_was_created(admin: Any) -> None:
    # TimeSpan.MaxValue is the service's default, and no string or timedelta gets it through this client.
    created = admin.create_queue(
        BACKLOG,
        lock_duration="PT1M",
        max_size_in_megabytes=5120,
        max_delivery_count=2147483647,
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )
    assert shown(created) == {
        "name": BACKLOG,
        "authorization_rules": None,
        "auto_delete_on_idle": FOR_EVER,
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": FOR_EVER,
        "duplicate_detection_history_time_window": timedelta(minutes=10),
        "availability_status": "Available",
        "enable_batched_operations": True,
        "enable_express": False,
        "enable_partitioning": False,
        "lock_duration": timedelta(minutes=1),
        "max_delivery_count": 2147483647,
        "max_size_in_megabytes": 5120,
        "requires_duplicate_detection": False,
        "requires_session": False,
        "status": "Active",
        "forward_to": None,
        "user_metadata": None,
        "forward_dead_lettered_messages_to": None,
        "max_message_size_in_kilobytes": 256,
    }
    assert shown(admin.get_queue(BACKLOG)) == shown(created)
    assert [shown(queue) for queue in admin.list_queues()] == [shown(created)]


@pytest.mark.parametrize("value", ["P10675199DT2H48M5.4775807S", FOR_EVER - timedelta(microseconds=0)])
def test_the_sdks_rounding_of_the_maximum_timespan_is_handled(admin: Any, served: Any, value: object) -> None:
    if isinstance(value, str):
        # The client parses the string and rounds it up, past the largest TimeSpan.
        with pytest.raises(HttpResponseError, match="DefaultMessageTimeToLive"):
            admin.create_queue("orders", default_message_time_to_live=value)
    else:
        # The client takes a microsecond off, among others: what is stored is not TimeSpan.MaxValue.
        admin.create_queue("orders", default_message_time_to_live=value)
        stored = served.do(lambda: served.namespace.queue("orders").description.default_message_time_to_live)
        assert 0 < (1 << 63) - 1 - stored < 10_000


def test_every_property_that_can_be_set_is_given_back(admin: Any, served: Any) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        key_name="worker",
        primary_key="first",
        secondary_key="second",
    )
    asked = {
        "auto_delete_on_idle": timedelta(hours=1),
        "default_message_time_to_live": timedelta(days=14),
        "duplicate_detection_history_time_window": timedelta(seconds=90),
        "enable_batched_operations": False,
        "enable_express": True,
        "lock_duration": timedelta(seconds=30, milliseconds=500),
        "requires_duplicate_detection": True,
        "user_metadata": "<notes> & 'more'",
        "status": "SendDisabled",
    }
    admin.create_queue("target")
    # Where sessions are required nothing is forwarded, so that no queue has it all.
    assert admin.create_queue("sessions", requires_session=True).requires_session is True
    created = admin.create_queue(
        "orders", forward_to="target", forward_dead_lettered_messages_to="target", authorization_rules=[rule], **asked
    )
    read = shown(created)
    assert {name: read[name] for name in asked} == asked
    whole = served.namespace.endpoint + "/target"
    assert (created.forward_to, created.forward_dead_lettered_messages_to) == (whole, whole)
    (given,) = created.authorization_rules
    assert (given.type, given.key_name, given.primary_key, given.secondary_key) == (
        "SharedAccessAuthorizationRule",
        "worker",
        "first",
        "second",
    )
    assert sorted(given.rights) == ["Listen", "Send"]
    assert given.created_at_utc is not None


def test_a_list_of_more_than_a_page_is_complete(admin: Any, served: Any) -> None:
    names = [f"queue-{index:03}" for index in range(230)]
    served.do(lambda: [served.namespace.create_queue(name) for name in names])
    assert [queue.name for queue in admin.list_queues()] == names
    assert [queue.name for queue in admin.list_queues_runtime_properties()] == names


@pytest.mark.parametrize("count", [0, 100])
def test_a_list_that_fills_its_pages_exactly_ends(admin: Any, served: Any, count: int) -> None:
    served.do(lambda: [served.namespace.create_queue(f"queue-{index}") for index in range(count)])
    assert len(admin.list_queues()) == count
    assert admin.list_topics() == []


def test_an_update_changes_what_can_change(admin: Any, served: Any) -> None:
    queue = admin.create_queue("orders", lock_duration="PT1M")
    queue.max_delivery_count = 3
    queue.lock_duration = timedelta(minutes=5)
    admin.update_queue(queue, user_metadata="changed")
    read = admin.get_queue("orders")
    assert (read.max_delivery_count, read.lock_duration) == (3, timedelta(minutes=5))
    assert read.user_metadata == "changed"
    assert served.do(lambda: served.namespace.queue("orders").description.lock_ms) == 300_000


def test_an_update_of_what_cannot_change_is_refused(admin: Any) -> None:
    queue = admin.create_queue("orders")
    with pytest.raises(HttpResponseError, match=r"SubCode=40000.*RequiresSession") as refused:
        admin.update_queue(queue, requires_session=True)
    assert refused.value.status_code == 400
    assert admin.get_queue("orders").requires_session is False


def test_runtime_properties_follow_the_messages(admin: Any, served: Any) -> None:
    admin.create_queue("orders")

    def use() -> None:
        namespace = served.namespace
        queue = namespace.queue("orders")
        queue.send([StoredMessage(Sections(), 100) for _ in range(5)])
        queue.send([StoredMessage(Sections(), 100, scheduled_at_ms=namespace.clock.now_ms() + 60_000)])
        for message in queue.messages.receive(2):
            queue.messages.dead_letter(message.lock_token, "Bad")

    served.do(use)
    read = admin.get_queue_runtime_properties("orders")
    counts = (read.active_message_count, read.dead_letter_message_count, read.scheduled_message_count)
    assert counts == (3, 2, 1)
    assert (read.transfer_message_count, read.transfer_dead_letter_message_count) == (0, 0)
    assert (read.total_message_count, read.size_in_bytes) == (6, 600)
    assert read.created_at_utc <= read.accessed_at_utc
    assert read.updated_at_utc == read.created_at_utc


def test_a_deleted_queue_is_gone(admin: Any) -> None:
    admin.create_queue(BACKLOG)
    admin.delete_queue(BACKLOG.upper())
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(BACKLOG)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue_runtime_properties(BACKLOG)
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue(BACKLOG)


def test_a_queue_that_exists_is_not_created_again(admin: Any) -> None:
    admin.create_queue(BACKLOG)
    with pytest.raises(ResourceExistsError) as refused:
        admin.create_queue(BACKLOG.upper())
    assert refused.value.status_code == 409
    assert "SubCode=40900" in str(refused.value)


def test_a_queue_that_is_missing_is_not_updated(admin: Any) -> None:
    queue = admin.create_queue("orders")
    admin.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(queue)


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("orders", {"lock_duration": "PT6M"}),
        ("orders", {"max_size_in_megabytes": 81920}),
        ("orders", {"max_delivery_count": 0}),
        ("orders", {"auto_delete_on_idle": "PT1M"}),
        ("orders", {"max_message_size_in_kilobytes": 102400}),
        ("x" * 261, {}),
        ("contoso~x-servicebus-transfer~0", {}),
    ],
)
def test_bad_values_are_refused_by_the_service(admin: Any, name: str, properties: dict[str, Any]) -> None:
    with pytest.raises(HttpResponseError, match="SubCode=40000") as refused:
        admin.create_queue(name, **properties)
    assert refused.value.status_code == 400
    assert admin.list_queues() == []


def test_a_wrong_key_is_an_authentication_error(served: Any, official: Any) -> None:
    wrong = served.connection_string.replace("SAS_KEY_VALUE", "wrong")
    with official.admin(wrong) as admin, pytest.raises(ClientAuthenticationError) as refused:
        admin.create_queue("orders")
    assert refused.value.status_code == 401


def test_the_namespace_tells_what_it_is(admin: Any) -> None:
    properties = admin.get_namespace_properties()
    assert (properties.name, properties.messaging_sku, properties.namespace_type) == (
        "contoso",
        "Standard",
        "Messaging",
    )


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_version_that_the_client_speaks_is_understood(served: Any, official: Any, version: ApiVersion) -> None:
    with official.admin(served.connection_string, api_version=version) as admin:
        assert admin.create_queue("orders").max_delivery_count == 10
        assert [queue.name for queue in admin.list_queues()] == ["orders"]


def test_a_namespace_that_is_down_does_not_answer(admin: Any, served: Any) -> None:
    served.do(served.namespace.take_down)
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        admin.list_queues()
    served.do(served.namespace.bring_up)
    assert admin.list_queues() == []
