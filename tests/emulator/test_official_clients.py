"""What depends on the official clients for Python, sync and aio: their fallbacks, errors, rounding, pages and versions.

The behaviours of the service are in `tests/conformance`.
"""

import gc
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import ApiVersion

from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from tests.kit.sas import sign

FOR_EVER = timedelta(days=10_675_199, hours=2, minutes=48, seconds=5, microseconds=477_581)
"""What the SDK makes of TimeSpan.MaxValue when it reads it."""


def text_of(message: Any) -> str:
    return b"".join(message.body).decode()


def test_settlements_and_renewals_do_without_their_link(official: Any, running: Any) -> None:
    """The client falls back on the management node where the link is gone."""
    queue = running.queue()
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
        sender.send_messages([ServiceBusMessage(body) for body in "abcd"])
        messages: list[Any] = []
        while len(messages) < 4:
            messages += receiver.receive_messages(4 - len(messages), max_wait_time=10)
        # Nothing public takes the link away; the client's own published tests do it like this.
        receiver._handler._link.detach()
        completed, abandoned, deferred, dead = messages
        assert receiver.renew_message_lock(completed) > abandoned.locked_until_utc
        receiver.complete_message(completed)
        receiver.abandon_message(abandoned)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="late")
    counts = running.do(queue.counts)
    assert (counts.active, counts.dead_letter) == (2, 1)
    with official.receiver(*where, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as letters:
        (letter,) = letters.receive_messages(1, max_wait_time=10)
    assert (text_of(letter), letter.dead_letter_reason) == ("d", "late")


def test_five_thousand_messages_are_received_and_deleted(official: Any, running: Any) -> None:
    where = (running.connection_string, running.queue().path)
    with official.sender(*where) as sender:
        for start in range(0, 5000, 500):
            batch = sender.create_message_batch()
            for number in range(start, start + 500):
                batch.add_message(ServiceBusMessage(f"{number}"))
            sender.send_messages(batch)
        ping = {"content_type": "application/vnd.ms-servicebus-ping", "session_id": "p"}
        sender.send_messages(ServiceBusMessage("never delivered", **ping))
    got: list[str] = []
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with official.receiver(*where, receive_mode=mode, prefetch_count=1000) as receiver:
        while len(got) < 5000:
            messages = receiver.receive_messages(1000, max_wait_time=10)
            assert messages
            got += map(text_of, messages)
    assert got == [str(number) for number in range(5000)]


# Refusals


def wrong_key(running: Any) -> tuple[str, str]:
    wrong = AuthorizationRule("RootManageSharedAccessKey", "wrong", "wrong")
    return running.connection_string_with(wrong), running.queue().path


def expired_token(running: Any) -> tuple[str, str]:
    path = running.queue().path
    # The client compares it with the time of this machine.
    token = sign(running.namespace.keys[0], f"sb://127.0.0.1/{path}", int(time.time()) + 120)
    running.advance(180)
    return running.connection_string_with_token(token), path


def no_claim(running: Any) -> tuple[str, str]:
    rule = AuthorizationRule("listen", "listen-key", "listen-key-2", frozenset({AccessRight.LISTEN}))
    return running.connection_string_with(rule), running.queue(authorization_rules=(rule,)).path


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        (wrong_key, ServiceBusAuthenticationError, "InvalidSignature"),
        (expired_token, ServiceBusAuthenticationError, "ExpiredToken"),
        (no_claim, ServiceBusAuthorizationError, "'Send' claim(s) are required"),
        # The client sends its token first, and reports every answer to that as a matter of authentication.
        (lambda running: (running.connection_string, "nowhere"), ServiceBusAuthenticationError, "Status code: 404"),
        (
            lambda running: (running.connection_string, running.queue(status="SendDisabled").path),
            MessagingEntityDisabledError,
            "disabled",
        ),
        (
            lambda running: (running.connection_string, running.queue(max_size_in_megabytes=0).path),
            ServiceBusQuotaExceededError,
            "maximum entity size",
        ),
    ],
    ids=["wrong key", "expired token", "no claim", "missing", "disabled", "full"],
)
def test_the_client_raises_its_error_for_a_refusal(official: Any, running: Any, where, error, text) -> None:
    with pytest.raises(error) as caught, official.sender(*where(running)) as sender:
        sender.send_messages(ServiceBusMessage("refused"))
    assert text in f"{caught.value} {caught.value.inner_exception}"


def test_a_deleted_entity_detaches_its_links(official: Any, running: Any) -> None:
    queue = running.queue()
    with official.sender(running.connection_string, queue.path) as sender:
        running.do(lambda: running.namespace.delete_queue(queue.path))
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("too late"))
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            sender.send_messages(ServiceBusMessage("nowhere to go"))
        assert "Status code: 404" in str(caught.value.inner_exception)


@pytest.fixture
def _collected() -> Iterator[None]:
    """Collect garbage at once, so that its warnings belong to this test."""
    yield
    gc.collect()


# The clients do not close the socket of a connection that broke under them.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("_collected")
def test_an_outage_breaks_connections_and_refuses_new_ones(official: Any, running: Any) -> None:
    queue = running.do(lambda: running.other.create_queue(f"broken-{uuid.uuid4()}"))
    with official.sender(running.other.connection_string, queue.path) as sender:
        outage = running.do(lambda: running.emulator.faults.namespace_down(running.other.name))
        for body in ("lost", "refused"):
            with pytest.raises(ServiceBusConnectionError):
                sender.send_messages(ServiceBusMessage(body))
        running.do(lambda: running.emulator.faults.end(outage))
        sender.send_messages(ServiceBusMessage("after all"))
    assert running.do(queue.counts).active == 1


# Management


@pytest.fixture
def served(another: Any) -> Iterator[Any]:
    """An emulator for one test of all entities."""
    with another() as served:
        yield served


@pytest.fixture
def admin(official: Any, served: Any) -> Iterator[Any]:
    with official.admin(served.connection_string) as admin:
        yield admin


def test_the_sdks_rounding_of_the_maximum_timespan_is_handled(admin: Any, served: Any) -> None:
    # The client parses the string and rounds it up, past the largest TimeSpan.
    with pytest.raises(HttpResponseError, match=r"SubCode=40000.*DefaultMessageTimeToLive") as refused:
        admin.create_queue("orders", default_message_time_to_live="P10675199DT2H48M5.4775807S")
    assert refused.value.status_code == 400
    # The client takes a microsecond off, among others: what is stored is not TimeSpan.MaxValue.
    admin.create_queue("orders", default_message_time_to_live=FOR_EVER)
    stored = served.do(lambda: served.namespace.queue("orders").description.default_message_time_to_live)
    assert 0 < (1 << 63) - 1 - stored < 10_000


@pytest.mark.parametrize("count", [0, 100, 230])
def test_a_list_of_several_or_full_pages_is_complete(admin: Any, served: Any, count: int) -> None:
    names = [f"queue-{index:03}" for index in range(count)]
    served.do(lambda: [served.namespace.create_queue(name) for name in names])
    assert [queue.name for queue in admin.list_queues()] == names
    assert [queue.name for queue in admin.list_queues_runtime_properties()] == names


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_version_that_the_client_speaks_is_understood(served: Any, official: Any, version: ApiVersion) -> None:
    with official.admin(served.connection_string, api_version=version) as admin:
        assert admin.create_queue("orders").max_delivery_count == 10
        assert [queue.name for queue in admin.list_queues()] == ["orders"]
