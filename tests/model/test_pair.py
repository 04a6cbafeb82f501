"""The shared nouns: connection strings, durations, pairs."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import ConnectionStringError, NameInvalid, UsageError
from sbpair.model.connection_string import (
    endpoint_from_connection_string,
    holds_secret,
    looks_like_connection_string,
)
from sbpair.model.pair import Endpoint, Identity, Pair, SasKey, SasToken, authority_of, first_label
from sbpair.timespan import TICKS_PER_SECOND, TIMESPAN_MAX, ticks

SECRET = "c2VjcmV0a2V5c2VjcmV0"
KEYED = f"SharedAccessKeyName=Root;SharedAccessKey={SECRET}"
CONTOSO = f"Endpoint=sb://contoso.servicebus.windows.net/;{KEYED}"


def endpoint(name: str) -> Endpoint:
    authority = f"{name}.servicebus.windows.net"
    return Endpoint(name, authority, authority, 5671, tls=True, credential=Identity())


def test_a_connection_string_of_the_portal_is_parsed() -> None:
    read = endpoint_from_connection_string(CONTOSO)
    assert read == Endpoint(
        "contoso",
        "contoso.servicebus.windows.net",
        "contoso.servicebus.windows.net",
        5671,
        tls=True,
        credential=SasKey("Root", SECRET),
    )


def test_a_connection_string_of_an_emulator_is_plain_and_keeps_its_port() -> None:
    read = endpoint_from_connection_string(
        f"Endpoint=sb://127.0.0.1:5673;{KEYED};UseDevelopmentEmulator=true", name="contoso-dr"
    )
    assert (read.name, read.authority, read.port, read.tls, read.emulator) == (
        "contoso-dr",
        "127.0.0.1:5673",
        5673,
        False,
        True,
    )


def test_an_ipv6_address_keeps_its_brackets_in_the_authority() -> None:
    read = endpoint_from_connection_string(f"Endpoint=sb://[::1]:5672;{KEYED};UseDevelopmentEmulator=true")
    assert (read.host, read.port, read.authority, read.name) == ("::1", 5672, "[::1]:5672", "::1")
    assert authority_of("::1", None) == "[::1]"


def test_a_shared_access_signature_is_a_token() -> None:
    signature = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    read = endpoint_from_connection_string(f"Endpoint=sb://a.b/;SharedAccessSignature={signature}")
    assert read.credential == SasToken(signature)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no Endpoint"),
        ("nonsense", "no '='"),
        ("Endpoint=sb:///;" + KEYED, "sb://<host>/"),
        ("Endpoint=sb://a.b:99999/;" + KEYED, "malformed"),
        ("Endpoint=sb://a.b:0/;" + KEYED, "1 to 65535"),
        ("Endpoint=sb://[::1/;" + KEYED, "malformed"),
        ("Endpoint=sb://a.b/", "no SharedAccessKeyName="),
        ("Endpoint=sb://a.b/;SharedAccessKeyName=x", "no SharedAccessKey="),
        (f"Endpoint=sb://a.b/;SharedAccessKey={SECRET}", "no SharedAccessKeyName="),
        (f"{CONTOSO};SharedAccessKey={SECRET}", "'sharedaccesskey' twice"),
        (f"{CONTOSO};{SECRET}=a;{SECRET}=a", "it has a key twice"),
    ],
)
def test_an_error_of_a_connection_string_repeats_no_value(text: str, says: str) -> None:
    with pytest.raises(ConnectionStringError) as caught:
        endpoint_from_connection_string(text)
    assert says in caught.value.message
    assert SECRET.lower() not in (caught.value.message + caught.value.hint).lower()
    assert caught.value.exit_code == 2


@given(st.text())
def test_any_text_is_parsed_or_a_connection_string_error(text: str) -> None:
    with suppress(ConnectionStringError):
        endpoint_from_connection_string(text)


def test_no_repr_shows_a_secret() -> None:
    assert SECRET not in repr(endpoint_from_connection_string(CONTOSO))
    assert SECRET not in repr(SasToken(SECRET))


@pytest.mark.parametrize("text", [CONTOSO, "SharedAccessKey=x", "endpoint=SB://x", "SharedAccessSignature sr="])
def test_a_secret_argument_is_recognized(text: str) -> None:
    assert looks_like_connection_string(text)


def test_a_namespace_is_not_a_connection_string() -> None:
    assert not looks_like_connection_string("contoso.servicebus.windows.net")


@pytest.mark.parametrize(
    ("text", "argument", "setting"),
    [
        (CONTOSO, True, True),
        ("http://me:word@h:1", True, True),
        ("me:word@h:1", False, True),
        ("mail = 'to:me@h'", False, False),
        ("http://me@h/a:b", False, False),
        ("contoso", False, False),
    ],
)
def test_a_setting_with_a_password_is_a_secret(text: str, argument: bool, setting: bool) -> None:
    assert (holds_secret(text), holds_secret(text, is_setting=True)) == (argument, setting)


@pytest.mark.parametrize(
    ("host", "label"), [("Contoso.servicebus.windows.net", "contoso"), ("127.0.0.1", "127.0.0.1"), ("x", "x")]
)
def test_the_first_label_names_the_namespace(host: str, label: str) -> None:
    assert first_label(host) == label


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1m", 60),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("15", 15),
        ("PT1M", 60),
        ("pt0.5s", 0.5),
        ("P1DT2H", 93_600),
        ("P1W", 604_800),
        ("0s", 0),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert ticks(text) == seconds * TICKS_PER_SECOND


@pytest.mark.parametrize(
    "text", ["", " ", "P", "PT", "1y", "P1Y", "P1M", "-1s", "1 minute", "s", "1m1m", "\u0661s", "1e3s"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a duration"):
        ticks(text)


def test_the_maximum_timespan_is_the_maximum_of_ticks() -> None:
    assert ticks(TIMESPAN_MAX) == 2**63 - 1


@given(st.integers(0, 10**9))
def test_durations_round_trip_in_any_unit(seconds: int) -> None:
    assert ticks(f"{seconds}s") == ticks(f"PT{seconds}S") == ticks(str(seconds)) == seconds * TICKS_PER_SECOND


def test_a_pair_has_the_original_defaults() -> None:
    pair = Pair("orders", endpoint("contoso"), endpoint("contoso-dr"))
    assert (pair.backlog_queues, pair.failover_interval, pair.ping_interval) == (10, 60, 60)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("backlog_queues", 0),
        ("backlog_queues", -3),
        ("failover_interval", -1),
        ("failover_interval", 3601),
        ("failover_interval", float("nan")),
        ("ping_interval", 0.5),
        ("ping_interval", 1801),
    ],
)
def test_a_pair_refuses_what_the_original_refused(option: str, value: float) -> None:
    with pytest.raises(UsageError, match=option):
        Pair("orders", endpoint("contoso"), endpoint("contoso-dr"), **{option: value})


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", ".hidden", "x" * 65, "ü"])
def test_a_pair_whose_name_cannot_be_a_directory_is_refused(name: str) -> None:
    with pytest.raises(NameInvalid):
        Pair(name, endpoint("contoso"), endpoint("contoso-dr"))


def test_a_namespace_cannot_be_its_own_secondary() -> None:
    with pytest.raises(UsageError, match="same namespace"):
        Pair("orders", endpoint("contoso"), endpoint("contoso"))
