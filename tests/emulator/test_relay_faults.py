"""Faults of the relay: endpoints that are down, listeners that are dropped, answers that are lost or have no Via."""

import asyncio

import pytest
from aiohttp import ClientConnectionError

from tests.emulator.relay_peers import RelayBench, refusal

LISTEN = "/$hc/hyco?sb-hc-action=listen"


async def test_an_endpoint_that_is_down_ends_connections(bench: RelayBench) -> None:
    listener = await bench.listen()
    with bench.emulator.faults.during("relay-down", "contoso", entity="HYCO"):
        assert await listener.closed() == 1006
        with pytest.raises(ClientConnectionError):
            await bench.request()
        with pytest.raises(ClientConnectionError):
            await bench.listen()
    await (await bench.listen()).serve()


async def test_an_endpoint_that_is_down_with_a_status_refuses(bench: RelayBench) -> None:
    with bench.emulator.faults.during("relay-down", "contoso", status=503):
        async with bench.request() as answer:
            assert (await refusal(answer))[:2] == (503, "ServiceUnavailable")
        assert (await bench.refused(LISTEN, ServiceBusAuthorization=bench.token()))[0] == 503


async def test_hidden_listeners_stay_connected(bench: RelayBench) -> None:
    listener = await bench.listen()
    with bench.emulator.faults.during("relay-no-listeners", "contoso"):
        async with bench.request() as answer:
            assert (await refusal(answer))[:2] == (404, "EndpointNotFound")
    await listener.serve()


async def test_the_daily_restart_closes_control_channels_once(bench: RelayBench) -> None:
    listener = await bench.listen()
    bench.emulator.faults.relay_drop_listeners("contoso", "hyco")
    message = await listener.socket.receive()
    assert (message.data, message.extra) == (1011, "ConnectionLost: InternalServerError: NameRenewalFailed")
    await (await bench.listen()).serve()


async def test_a_swallowed_response_is_not_answered_in_time(bench: RelayBench) -> None:
    bench.emulator.faults.relay_swallow_response("contoso", "hyco", count=1)
    listener, asking, request = await bench.asked()
    await listener.answer(request["id"], 200, b"lost")
    # The listener's next response shows that the first one was read.
    await listener.serve()
    bench.advance(60)
    assert (await refusal(await asking))[:2] == (504, "GatewayTimeout")


async def test_answers_without_via_are_counted(bench: RelayBench) -> None:
    listener = await bench.listen()
    bench.emulator.faults.relay_without_via("contoso", count=1)
    assert ["Via" in (await listener.serve())[1].headers for _ in range(2)] == [False, True]


async def test_latency_delays_answers_and_handshakes(bench: RelayBench) -> None:
    loop = asyncio.get_running_loop()
    with bench.emulator.faults.during("latency", "contoso", ms=50):
        begun = loop.time()
        listener = await bench.listen()
        await listener.serve()
        assert loop.time() - begun > 0.09


async def test_a_dropped_listener_answers_over_the_rendezvous_address(bench: RelayBench) -> None:
    listener, asking, request = await bench.asked()
    bench.emulator.faults.relay_drop_listeners("contoso")
    meeting = await listener.meet(request["address"])
    await listener.answer(request["id"], 200, b"late, and whole", meeting)
    assert await (await asking).read() == b"late, and whole"
