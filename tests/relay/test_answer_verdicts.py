"""The tables of the relay client, addresses, tokens and messages: pure, with hostile values."""

import hashlib
import hmac
import json
from base64 import b64encode
from typing import Any
from urllib.parse import parse_qs, quote_plus, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import errors
from sbpair.errors import ConnectionStringError, NameInvalid, SbpairError, UsageError
from sbpair.model.pair import SasKey
from sbpair.relay.answer_verdicts import (
    IDEMPOTENT,
    AnswerVerdict,
    judged_answer,
    judged_handshake,
    judged_silence,
    may_reissue,
)
from sbpair.relay.control_messages import (
    HOP_BY_HOP,
    AcceptMessage,
    RelayAnswer,
    RelayMessageInvalid,
    RequestMessage,
    checked_headers,
    read_control,
    response_head,
    response_message,
)
from sbpair.relay.relay_connections import RelayTokens, service_error
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair, checked_suffix, target_of
from tests.relay.relay_pairs import manual_clock

KEY = SasKey("send", "c2VjcmV0LWtleQ==")
HOST = "contoso.servicebus.windows.net"

statuses = st.integers(200, 599)
methods = st.sampled_from(["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "MKCOL", "get", "post"])


@given(statuses)
def test_an_answer_with_via_never_swaps(status: int) -> None:
    assert judged_answer(status, has_via=True) is AnswerVerdict.ANSWER


@given(statuses)
def test_answers_without_via_swap_for_five_statuses_only(status: int) -> None:
    verdict = judged_answer(status, has_via=False)
    assert verdict.is_unavailable == (status in {404, 500, 502, 503, 504})
    assert (verdict is AnswerVerdict.NOT_EXECUTED) == (status in {404, 503})
    assert (verdict is AnswerVerdict.ANSWER) == (status < 400)
    repeated = judged_answer(status, has_via=False, was_repeated=True)
    assert repeated is (AnswerVerdict.IN_DOUBT if status >= 400 else verdict)


@given(statuses, st.text())
def test_a_refused_handshake_swaps_only_with_a_tracking_id(status: int, text: str) -> None:
    verdict = judged_handshake(status, text)
    assert ("TrackingId:" in text) or verdict is AnswerVerdict.ANSWER
    tracked = judged_handshake(status, f"{text} TrackingId:x")
    assert tracked.is_unavailable == (status in {404, 500, 502, 503, 504})


@given(st.sampled_from(AnswerVerdict), methods, st.sampled_from(["safe", "always"]), st.booleans())
def test_a_reissue_is_safe_or_asked_for(verdict: AnswerVerdict, method: str, reissue: Any, is_complete: bool) -> None:
    may = may_reissue(verdict, method, reissue, is_complete=is_complete)
    if may:
        assert verdict.is_unavailable
        assert is_complete
        assert verdict is AnswerVerdict.NOT_EXECUTED or method.upper() in IDEMPOTENT or reissue == "always"
    elif is_complete and verdict.is_unavailable:
        assert (verdict, reissue) == (AnswerVerdict.IN_DOUBT, "safe")
        assert method.upper() not in IDEMPOTENT


def test_silence_is_in_doubt_once_the_request_has_left() -> None:
    assert judged_silence(was_sent=True) is AnswerVerdict.IN_DOUBT
    assert judged_silence(was_sent=False) is AnswerVerdict.NOT_EXECUTED


# Addresses


def endpoint(**changes: Any) -> RelayEndpoint:
    return RelayEndpoint(**{"namespace": HOST, "path": "a/service", "credential": KEY, **changes})


def test_addresses_of_an_endpoint() -> None:
    assert endpoint().request_url("/x?y=1") == f"https://{HOST}/a/service/x?y=1"
    assert endpoint().connect_url("/x?y=1") == f"wss://{HOST}/$hc/a/service/x?y=1&sb-hc-action=connect"
    assert endpoint().connect_url() == f"wss://{HOST}/$hc/a/service?sb-hc-action=connect"
    assert endpoint(tls=False).listen_url("i&d") == f"ws://{HOST}/$hc/a/service?sb-hc-action=listen&sb-hc-id=i%26d"
    assert endpoint(namespace="localhost:5672", tls=False).audience == "http://localhost/a/service"


@given(st.text(max_size=40))
def test_a_suffix_stays_within_its_endpoint_or_is_refused(suffix: str) -> None:
    try:
        url = urlsplit(endpoint().connect_url(suffix))
    except UsageError:
        return
    assert url.netloc == HOST
    assert url.path == "/$hc/a/service" or url.path.startswith("/$hc/a/service/")
    assert not {".", ".."} & set(unquote(url.path).replace("\\", "/").split("/"))
    assert url.fragment == ""
    assert parse_qs(url.query)["sb-hc-action"] == ["connect"]
    assert url.geturl().isascii()
    assert not any(each.isspace() for each in url.geturl())


@given(st.sampled_from(["..", "%2e%2E", ".%2e", "."]), st.sampled_from(["/", "%2f", "\\", "%5C"]))
def test_climbing_suffixes_are_refused(dots: str, slash: str) -> None:
    for suffix in (f"/{dots}", f"/a{slash}{dots}", f"/{dots}{slash}b"):
        with pytest.raises(UsageError):
            checked_suffix(suffix)


def test_suffixes_keep_their_escapes_and_are_escaped() -> None:
    assert checked_suffix("/%2525/ä?q=ü&&z") == "/%2525/%C3%A4?q=%C3%BC&&z"
    assert checked_suffix("?a=b") == "?a=b"
    parameters = ["/a?SB-HC-token=x", "/a?sb%2Dhc-id=1"]
    unsendable = ["/a b", "/a\r\nX: 1", "/a#b", "\ud800", "/\ud800", "/a\x00", "/%00", "/%0d%0aX", "/" + "x" * 9_000]
    for wrong in ("x", *parameters, *unsendable):
        with pytest.raises(UsageError):
            checked_suffix(wrong)


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("wss://g1/$hc/p/x?a=1&sb-hc-action=accept&sb-hc-id=7", "/p/x?a=1"),
        ("wss://g1/$hc/p?sb-hc-action=accept&sb-hc-id=7", "/p"),
        ("wss://g1/$hc/p?a&&sb-hc-undefined&SB-HC-ID=2", "/p?a&&sb-hc-undefined"),
    ],
)
def test_the_target_of_an_offer_has_no_parameters_of_the_relay(address: str, target: str) -> None:
    assert target_of(address) == target


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "a/../b", "..", "a b", "a?b", "a#b", "ä", "a\n", "-a", "x" * 261, "a%2f"]
)
def test_wrong_paths_are_refused(path: str) -> None:
    with pytest.raises(NameInvalid):
        endpoint(path=path)


@pytest.mark.parametrize(
    "namespace", ["", "https://contoso", "contoso/x", "a b", "a@b", "a:b", "a:99999", "a\n", "[::1", "a?b"]
)
def test_wrong_namespaces_are_refused(namespace: str) -> None:
    with pytest.raises(UsageError):
        endpoint(namespace=namespace)


def test_a_pair_needs_two_namespaces() -> None:
    with pytest.raises(UsageError, match="both relay endpoints are in"):
        RelayPair(endpoint(), endpoint(namespace=HOST.upper(), path="other"))


TEXT = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0LWtleQ=="


def test_connection_strings_of_namespaces_and_entities() -> None:
    for text, path in (
        (f"{TEXT};EntityPath=a/service", None),
        (TEXT, "a/service"),
        (f"{TEXT};EntityPath=A/service", "a/service"),
    ):
        assert RelayEndpoint.from_connection_string(text, path) == endpoint()
    local = RelayEndpoint.from_connection_string(
        "Endpoint=sb://localhost:5671;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true", "x"
    )
    assert (local.namespace, local.tls) == ("localhost:5671", False)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (TEXT, None),
        (TEXT, ""),
        (f"{TEXT};EntityPath=b", "a"),
        (f"{TEXT};EntityPath=a;entitypath=b", None),
        (f"{TEXT};EntityPath=", None),
        ("Endpoint=sb://x;SharedAccessKey=c2VjcmV0LWtleQ==", "a"),
        ("c2VjcmV0LWtleQ==", "a"),
    ],
)
def test_wrong_connection_strings_are_refused_without_their_values(text: str, path: str | None) -> None:
    with pytest.raises(ConnectionStringError) as refused:
        RelayEndpoint.from_connection_string(text, path)
    assert "c2VjcmV0LWtleQ" not in f"{refused.value}{refused.value.hint}"


# Tokens


async def test_a_key_signs_for_the_endpoint_until_shortly_before_the_expiry() -> None:
    clock = manual_clock()
    tokens = RelayTokens(endpoint(), clock)
    token = await tokens.get()
    resource = quote_plus(f"http://{HOST}/a/service")
    signed = hmac.digest(KEY.key.encode(), f"{resource}\n{int(token.expires_at)}".encode(), hashlib.sha256)
    assert token.value.startswith(f"SharedAccessSignature sr={resource}&sig={quote_plus(b64encode(signed))}&se=")
    assert token.expires_at == clock.now() + 3600
    clock.advance(3_299)
    assert await tokens.get() is token
    clock.advance(1)
    assert (await tokens.get()).expires_at == clock.now() + 3600
    assert token.value not in repr(token)


class Provider:
    """A credential of azure-identity."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    def get_token(self, *scopes: str, **_options: Any) -> Any:
        self.scopes.extend(scopes)
        return type("AccessToken", (), {"token": "jwt", "expires_on": manual_clock().now() + 3600})()


class AsyncProvider(Provider):
    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return Provider.get_token(self, *scopes, **options)


@pytest.mark.parametrize("kind", [Provider, AsyncProvider])
async def test_a_credential_is_asked_for_the_relays_scope_once(kind: type[Provider]) -> None:
    provider = kind()
    tokens = RelayTokens(endpoint(credential=provider), manual_clock())
    assert [(await tokens.get()).value for _ in range(3)] == ["Bearer jwt"] * 3
    assert provider.scopes == ["https://relay.azure.net/.default"]
    await tokens.close()


@given(st.integers(400, 599), st.text())
def test_the_text_of_a_refusal_is_one_bounded_line(status: int, text: str) -> None:
    error = service_error(endpoint(), status, text)
    assert isinstance(error, SbpairError)
    assert error.message.isprintable()
    assert len(error.message) < 500


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (401, "", errors.NotAuthenticated),
        (403, "", errors.NotAuthorized),
        (403, "The quota of listeners is used up", errors.ServiceRefused),
        (404, "Endpoint does not exist", errors.EntityMissing),
        (404, "There are no listeners connected", errors.Unavailable),
        (418, "", errors.ServiceRefused),
        (429, "", errors.Throttled),
        (503, "", errors.Unavailable),
    ],
)
def test_each_refusal_of_the_service_has_its_error(status: int, text: str, kind: type[Exception]) -> None:
    error = service_error(endpoint(), status, text)
    assert type(error) is kind
    assert error.hint


# Messages

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["address", "id", "method", "requestTarget", "requestHeaders", "connectHeaders", "body", "x"])


@given(st.sampled_from(["accept", "request", "other"]), json_values | st.dictionaries(fields, json_values))
def test_any_message_is_read_or_refused(kind: str, value: Any) -> None:
    try:
        message = read_control(json.dumps({kind: value}))
    except RelayMessageInvalid:
        return
    assert message is None or isinstance(message, RequestMessage | AcceptMessage)
    assert (message is None) == (kind == "other")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "[" * 100_000, '{"request": 1}', '{"accept": {"address": "http://x"}}']
)
def test_texts_that_are_no_message_are_refused(text: str) -> None:
    with pytest.raises(RelayMessageInvalid):
        read_control(text)


def test_headers_that_would_begin_another_are_left_out() -> None:
    message = read_control(
        json.dumps({"request": {"method": "GET", "requestHeaders": {"A": "1\r\nB: 2", "C": "3", "D E": "4", "F": 5}}})
    )
    assert isinstance(message, RequestMessage)
    assert message.headers == {"C": "3"}


names = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=6)


@given(st.lists(st.tuples(names, st.text(max_size=6)), max_size=4), st.integers(-5, 1000))
def test_an_answer_is_sent_without_injected_headers_or_refused(headers: list[tuple[str, str]], status: int) -> None:
    try:
        text = response_message("1", response_head(RelayAnswer(status, headers)), has_body=False)
    except UsageError:
        return
    sent = json.loads(text)["response"]
    assert 200 <= sent["statusCode"] <= 599
    for name, value in sent["responseHeaders"].items():
        assert name.lower() not in HOP_BY_HOP
        assert not set("\r\n\0") & set("".join([name, *value]))


@pytest.mark.parametrize(
    "answer",
    [
        RelayAnswer(199),
        RelayAnswer(600),
        RelayAnswer("200"),  # type: ignore[arg-type]
        RelayAnswer(True),
        RelayAnswer(200, reason="a\r\nb"),
        RelayAnswer(200, {"A": 1}),  # type: ignore[dict-item]
        RelayAnswer(200, {"A:": "1"}),
        RelayAnswer(200, {"": "1"}),
        RelayAnswer(200, {"A": "1\n"}),
    ],
)
def test_wrong_answers_are_refused(answer: RelayAnswer) -> None:
    with pytest.raises(UsageError):
        response_head(answer)


def test_a_wrong_length_is_left_out() -> None:
    for body, length, kept in ((b"abc", "3", True), (b"abc", "4", False), (b"", "7", True), (b"", "x", False)):
        head = response_head(RelayAnswer(200, {"Content-Length": length}, body))
        assert ("Content-Length" in head["responseHeaders"]) is kept


def test_the_error_for_a_header_has_no_value() -> None:
    with pytest.raises(UsageError) as refused:
        checked_headers({"Authorization": "secret\n"})
    assert "secret" not in str(refused.value)
