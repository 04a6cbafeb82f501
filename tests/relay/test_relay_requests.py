"""Requests from client to listener over real sockets: bodies, headers, streams, refusals, swaps and doubts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sbpair.errors import (
    BothFailed,
    Exhausted,
    InDoubt,
    NotAuthenticated,
    ServiceRefused,
    Unavailable,
    Unreachable,
    UsageError,
)
from sbpair.model.pair import SasKey, Side
from sbpair.relay.body_parts import RequestBody
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.events import RelaySideFailed
from sbpair.relay.handled_request import RelayRequest
from sbpair.relay.relay_endpoint import RelayPair
from tests.kit.shortages import no_file_left
from tests.kit.waiting import until
from tests.relay.relay_pairs import Gate, RelayPairBench, endpoint_of


async def parts(*given: bytes) -> AsyncIterator[bytes]:
    for each in given:
        await asyncio.sleep(0)
        yield each


async def test_a_request_reaches_the_active_side_and_is_answered(bench: RelayPairBench) -> None:
    listener = await bench.listen()
    client = await bench.client()

    response = await client.request("POST", "/a%20b?x=1&&y", headers={"X-A": "1"}, body=b"ping")

    assert listener.up_sides == ("primary", "secondary")
    assert (response.status, response.side, await response.read()) == (200, "primary", b"ping")
    assert response.headers["X-Side"] == "primary"
    assert bench.handled == [("primary", "POST", "/service-east/a%20b?x=1&&y", b"ping")]
    assert bench.kinds() == ["SideUp", "SideUp", "SideChosen"]


@pytest.mark.parametrize("size", [0, 1, 65_000, 66_000, 3_000_000])
@pytest.mark.parametrize("streamed", [False, True])
async def test_bodies_of_any_size_pass_both_ways(bench: RelayPairBench, size: int, streamed: bool) -> None:
    sizes: list[int] = []

    async def handler(request: RelayRequest) -> RelayAnswer:
        found = [part async for part in request]
        sizes.extend(map(len, found))
        body = b"".join(found)
        return RelayAnswer(200, {}, parts(body[:100], body[100:]) if streamed else body)

    client = await bench.served(handler)
    sent = bytes(range(256)) * (size // 256) + b"z" * (size % 256)

    response = await client.request("POST", body=parts(sent[:7], sent[7:]) if streamed else sent)

    found = [part async for part in response]
    assert b"".join(found) == sent
    # Neither end collects a large body.
    assert max([0, *sizes, *map(len, found)]) < 1_000_000


async def test_answers_keep_status_reason_and_headers(bench: RelayPairBench) -> None:
    async def handler(request: RelayRequest) -> RelayAnswer:
        assert request.headers["A"] == "1, 2"
        headers = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X", "1"), ("X", "2"), ("Connection", "close")]
        return RelayAnswer(503, headers, b"mine", "Own reason")

    client = await bench.served(handler)

    response = await client.request("GET", headers=[("A", "1"), ("A", "2")])

    assert (response.status, response.reason, await response.read()) == (503, "Own reason", b"mine")
    assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
    assert response.headers["X"] == "1, 2"
    assert client.active == "primary"


@pytest.mark.parametrize(
    ("fault", "method"), [("relay-no-listeners", "POST"), ("relay-down 503", "POST"), ("relay-down", "GET")]
)
async def test_each_way_of_being_unavailable_swaps(bench: RelayPairBench, fault: str, method: str) -> None:
    client = await bench.served()
    kind, _, status = fault.partition(" ")
    options = {"status": int(status)} if status else {}
    with bench.emulator.faults.during(kind, "contoso", **options):
        for _ in range(2):
            assert (await client.request(method, "/x")).side == "secondary"
    assert client.active == "secondary"
    assert [side for side, *_ in bench.handled] == ["secondary"] * 2
    assert bench.kinds("SideFailed", "RolesSwapped", "BothFailed") == ["SideFailed", "RolesSwapped"]
    assert next(each for each in bench.events if isinstance(each, RelaySideFailed)).in_doubt is (fault == "relay-down")


async def test_when_both_fail_the_roles_stay(bench: RelayPairBench) -> None:
    client = await bench.client()
    with pytest.raises(BothFailed) as failed:
        await client.request("POST", body=b"x")
    assert client.active == "primary"
    assert set(failed.value.reasons) == {"primary", "secondary"}
    assert failed.value.in_doubt == ()
    assert "There are no listeners connected" in str(failed.value)
    assert bench.kinds("RolesSwapped", "BothFailed") == ["BothFailed"]


async def test_the_clients_own_time_out_is_in_doubt(bench: RelayPairBench) -> None:
    gate = Gate()
    client = await bench.served(gate)
    asking = asyncio.create_task(client.request("POST", timeout=5))
    await gate.started.wait()
    bench.clock.advance(5)
    with pytest.raises(InDoubt, match="no answer within 5 s"):
        await asking


@pytest.mark.parametrize("kind", ["request", "connect"])
async def test_a_client_without_a_free_file_says_so_and_does_not_swap(bench: RelayPairBench, kind: str) -> None:
    client = await bench.served()
    with no_file_left(), pytest.raises(Exhausted, match="too many open files"):
        await (client.request("POST", "/a") if kind == "request" else client.connect("/a"))
    assert bench.kinds("SideFailed", "RolesSwapped", "BothFailed") == []
    assert (await client.request("POST", "/a")).side == "primary"


async def test_a_wrong_key_is_refused_and_does_not_swap(bench: RelayPairBench) -> None:
    await bench.listen()
    wrong = endpoint_of(bench.emulator, "primary", credential=SasKey("RootManageSharedAccessKey", "d3Jvbmc="))
    client = await bench.client(RelayPair(wrong, bench.pair.secondary))
    with pytest.raises(NotAuthenticated) as refused:
        await client.request("GET")
    assert "d3Jvbmc=" not in f"{refused.value}{refused.value!r}{wrong!r}"
    with pytest.raises(NotAuthenticated):
        await client.connect()
    assert client.active == "primary"


async def test_a_long_stream_that_was_begun_is_not_reissued(bench: RelayPairBench) -> None:
    client = await bench.served()
    gate = asyncio.Event()

    async def long() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"a" * 40_000
        gate.set()
        await asyncio.Event().wait()

    asking = asyncio.create_task(client.request("PUT", body=long()))
    await gate.wait()
    bench.emulator.faults.relay_down("contoso")
    await until(lambda: bench.clock.waits)
    bench.clock.advance(70)
    with pytest.raises((InDoubt, Unavailable)):
        await asking
    assert "secondary" not in [side for side, *_ in bench.handled]


async def test_an_error_of_the_body_is_the_callers(bench: RelayPairBench) -> None:
    client = await bench.served()

    async def failing() -> AsyncIterator[bytes]:
        yield b"a"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await client.request("PUT", body=failing())
    assert [body for *_, body in bench.handled if body] == []


async def test_a_failing_handler_costs_its_request_only(bench: RelayPairBench) -> None:
    async def handler(request: RelayRequest) -> Any:
        if request.method == "GET":
            raise RuntimeError("secret of the application")
        if request.method == "PUT":
            return RelayAnswer(200, {"X": "a\r\nInjected: 1"})
        return "text" if request.method == "PATCH" else RelayAnswer(204)

    client = await bench.served(handler)
    for method, status in (("GET", 500), ("PUT", 500), ("PATCH", 500), ("DELETE", 204)):
        response = await client.request(method)
        assert (response.status, await response.read(), "Injected" in response.headers) == (status, b"", False)
    assert bench.kinds("RequestFailed") == ["RequestFailed"] * 3
    assert "secret" not in str(bench.events)


async def test_a_slow_stream_begins_before_it_ends(bench: RelayPairBench) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        began.set()
        await gate.wait()
        yield b"second"

    client = await bench.served(lambda _request: RelayAnswer(200, {}, slow()))
    asking = asyncio.create_task(client.request("GET"))
    await began.wait()
    await until(lambda: 2.0 in bench.clock.waits)
    bench.clock.advance(2)
    found = (await asking).__aiter__()
    assert await anext(found) == b"first"
    gate.set()
    assert await anext(found) == b"second"
    assert await anext(found, None) is None


async def test_more_requests_than_allowed_wait_or_are_refused(bench: RelayPairBench) -> None:
    gate = Gate()
    client = await bench.served(gate, max_requests=1)
    asked = [asyncio.create_task(client.request("POST")) for _ in range(13)]
    await until(lambda: sum(each.done() for each in asked) >= 2)
    gate.opened.set()
    statuses = sorted([(await each).status for each in asked])
    assert statuses == [200] * 11 + [503] * 2


async def test_the_first_side_is_random_or_chosen(bench: RelayPairBench) -> None:
    sides: set[Side] = {(await bench.client(first=None)).active for _ in range(64)}
    assert sides == {"primary", "secondary"}
    assert (await bench.client(first="secondary")).active == "secondary"
    with pytest.raises(UsageError):
        await bench.client(first="third")


@pytest.mark.parametrize(
    ("action", "wrong"),
    [
        ("request", {"method": "GET /x HTTP/1.1\r\n"}),
        ("request", {"method": "CONNECT"}),
        ("request", {"method": ""}),
        ("request", {"suffix": "/../other"}),
        ("request", {"headers": {"X": "a\r\nY: b"}}),
        ("request", {"headers": {"X Y": "a"}}),
        ("request", {"headers": {"Host": "other"}}),
        ("request", {"headers": {"ServiceBusAuthorization": "x"}}),
        ("request", {"headers": {"Transfer-Encoding": "chunked"}}),
        ("request", {"body": "text"}),
        ("request", {"body": 7}),
        ("request", {"reissue": "never"}),
        ("request", {"timeout": 0}),
        ("request", {"timeout": float("nan")}),
        ("connect", {"suffix": "?sb-hc-action=listen"}),
        ("connect", {"headers": {"Sec-WebSocket-Key": "x"}}),
        ("connect", {"protocols": ["a\r\nb"]}),
        ("connect", {"timeout": -1}),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    bench: RelayPairBench, action: str, wrong: dict[str, Any]
) -> None:
    client = await bench.served()
    with pytest.raises(UsageError):
        await getattr(client, action)(**{"method": "GET", **wrong} if action == "request" else wrong)
    assert bench.handled == []
    assert (await client.request("GET")).status == 200


async def test_a_closed_client_refuses(bench: RelayPairBench) -> None:
    client = await bench.client()
    await client.close()
    with pytest.raises(UsageError, match="closed"):
        await client.request("GET")


async def test_a_refusal_without_via_is_the_services(bench: RelayPairBench) -> None:
    async def teapot(_request: RelayRequest) -> RelayAnswer:
        return RelayAnswer(418)

    client = await bench.served(teapot)
    bench.emulator.faults.relay_without_via("contoso", count=1)
    with pytest.raises(ServiceRefused) as refused:
        await client.request("GET")
    assert (refused.value.condition, client.active) == ("418", "primary")


async def test_a_stream_that_is_read_again_begins_anew_or_fails() -> None:
    """Older versions of aiohttp repeat a request whose body they have read in part."""
    for size in (1_000, 70_000):
        body = RequestBody(parts(b"a" * size, b"b"))
        assert await anext(aiter(body)) == b"a" * size
        if size == 1_000:
            assert b"".join([part async for part in body]) == b"a" * size + b"b"
        else:
            with pytest.raises(InDoubt):
                await anext(aiter(body))
        await body.close()


@pytest.mark.parametrize("is_abandoned", [False, True])
async def test_a_body_goes_on_while_its_answer_comes(bench: RelayPairBench, is_abandoned: bool) -> None:
    """A body that is not sent to its end must not be taken for the whole."""
    answered, received = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def both() -> AsyncIterator[bytes]:
        yield b"a" * 100_000
        await answered.wait()
        yield b"b" * 100_000

    async def handler(request: RelayRequest) -> RelayAnswer:
        async def echo() -> AsyncIterator[bytes]:
            size = 0
            try:
                async for part in request:
                    size += len(part)
                    yield part
            except Unreachable as error:
                received.set_result(error.message)
                raise
            received.set_result(size)

        return RelayAnswer(200, {}, echo())

    client = await bench.served(handler)
    response = await client.request("POST", body=both())
    if is_abandoned:
        await response.close()
        assert await received == "the body of the request ended too soon"
    else:
        answered.set()
        assert await response.read() == b"a" * 100_000 + b"b" * 100_000
        assert await received == 200_000


@pytest.mark.parametrize("failing", [FileNotFoundError, TimeoutError, Unreachable, ValueError, "text", 5])
async def test_an_answer_whose_body_fails_at_once_is_a_500(bench: RelayPairBench, failing: Any) -> None:
    """A body that fails is no lost connection: the sender is told."""

    async def body() -> AsyncIterator[bytes]:
        if isinstance(failing, type):
            raise failing("x")
        yield failing

    client = await bench.served(lambda _request: RelayAnswer(200, {}, body()))
    assert (await client.request("GET")).status == 500
    assert bench.kinds("RequestFailed", "AnswerLost") == ["RequestFailed"]
