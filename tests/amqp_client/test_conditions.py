"""What a peer's errors mean, what tokens look like, and that neither lets a secret out."""

import re
import time

import pytest
from azure.servicebus._base_handler import _generate_sas_token

from sbpair import errors
from sbpair.amqp.conditions import error_of, is_idle_detach, lost_error, redacted, status_error
from sbpair.amqp.performatives import Error
from sbpair.amqp.session import id_ranges
from sbpair.errors import UsageError
from sbpair.model.pair import SasKey, SasToken
from sbpair.model.signature import sign, signed_token

KEY = SasKey("Root Manage+Key", "c2VjcmV0/w==+&;")

# Conditions


@pytest.mark.parametrize(
    ("condition", "text", "kind"),
    [
        ("amqp:not-found", "no such entity", errors.EntityMissing),
        ("amqp:unauthorized-access", "'Send' claim(s) are required", errors.NotAuthorized),
        ("amqp:unauthorized-access", "InvalidSignature", errors.NotAuthenticated),
        ("amqp:unauthorized-access", None, errors.NotAuthenticated),
        ("amqp:unauthorized-access", "Ip has been prevented to connect to the endpoint.", errors.FirewallRefused),
        ("amqp:unauthorized-access", "LocalAuthDisabled: SAS authentication is off", errors.KeysDisabled),
        ("com.microsoft:message-lock-lost", "too late", errors.MessageLockLost),
        ("com.microsoft:server-busy", "slow down", errors.Throttled),
        ("com.microsoft:timeout", "", errors.TimedOut),
        ("amqp:resource-limit-exceeded", "full", errors.QuotaExceeded),
        ("amqp:internal-error", "oops", errors.Unreachable),
        ("amqp:link:detach-forced", "idle", errors.Unreachable),
        ("com.microsoft:entity-disabled", "", errors.DisabledEntity),
        ("amqp:link:message-size-exceeded", "big", errors.ServiceRefused),
        ("amqp:not-allowed", "no", errors.ServiceRefused),
        ("amqp:connection:redirect", "moved", errors.Unreachable),
        ("amqp:link:redirect", "moved", errors.Unreachable),
        ("something:new", "?", errors.ServiceRefused),
    ],
)
def test_a_condition_becomes_an_error_of_this_project(condition, text, kind):
    error = error_of(Error(condition, text), "sending to 'orders'")
    assert type(error) is kind
    assert error.message.startswith("sending to 'orders': ")
    assert condition in error.message
    assert getattr(error, "condition", condition) == condition
    assert error.hint


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (401, "why", errors.NotAuthenticated),
        (403, "'Manage' claim(s) are required", errors.NotAuthorized),
        (403, "why", errors.NotAuthenticated),
        (404, "why", errors.EntityMissing),
        (408, "why", errors.TimedOut),
        (429, "why", errors.Throttled),
        (500, "why", errors.Unreachable),
        (503, "why", errors.Unreachable),
        (400, "why", errors.ServiceRefused),
    ],
)
def test_a_status_becomes_an_error_of_this_project(status, text, kind):
    error = status_error(status, text, "asking 'claims'")
    assert type(error) is kind
    assert error.message == f"asking 'claims': {text} (status {status})"
    assert error.hint
    assert getattr(error, "condition", "400") == "400"
    assert status_error(status, None, "asking").message == f"asking: no reason given (status {status})"


def test_an_error_condition_takes_precedence_over_a_status():
    assert type(status_error(410, "gone", "asking", "com.microsoft:message-lock-lost")) is errors.MessageLockLost


@pytest.mark.parametrize(
    "condition", ["amqp:not-found", "amqp:decode-error", "amqp:resource-limit-exceeded", "amqp:not-allowed", None]
)
def test_what_ended_a_connection_is_never_a_messages_fault(condition):
    error = lost_error(Error(condition, "text") if condition else None, "talking to contoso")
    assert isinstance(error, errors.Unreachable)
    assert error.retriable
    assert "quota" not in error.message
    assert error.message.startswith("talking to contoso: ")


def test_a_lost_connection_keeps_access_and_throttling_errors():
    assert isinstance(lost_error(Error("amqp:unauthorized-access", "refused"), "x"), errors.AccessError)
    assert type(lost_error(Error("amqp:unauthorized-access", "ExpiredToken: expired"), "x")) is errors.TokenExpired
    assert isinstance(lost_error(Error("com.microsoft:server-busy", ""), "x"), errors.Throttled)


@pytest.mark.parametrize("kind", ["connection", "link"])
def test_a_redirect_names_the_address(kind):
    info = {"hostname": "contoso.example", "network-host": "10.0.0.1", "port": 5671}
    for meaning in (error_of, lost_error):
        error = meaning(Error(f"amqp:{kind}:redirect", "moved", info), "connecting")
        assert error.message == f"connecting: moved; the service is at 10.0.0.1:5671 (amqp:{kind}:redirect)"
        assert error.hint == "connect to that address"


def test_a_peers_text_is_one_line_without_secrets():
    text = "bad\ntoken SharedAccessSignature sr=x&sig=s3cr3t%3d&se=1;SharedAccessKey=t0ps3cret rest " + "x" * 900
    error = error_of(Error("amqp:not-allowed", text), "sending")
    assert "s3cr3t" not in error.message
    assert "t0ps3cret" not in error.message
    assert "\n" not in error.message
    assert len(error.message) < 700
    assert redacted("sr=x&sig=s3cr3t%3d&se=1") == "sr=x&sig=***&se=1"
    assert redacted("reset by proto:<asyncio.Transport object at 0x7f12ab34> of 'x'") == "reset by of 'x'"


@pytest.mark.parametrize(
    ("error", "idle"),
    [
        (Error("amqp:link:detach-forced", "IdleTimerExpired: no use for 10 minutes."), True),
        (Error("amqp:link:detach-forced", "the broker restarts"), False),
        (Error("amqp:link:detach-forced"), False),
        (Error("amqp:not-found", "IdleTimerExpired"), False),
        (None, False),
    ],
)
def test_only_a_forced_detach_for_idleness_is_one(error, idle):
    assert is_idle_detach(error) is idle


# Tokens


def test_a_signature_is_the_one_that_the_official_client_makes(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0)
    uri = "sb://contoso.servicebus.windows.net/billing/invoices with space"
    theirs = _generate_sas_token(uri, "RootManageSharedAccessKey", KEY.key).token
    ours = sign(uri, SasKey("RootManageSharedAccessKey", KEY.key), 1_767_229_200)
    if isinstance(theirs, bytes):
        theirs = theirs.decode()
    assert ours == theirs


@pytest.mark.parametrize("text", ["", "sr=x&sig=s3cr3t", "sr=x&sig=s3cr3t&se=x", "sig=s3cr3t&se=1\r\nX: y"])
def test_a_signature_without_an_expiry_is_refused_without_its_text(text):
    with pytest.raises(UsageError) as caught:
        signed_token(SasToken(f"SharedAccessSignature {text}"), "sb://contoso", 5)
    assert "s3cr3t" not in f"{caught.value!r}{caught.value.hint}"


def test_no_secret_is_in_any_repr():
    made = sign("sb://contoso", KEY, 1234)
    signature = re.findall(r"sig=([^&]+)", made)[0]
    token = signed_token(SasToken(made), "sb://contoso/a", 5)
    assert (token.value, token.expires_at, token.renewable) == (made, 1234, False)
    shown = repr((KEY, SasToken(made), token)) + str((KEY, SasToken(made), token))
    for secret in (KEY.key, made, signature):
        assert secret not in shown


# Ranges


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([], []),
        ([4], [(4, 4)]),
        ([1, 2, 3], [(1, 3)]),
        ([1, 2, 4, 5, 9], [(1, 2), (4, 5), (9, 9)]),
        ([3, 2, 1], [(3, 3), (2, 2), (1, 1)]),
        ([0xFFFFFFFF, 0], [(0xFFFFFFFF, 0xFFFFFFFF), (0, 0)]),
    ],
)
def test_nothing_that_was_not_asked_for_falls_into_a_range(ids, found):
    assert id_ranges(ids) == found
