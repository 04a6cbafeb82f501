"""The errors of a send that count as unavailability, by each rule."""

import errno

import pytest
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import TokenAuthFailure

from sbpair import errors
from sbpair.errors import Exhausted, UsageError
from sbpair.failover.failures import FailoverOn, describe_error, failover_rule, is_transient, to_sdk_error


def answered(condition: str) -> sdk.ServiceBusError:
    """Return the SDK's error for a condition without a class of its own."""
    cause = Exception()
    cause.condition = condition.encode()  # type: ignore[attr-defined]
    return sdk.ServiceBusError("refused", error=cause)


# The error, whether it counts by default, and whether by the article.
RULES: list[tuple[Exception, bool, bool]] = [
    (sdk.OperationTimeoutError(), True, True),
    (sdk.ServiceBusConnectionError(), True, False),
    (sdk.ServiceBusCommunicationError(), True, False),
    (sdk.ServiceBusServerBusyError(), True, False),
    (answered("amqp:internal-error"), True, False),
    (TimeoutError(), True, True),
    (ConnectionResetError(), True, False),
    (sdk.ServiceBusQuotaExceededError(), False, True),
    (sdk.MessagingEntityNotFoundError(), False, True),
    (sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(404, b"no such")), False, True),
    (sdk.MessagingEntityDisabledError(), False, True),
    (sdk.MessageSizeExceededError(), False, True),
    (answered("amqp:not-allowed"), False, True),
    (sdk.ServiceBusAuthenticationError(), False, False),
    (sdk.ServiceBusAuthorizationError(), False, False),
    (sdk.ServiceBusError("x", error=errors.NotAuthenticated("no identity is signed in")), False, False),
    (sdk.ServiceBusError("x", error=errors.NoToken("the provider is away")), True, False),
    (answered("amqp:unauthorized-access"), False, False),
    (ValueError("the handler has been shut down"), False, False),
    (TypeError("no message"), False, False),
    (MemoryError(), False, False),
    (UsageError("an alias"), False, False),
    # Of our own client:
    (errors.Unreachable("gone"), True, False),
    (errors.InDoubt("silence"), True, True),
    (errors.DisabledEntity("disabled"), False, True),
    (errors.EntityMissing("no such queue"), False, True),
    (errors.ServiceRefused("no"), False, True),
    (errors.NotAuthorized("Send is required"), False, False),
]


@pytest.mark.parametrize(("error", "by_default", "by_the_article"), RULES, ids=lambda each: type(each).__name__)
def test_errors_count_by_each_rule(error: Exception, by_default: bool, by_the_article: bool) -> None:
    assert failover_rule("default")(error) is is_transient(error) is by_default
    assert failover_rule("article")(error) is by_the_article


@pytest.mark.parametrize("rule", ["default", "article", lambda _error: True])
def test_what_this_machine_lacks_is_retried_and_never_counts(rule: FailoverOn) -> None:
    lack = OSError(errno.EMFILE, "Too many open files")
    for error in (lack, sdk.ServiceBusConnectionError(message="broken", error=lack), to_sdk_error(Exhausted("files"))):
        assert is_transient(error)
        assert not failover_rule(rule)(error)
    assert failover_rule(rule)(sdk.OperationTimeoutError())


def test_a_missing_entity_is_called_so_whatever_class_the_sdk_raises() -> None:
    error = sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(404, b"no such"))
    assert describe_error(error).startswith("MessagingEntityNotFoundError: ")
    assert describe_error(sdk.ServiceBusAuthenticationError()).startswith("ServiceBusAuthenticationError: ")
