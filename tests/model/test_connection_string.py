"""Connection strings as people paste them: what is read, what is ignored and said, and what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import ConnectionStringError
from sbpair.model.connection_string import endpoint_from_connection_string, remarks_on
from sbpair.model.pair import SasKey, SasToken, Transport

KEY = "c2VjcmV0LWtleS1vZi1hLW5hbWVzcGFjZS0zMmJ5dGU="
NAMED = f"SharedAccessKeyName=Root;SharedAccessKey={KEY}"
WHOLE = f"Endpoint=sb://contoso.servicebus.windows.net/;{NAMED}"
AROUND = st.text(st.sampled_from(" \t\r\n\"'`\ufeff\u200b\xa0\u201c\u201d"), max_size=4)
CASES = st.sampled_from([str, str.lower, str.upper, str.swapcase])
SPACES = st.sampled_from(["", "", " ", "\t", "\n", " \r\n ", "\xa0"])


@st.composite
def pasted(draw: st.DrawFn) -> str:
    """Draw a whole connection string with what editors, mails and shells make of it."""
    pieces = []
    for part in draw(st.permutations(WHOLE.split(";"))):
        name, _, value = part.partition("=")
        at = draw(st.integers(0, len(value)))
        broken = value[:at] + draw(st.sampled_from(["", " ", "\t", "\n", "\r\n", "\n  "])) + value[at:]
        pieces.append(f"{draw(SPACES)}{draw(CASES)(name)}{draw(SPACES)}={draw(SPACES)}{broken}{draw(SPACES)}")
    return draw(AROUND) + ";".join(pieces) + ";" * draw(st.integers(0, 2)) + draw(AROUND)


@given(text=pasted())
def test_a_pasted_string_is_read_as_the_portal_has_it(text: str) -> None:
    assert endpoint_from_connection_string(text) == endpoint_from_connection_string(WHOLE)
    assert list(remarks_on(text)) == []


@given(text=st.text() | st.text(st.sampled_from("Endpoint=sb://;SharedAccessKeyName \n'\"")))
def test_any_text_is_read_or_refused_and_never_repeated(text: str) -> None:
    said = ""
    try:
        endpoint_from_connection_string(f"{text};{NAMED}")
    except ConnectionStringError as error:
        said = error.message + error.hint
    assert KEY not in said


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "authority"),
    [
        ("sb://contoso.servicebus.windows.net", "contoso.servicebus.windows.net", 5671, None),
        ("sb://contoso.servicebus.usgovcloudapi.net/", "contoso.servicebus.usgovcloudapi.net", 5671, None),
        ("sb://contoso.servicebus.chinacloudapi.cn/", "contoso.servicebus.chinacloudapi.cn", 5671, None),
        ("sb://contoso.servicebus.cloudapi.de/", "contoso.servicebus.cloudapi.de", 5671, None),
        ("https://contoso.servicebus.windows.net:443/", "contoso.servicebus.windows.net", 5671, None),
        ("sb://contoso.servicebus.windows.net:443/orders", "contoso.servicebus.windows.net", 5671, None),
        ("sb://10.0.0.4:5671/", "10.0.0.4", 5671, "10.0.0.4:5671"),
    ],
)
def test_an_endpoint_may_have_a_port_a_path_and_another_cloud(
    endpoint: str, host: str, port: int, authority: str | None
) -> None:
    found = endpoint_from_connection_string(f"Endpoint={endpoint};{NAMED}")
    assert (found.host, found.port, found.authority) == (host, port, authority or host)
    assert (found.credential, found.tls, found.transport) == (SasKey("Root", KEY), True, Transport.TCP)


@pytest.mark.parametrize(
    ("more", "remarks"),
    [
        (";TransportType=AmqpWebSockets", []),
        (";transporttype=AMQP", []),
        (";TransportType=NetMessaging", ["its TransportType is ignored: neither Amqp nor AmqpWebSockets"]),
        (";EntityPath=orders", []),
        (";OperationTimeout=00:01;RuntimePort=9354", ["operationtimeout and runtimeport of it is ignored"]),
        (f";{KEY[:9]}={KEY[9:]}", ["an unknown part of it is ignored"]),
    ],
)
def test_what_is_ignored_is_said_without_its_value(more: str, remarks: list[str]) -> None:
    assert list(remarks_on(WHOLE + more)) == remarks
    uses_websocket = more.endswith("WebSockets")
    assert (endpoint_from_connection_string(WHOLE + more).transport is Transport.WEBSOCKET) == uses_websocket


def test_the_port_and_the_path_of_an_endpoint_are_named_if_ignored() -> None:
    first, second = remarks_on(re.sub(r"net/", "net:443/orders", WHOLE))
    assert "port of its Endpoint is ignored" in first
    assert second == "what follows the host of its Endpoint is ignored"


def test_the_space_of_a_signature_is_kept() -> None:
    signature = "SharedAccessSignature sr=sb%3a%2f%2fcontoso&sig=abc%3d&se=1&skn=Root"
    text = f' "Endpoint=sb://contoso.servicebus.windows.net/; SharedAccessSignature={signature} "'
    assert endpoint_from_connection_string(text).credential == SasToken(signature)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{WHOLE}\n{WHOLE}", "several lines"),
        (f"{WHOLE}\n{KEY}", "several lines"),
        (f"{WHOLE}\0{KEY}", "control characters"),
        (f"{WHOLE};endpoint=sb://other/", "'endpoint' twice"),
        (WHOLE.replace("sb://", "http://"), "not of the form sb://"),
        (WHOLE.replace("net/", "net:0/"), "not a number from 1"),
    ],
)
def test_what_cannot_be_one_connection_string_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConnectionStringError, match=problem) as caught:
        endpoint_from_connection_string(text)
    assert KEY not in str(caught.value)
