"""Translation of azure-servicebus' exceptions, and which of them leave a send in doubt."""

from typing import Any

import pytest
from azure.servicebus import exceptions as azure
from azure.servicebus._pyamqp import error as amqp

from sbpair import errors
from sbpair.azure.data_plane import from_sdk_error, is_answer, is_unused, translate_data_errors


def said(condition: str, kind: type[Any] = amqp.MessageSendFailed, description: str = "text") -> Any:
    return kind(condition.encode(), description=description)


DETACHED = "The link was closed. IdleTimerExpired: 00:10:00."

FIREWALL = b"Ip has been prevented to connect to the endpoint. TrackingId:1"

CASES = [
    (azure.OperationTimeoutError(), errors.TimedOut, False),
    (azure.OperationTimeoutError(error=said("com.microsoft:timeout")), errors.TimedOut, True),
    (azure.ServiceBusServerBusyError(error=said("com.microsoft:server-busy")), errors.Throttled, True),
    (
        azure.ServiceBusServerBusyError(error=said("com.microsoft:server-busy", amqp.AMQPLinkError)),
        errors.Throttled,
        False,
    ),
    (azure.ServiceBusQuotaExceededError(error=said("amqp:resource-limit-exceeded")), errors.QuotaExceeded, True),
    (azure.MessagingEntityNotFoundError(), errors.EntityMissing, False),
    (azure.MessagingEntityDisabledError(), errors.Unreachable, False),
    (
        azure.ServiceBusConnectionError(error=said("amqp:socket-error", amqp.AMQPConnectionError)),
        errors.Unreachable,
        False,
    ),
    (azure.ServiceBusConnectionError(error=said("amqp:unknown-error")), errors.Unreachable, False),
    (azure.ServiceBusCommunicationError(), errors.Unreachable, False),
    (azure.MessageSizeExceededError(), errors.ServiceRefused, True),
    (azure.MessageLockLostError(), errors.MessageLockLost, False),
    (azure.ServiceBusError("x", error=said("amqp:not-allowed")), errors.ServiceRefused, True),
    (azure.ServiceBusError("x", error=said("amqp:internal-error")), errors.Unreachable, True),
    (azure.ServiceBusError("x", error=said("amqp:client-error")), errors.ServiceRefused, False),
    (azure.ServiceBusError("x", error=OSError("gone")), errors.Unreachable, False),
    (azure.ServiceBusError("x", error=AttributeError("'NoneType' has no …")), errors.Unreachable, False),
    (azure.ServiceBusError("x", error=TypeError("'NoneType' object is not callable")), errors.UnreadableMessage, False),
    (azure.ServiceBusError("x", error=errors.NotAuthenticated("x")), errors.NotAuthenticated, False),
    (azure.ServiceBusError("x", error=errors.NoToken("x")), errors.NoToken, False),
    (azure.ServiceBusAuthenticationError(error=amqp.TokenAuthFailure(401, FIREWALL)), errors.FirewallRefused, False),
    (azure.ServiceBusAuthenticationError(error=amqp.TokenAuthFailure(404, b"no such")), errors.EntityMissing, False),
    (azure.ServiceBusAuthenticationError(error=amqp.TokenAuthFailure(401, b"bad")), errors.NotAuthenticated, False),
    (azure.ServiceBusConnectionError(error=amqp.TokenAuthFailure(401, b"bad")), errors.NotAuthenticated, False),
    (
        azure.ServiceBusAuthenticationError(error=amqp.TokenAuthFailure(401, b"Send claim(s) are required")),
        errors.NotAuthorized,
        False,
    ),
    (azure.ServiceBusAuthorizationError(message="Unauthorized"), errors.NotAuthenticated, False),
]


@pytest.mark.parametrize(("error", "meant", "answered"), CASES)
def test_each_exception_maps_to_one_error_and_answer_flag(
    error: Any, meant: type[errors.SbpairError], answered: bool
) -> None:
    assert type(from_sdk_error(error, "sending")) is meant
    assert is_answer(error) is answered


def test_foreign_exception_is_no_answer() -> None:
    assert not is_answer(None)
    assert not is_answer(ValueError("x"))


def test_secrets_stay_out_of_the_message() -> None:
    error = azure.ServiceBusError("SharedAccessKey=s3cret;x sig=s3cret&se=1 SharedAccessSignature s3cret")
    assert "s3cret" not in from_sdk_error(error, "sending").message


def test_idle_detach_differs_from_other_closes() -> None:
    def closed(description: str) -> Any:
        inner = said("amqp:link:detach-forced", amqp.AMQPLinkError, description)
        return azure.ServiceBusConnectionError(message=description, error=inner)

    assert is_unused(closed(DETACHED))
    assert not is_unused(closed("The link was closed by an administrator."))
    assert not is_unused(azure.ServiceBusConnectionError(message=DETACHED))
    assert not is_unused(None)


@pytest.mark.parametrize("error", [OSError("x"), ValueError("x"), AttributeError("x")])
def test_error_of_a_closed_handler_is_unreachable(error: Exception) -> None:
    with pytest.raises(errors.Unreachable), translate_data_errors("settling"):
        raise error
