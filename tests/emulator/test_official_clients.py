"""What depends on the official clients for Python, sync and aio: their fallbacks and errors.

The behaviours of the service are in `tests/conformance`.
"""

import time
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
)

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from tests.kit.running import NAMESPACE
from tests.kit.sas import sign


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


# Refusals


def wrong_key(running: Any) -> tuple[str, str]:
    wrong = AuthorizationRule("RootManageSharedAccessKey", "wrong", "wrong")
    return running.connection_string_with(wrong), running.queue().path


def expired_token(running: Any) -> tuple[str, str]:
    path = running.queue().path
    # The client does not send a token that has expired by the time of this machine.
    token = sign(running.namespace.keys[0], f"sb://127.0.0.1/{path}", int(time.time()) + 120)
    running.do(lambda: running.emulator.faults.expire_tokens(NAMESPACE, count=1))
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
