"""Proxies: how they are written, and which one leads to a namespace."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import UsageError
from sbpair.model.pair import Endpoint, Identity
from sbpair.model.proxy import Proxy, parse_proxy

CONTOSO = "contoso.servicebus.windows.net"
ENDPOINT = Endpoint("contoso", CONTOSO, CONTOSO, 5671, tls=True, credential=Identity())
PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://proxy:3128", Proxy("proxy", 3128)),
        ("proxy:3128", Proxy("proxy", 3128)),
        ("PROXY.example.com", Proxy("proxy.example.com", 80)),
        ("https://proxy", Proxy("proxy", 443, "https")),
        ("http://[::1]:3128/", Proxy("::1", 3128)),
        ("http://me@proxy:1", Proxy("proxy", 1, user="me")),
        ("http://me:@proxy:1", Proxy("proxy", 1, user="me", password="")),
        ("http://d%5Cme:p%40s:s@proxy:1", Proxy("proxy", 1, user="d\\me", password="p@s:s")),
    ],
)
def test_a_proxy_is_parsed(text: str, expected: Proxy) -> None:
    assert parse_proxy(text, "HTTPS_PROXY") == expected


def test_its_address_and_its_credentials_are_apart() -> None:
    proxy = parse_proxy("https://me:secret@[::1]:3128", "P")
    assert (proxy.address, proxy.url) == ("[::1]:3128", "https://[::1]:3128")
    assert proxy.authorization == f"Basic {base64.b64encode(b'me:secret').decode()}"
    assert "secret" not in repr(proxy)
    assert parse_proxy("proxy", "P").authorization is None


@pytest.mark.parametrize(
    "text",
    [
        "socks5://me:secret@proxy:1080",
        "http://",
        "http://me:secret@",
        "http://me:secret@proxy:0",
        "http://me:secret@proxy:65536",
        "http://me:secret@proxy:x",
        "http://me:se/cret@proxy:1",
        "http://me:se#secret@proxy:1",
        "http://me:secret@proxy:1?secret",
        "http://m%3Ae:secret@proxy:1",
        "http://me:secret@pro xy:1",
        "http://me:secret@[::1:1",
        "http://me:secret@proxy:1\r\nX-Secret: secret",
    ],
)
def test_a_malformed_proxy_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match=r"^P: expected a proxy") as refused:
        parse_proxy(text, "P")
    assert refused.value.hint
    assert "secret" not in refused.value.message + refused.value.hint


@given(st.text(max_size=60))
def test_any_text_is_a_proxy_or_a_usage_error(text: str) -> None:
    try:
        proxy = parse_proxy(text, "P")
    except UsageError:
        return
    assert proxy.host
    assert 0 < proxy.port < 65_536
    assert "\n" not in (proxy.authorization or "") + proxy.address


@pytest.mark.parametrize(
    ("environ", "used"),
    [
        ({}, None),
        ({"HTTPS_PROXY": PROXY}, "HTTPS_PROXY"),
        ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, "https_proxy"),
        ({"https_proxy": "", "HTTPS_PROXY": PROXY}, None),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTP_PROXY": PROXY}, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": ".servicebus.windows.net"}, None),
        ({"HTTPS_PROXY": PROXY, "no_proxy": "localhost, contoso.servicebus.windows.net"}, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ({"HTTPS_PROXY": PROXY, "no_proxy": "", "NO_PROXY": "*"}, "HTTPS_PROXY"),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "toso.servicebus.windows.net"}, "HTTPS_PROXY"),
    ],
)
def test_the_environment_s_proxy_is_used_unless_it_is_exempt(environ: dict[str, str], used: str | None) -> None:
    found = ENDPOINT.web_proxy(environ)
    assert (found.source if found else None) == used


def test_a_side_s_own_proxy_wins_and_no_tls_needs_none() -> None:
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}
    own = parse_proxy("http://own:1", "SBPAIR_PRIMARY_PROXY")
    assert replace(ENDPOINT, proxy=own).web_proxy(environ) == own
    assert replace(ENDPOINT, tls=False).web_proxy({"HTTPS_PROXY": PROXY}) is None
