"""Errors of paired senders: each is one of sbpair, and of the class that the SDK raises."""

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import TokenAuthFailure

from sbpair import DedupReceiver, PassiveSender, errors
from sbpair.errors import SbpairError
from sbpair.failover.entity_states import State
from sbpair.failover.failures import join_sdk_errors
from sbpair.failover.sdk_encoding import encode
from sbpair.failover.sdk_messages import prepare_one
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PRIMARY, SECONDARY, Rig, a_message
from tests.kit.stranded import put

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]

# What the SDK raises, and its meaning.
MEANINGS: list[tuple[Exception, type[SbpairError]]] = [
    (sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(404, b"no such")), errors.EntityMissing),
    (sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(401, b"bad")), errors.NotAuthenticated),
    (sdk.ServiceBusAuthorizationError(message="Send claim(s) are required"), errors.NotAuthorized),
    (sdk.OperationTimeoutError(), errors.TimedOut),
    (sdk.ServiceBusConnectionError(), errors.Unreachable),
    (sdk.ServiceBusCommunicationError(), errors.Unreachable),
    (sdk.ServiceBusServerBusyError(), errors.Throttled),
    (sdk.ServiceBusQuotaExceededError(), errors.QuotaExceeded),
    (sdk.MessagingEntityDisabledError(), errors.Unreachable),
    (sdk.MessagingEntityNotFoundError(), errors.EntityMissing),
    (sdk.MessageSizeExceededError(), errors.ServiceRefused),
    (sdk.MessageNotFoundError(), errors.ServiceRefused),
    (sdk.ServiceBusError("refused"), errors.Unreachable),
]


def joined(error: Exception) -> Any:
    with pytest.raises(SbpairError) as raised, join_sdk_errors("sending to 'orders'"):
        raise error
    return raised.value


@pytest.mark.parametrize(("error", "ours"), MEANINGS, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_an_error_has_both_classes_and_survives_a_copy(error: Exception, ours: type[SbpairError]) -> None:
    error.add_note("a note")
    found = joined(error)
    for each in (found, pickle.loads(pickle.dumps(found)), copy.copy(found)):  # noqa: S301
        assert isinstance(each, ours)
        assert isinstance(each, type(error))
        assert type(each) is type(found)
        assert (type(each).__name__, type(each).__module__) == (ours.__name__, "sbpair.errors")
        assert each.args == (each.message,)
        assert str(each) == each.message
        assert each.message.startswith("sending to 'orders': ")
        assert (each.hint, each.exit_code, each.retriable) == (found.hint, ours.exit_code, ours.retriable)
        assert each.hint
        assert each.__notes__ == ["a note"]
        assert each.inner_exception is None or each is found
    assert found.__cause__ is error
    assert found.inner_exception is getattr(error, "inner_exception", None)


@pytest.mark.parametrize(
    "cause", [errors.NotAuthenticated("no identity", hint="sign in"), errors.NoToken("away", hint="wait")]
)
def test_an_error_of_a_token_keeps_its_class_and_hint(cause: SbpairError) -> None:
    found = joined(sdk.ServiceBusError("x", error=cause))
    assert isinstance(found, type(cause))
    assert isinstance(found, sdk.ServiceBusError)
    assert (found.message, found.hint) == (f"sending to 'orders': {cause.message}", cause.hint)


def test_an_error_that_has_both_classes_is_raised_again_as_it_is() -> None:
    once = joined(sdk.ServiceBusConnectionError())
    assert joined(once) is once


def test_an_error_of_the_network_has_both_classes() -> None:
    found = joined(ConnectionResetError(104, "reset by peer"))
    assert isinstance(found, errors.Unreachable)
    assert isinstance(found, sdk.ServiceBusConnectionError)
    assert "reset by peer" in found.message


@pytest.mark.parametrize("error", [ValueError("closed"), TypeError("no message"), errors.UsageError("an alias")])
def test_a_mistake_of_the_caller_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, join_sdk_errors("sending to 'orders'"):
        raise error
    assert raised.value is error


def test_secrets_are_in_no_text_of_an_error() -> None:
    found = joined(sdk.ServiceBusError("SharedAccessKey=s3cret;x"))
    assert "s3cret" not in f"{found}{found!r}{found.args}{found.hint}"


Calls = dict[str, Callable[[Any], object]]


def calls() -> Calls:
    at = datetime.now(UTC) + timedelta(hours=1)
    return {
        "one": lambda sender: sender.send_messages(a_message("m"), timeout=5),
        "several": lambda sender: sender.send_messages([a_message("m"), a_message("n")], timeout=5),
        "batch": lambda sender: sender.create_message_batch(),
        "schedule": lambda sender: sender.schedule_messages(a_message("m"), at, timeout=5),
        "cancel": lambda sender: sender.cancel_scheduled_messages(7, timeout=5),
    }


@KINDS
def test_a_missing_queue_and_a_wrong_key_raise_both_classes(rig: Rig, kind: str) -> None:
    def check(entity: str, ours: type[SbpairError], code: int) -> None:
        with rig.client(kind) as (client, log):
            sender = client.get_queue_sender(entity)
            for name, call in calls().items():
                with pytest.raises(ours) as raised:
                    call(sender)
                assert isinstance(raised.value, sdk.ServiceBusAuthenticationError), name
                assert (raised.value.exit_code, raised.value.retriable) == (code, False)
                assert raised.value.message.startswith(f"sending to '{entity}'"), name
                assert raised.value.hint
            assert log.events == []

    check("nowhere", errors.EntityMissing, 2)
    rig.with_key("primary", "d3Jvbmc=")
    check("orders", errors.NotAuthenticated, 5)


REFUSALS: dict[str, tuple[tuple[Any, ...], type[AzureError], type[SbpairError]]] = {
    "throttle": (("throttle", PRIMARY, "orders"), sdk.ServiceBusServerBusyError, errors.Throttled),
    "namespace_down": (("namespace_down", PRIMARY), sdk.ServiceBusError, errors.Unreachable),
    "entity_down": (("entity_down", PRIMARY, "orders"), sdk.ServiceBusError, errors.Unavailable),
    "swallow_acks": (("swallow_acks", PRIMARY), sdk.OperationTimeoutError, errors.TimedOut),
}


@KINDS
@pytest.mark.parametrize("name", REFUSALS)
def test_each_failure_of_a_send_raises_both_classes(rig: Rig, kind: str, name: str) -> None:
    fault, theirs, ours = REFUSALS[name]
    with rig.sending(kind, failover_interval=60) as (sender, _client, _log):
        sender.send_messages(a_message("first"))
        with rig.broken(*fault), pytest.raises(ours) as raised:
            sender.send_messages(a_message("m"), timeout=5)
        assert isinstance(raised.value, theirs)
        with pytest.raises(errors.ServiceRefused) as too_large:
            sender.send_messages(a_message("m" * 100, subject="s" * 300_000), timeout=5)
        assert isinstance(too_large.value, sdk.MessageSizeExceededError)
        assert isinstance(too_large.value, ValueError)
        assert too_large.value.condition == "amqp:link:message-size-exceeded"


@KINDS
def test_both_classes_are_raised_when_the_backlog_fails_too(rig: Rig, kind: str) -> None:
    with rig.sending(kind) as (sender, _client, log), rig.broken("namespace_down", PRIMARY):
        with rig.broken("namespace_down", SECONDARY), pytest.raises(errors.Unavailable) as raised:
            sender.send_messages(a_message("m"), timeout=5)
        assert isinstance(raised.value, sdk.ServiceBusError)
        assert any("no backlog queue has accepted" in note for note in raised.value.__notes__)
        rig.do(lambda: [rig.running.other.delete_queue(path) for path in rig.paths])
        with pytest.raises(errors.EntityMissing) as missing:
            sender.send_messages(a_message("m"), timeout=5)
        assert any("sbpair provision" in note for note in missing.value.__notes__)
        assert State.FAILED_OVER in log.path


def test_replicating_clients_raise_both_classes_too(rig: Rig) -> None:
    with DedupReceiver(rig.pair, "orders", max_wait_time=1) as receiver:
        rig.do(lambda: put(rig.orders, encode(prepare_one(a_message("m")))))
        [message] = receiver.receive_messages()
        receiver.complete_message(message)
        with pytest.raises(errors.MessageLockLost) as lost:
            receiver.complete_message(message)
        assert isinstance(lost.value, sdk.MessageLockLostError)
    for side in ("primary", "secondary"):
        rig.with_key(side, "d3Jvbmc=")
    with PassiveSender(rig.pair, "orders") as sender, pytest.raises(errors.NotAuthenticated) as refused:
        sender.send_messages(a_message("m"))
    assert isinstance(refused.value, sdk.ServiceBusAuthenticationError)
    with DedupReceiver(rig.pair, "orders", max_wait_time=1) as receiver, pytest.raises(errors.AccessError) as denied:
        receiver.receive_messages()
    assert isinstance(denied.value, sdk.ServiceBusError)
