"""The listener's life in virtual time: back-off, renewal, the daily restart, deadlines, and its close."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sbpair.emulator.relay.hybrid_connection import AUDIENCES
from sbpair.errors import InDoubt, UsageError
from sbpair.model.pair import SasKey, SasToken
from sbpair.relay import handled_request
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.events import RelaySideDown
from sbpair.relay.handled_request import RelayRequest
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from sbpair.relay.relay_listener import STOP_SECONDS, AsyncRelayListener
from tests.kit.sas import sign
from tests.kit.waiting import PATIENCE_SECONDS, until
from tests.relay.relay_pairs import PATHS, Gate, RelayPairBench, endpoint_of, open_pair


def downs(bench: RelayPairBench) -> list[RelaySideDown]:
    return [each for each in bench.events if isinstance(each, RelaySideDown)]


def listeners(bench: RelayPairBench, side: Any = "primary") -> list[Any]:
    found = bench.emulator.namespaces[bench.namespace(side)].hybrid_connections.find(PATHS[side])
    assert found is not None
    return found.listeners


async def test_a_side_that_fails_is_connected_to_after_growing_pauses(bench: RelayPairBench) -> None:
    bench.emulator.faults.relay_down("contoso", status=503)
    listener = await bench.listen(side="primary")
    assert listener.up_sides == ()
    for seconds in (1.0, 2.0, 5.0, 10.0, 30.0, 30.0):
        await until(lambda pause=seconds: bench.clock.waits == [pause])
        bench.clock.advance(seconds)
    await until(lambda: bench.clock.waits == [30.0])
    # One reason is reported once, although each text of the service has an id of its own.
    assert len(downs(bench)) == 1
    bench.emulator.faults.end_all()
    bench.clock.advance(30)
    await until(lambda: listener.up_sides == ("primary",))


@pytest.mark.parametrize("problem", ["missing", "wrong key"])
async def test_a_permanent_refusal_is_retried_slowly(bench: RelayPairBench, problem: str) -> None:
    changes: dict[str, Any] = {"path": "missing"}
    if problem == "wrong key":
        changes = {"credential": SasKey("RootManageSharedAccessKey", "d3Jvbmc=")}
    where = endpoint_of(bench.emulator, "primary", **changes)
    listener = AsyncRelayListener(where, bench.echo, clock=bench.clock, on_event=bench.events.append)
    async with listener:
        await until(lambda: bench.clock.waits == [60.0])
        assert [each.retry_seconds for each in downs(bench)] == [60.0]
        assert "d3Jvbmc=" not in str(bench.events)
        if problem == "missing":
            bench.emulator.namespaces["contoso"].hybrid_connections.create("missing")
            bench.clock.advance(60)
            await until(lambda: listener.up_sides == ("primary",))


async def test_a_renewal_that_fails_is_reported_and_tried_again_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async with open_pair(identity=True) as bench:
        failures = [OSError("no route")]

        class Provider:
            async def get_token(self, *_scopes: str, **_options: Any) -> Any:
                assert bench.emulator.identity is not None
                if bench.kinds("SideUp") and failures:
                    raise failures.pop()
                text, expiry = bench.emulator.bearers.issue(AUDIENCES[0], bench.emulator.clock.now_ms())
                return type("AccessToken", (), {"token": text, "expires_on": expiry})

        where = endpoint_of(bench.emulator, "primary", credential=Provider())
        async with AsyncRelayListener(where, bench.echo, clock=bench.clock, on_event=bench.events.append):
            connected = listeners(bench)
            await until(lambda: bench.clock.waits == pytest.approx([43_200, 86_100], abs=1))
            bench.clock.advance(43_200)
            await until(lambda: bench.clock.waits == pytest.approx([1, 42_900], abs=1))
            assert not failures
            assert "no route" in caplog.text
            bench.clock.advance(1)
            await until(lambda: bench.clock.waits == pytest.approx([42_899, 43_200], abs=1))
            bench.clock.advance(42_899)
            await until(lambda: len(bench.clock.waits) == 2 and min(bench.clock.waits) < 400)
            client = await bench.client()
            # The service reads the renewal before this answer.
            assert (await client.request("GET")).status == 200
            bench.clock.advance(200)
            assert (await client.request("GET")).status == 200
            assert listeners(bench) == connected


async def test_a_given_signature_ends_the_channel_when_it_expires(bench: RelayPairBench) -> None:
    expiry = int(bench.clock.now()) + 600
    rule = bench.emulator.namespaces["contoso"].keys[0]
    token = sign(rule, endpoint_of(bench.emulator, "primary").audience, expiry)
    where = endpoint_of(bench.emulator, "primary", credential=SasToken(token))
    async with AsyncRelayListener(where, bench.echo, clock=bench.clock, on_event=bench.events.append) as listener:
        assert listener.up_sides == ("primary",)
        bench.clock.advance(601)
        await until(lambda: 60.0 in bench.clock.waits)
        assert [each.retry_seconds for each in downs(bench)] == [0.0, 60.0]
        assert "code 1008" in downs(bench)[0].reason


async def test_an_unconfirmed_answer_that_cannot_be_sent_again_is_reported(
    bench: RelayPairBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handled_request, "CONFIRM_SECONDS", 1_000.0)
    client = await bench.served(side="primary")
    assert (await client.request("POST")).status == 200
    bench.emulator.faults.namespace_down("contoso")
    await until(lambda: bench.kinds("AnswerLost"))


async def test_a_handler_that_hangs_is_cancelled_after_a_minute(bench: RelayPairBench) -> None:
    ended = asyncio.Event()

    async def handler(_request: RelayRequest) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    client = await bench.served(handler)
    asking = asyncio.create_task(client.request("POST", timeout=200))
    await until(lambda: bench.clock.waits.count(60.0) == 1)
    # The listener's limit began a moment after the service's: both end now.
    bench.clock.advance(60)
    await ended.wait()
    await until(asking.done)
    assert bench.kinds("RequestFailed")
    asking.exception()


async def test_an_answer_to_a_body_that_is_not_read_frees_the_listener(bench: RelayPairBench) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 400:
            sent += 1
            yield b"x" * 65_536

    async def handler(request: RelayRequest) -> RelayAnswer:
        before = -1
        while request.method == "PUT" and sent != before:
            # Until nothing more fits between the sender and this handler.
            before = sent
            for _ in range(500):
                await asyncio.sleep(0)
        return RelayAnswer(413)

    client = await bench.served(handler, max_requests=1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await client.request("PUT", body=body())).status == 413
        assert 0 < sent < 400
        assert (await client.request("GET")).status == 413


@pytest.mark.parametrize(("limit", "seconds", "reported"), [(None, 60.0, ["AnswerLost"]), (5, 5.0, [])])
async def test_an_answer_that_pauses_is_given_up_by_the_first_limit(
    bench: RelayPairBench, limit: float | None, seconds: float, reported: list[str]
) -> None:
    gate = asyncio.Event()

    async def pausing() -> AsyncIterator[bytes]:
        yield b"a" * 70_000
        await gate.wait()

    client = await bench.served(lambda _request: RelayAnswer(200, {}, pausing()))
    response = await client.request("POST", timeout=limit)
    reading = asyncio.create_task(response.read())
    await until(lambda: any(wait <= seconds for wait in bench.clock.waits))
    bench.clock.advance(seconds)
    with pytest.raises(InDoubt, match="ended too soon"):
        await reading
    await until(lambda: bench.kinds("AnswerLost") == reported)
    gate.set()


async def test_close_finishes_accepted_requests_and_takes_no_more(bench: RelayPairBench) -> None:
    gate = Gate(RelayAnswer(200, {}, b"late"))
    listener = await bench.listen(gate)
    client = await bench.client()
    asking = asyncio.create_task(client.request("POST"))
    await gate.started.wait()
    closing = asyncio.create_task(listener.close())
    await until(lambda: not listeners(bench) and not listeners(bench, "secondary"))
    gate.opened.set()
    await closing
    assert await (await asking).read() == b"late"
    assert listener.up_sides == ()
    with pytest.raises(UsageError):
        await listener.start()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_end_does_not_wait_for_a_side_that_does_not_answer(bench: RelayPairBench, cancelled: bool) -> None:
    accepted = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    primary = RelayEndpoint(f"127.0.0.1:{port}", "a", SasKey("a", "Yg=="), tls=False)
    async with server:
        listener = AsyncRelayListener(RelayPair(primary, bench.pair.secondary), bench.echo, clock=bench.clock)
        starting = asyncio.create_task(listener.__aenter__())
        await accepted.wait()
        await until(lambda: listener.up_sides == ("secondary",))
        async with asyncio.timeout(STOP_SECONDS / 2):
            if cancelled:
                starting.cancel()
            else:
                await listener.close()
            await asyncio.gather(starting, return_exceptions=True)
    assert listener.up_sides == ()


async def test_close_reports_the_requests_that_take_too_long(bench: RelayPairBench) -> None:
    gate = Gate()
    listener = await bench.listen(gate)
    client = await bench.client()
    asking = asyncio.create_task(client.request("POST"))
    await gate.started.wait()
    closing = asyncio.create_task(listener.close(5))
    await until(lambda: 5.0 in bench.clock.waits)
    bench.clock.advance(5)
    await closing
    assert bench.kinds("AnswerLost") == ["AnswerLost"]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_listener_without_handlers_answers_501(bench: RelayPairBench) -> None:
    async with AsyncRelayListener(bench.pair, clock=bench.clock):
        client = await bench.client()
        assert (await client.request("GET")).status == 501


@pytest.mark.parametrize("limits", [{"max_requests": 0}, {"max_sockets": 0}, {"max_message_bytes": -1}])
def test_wrong_limits_are_refused(limits: dict[str, int]) -> None:
    where = RelayPair.__new__(RelayPair)
    with pytest.raises(UsageError):
        AsyncRelayListener(where, **limits)
