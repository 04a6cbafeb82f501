"""Paired clients over WebSocket, where the primary is behind a proxy: they send, fail over with it, and come back."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sbpair.failover.entity_states import State
from sbpair.failover.events import EntityChanged
from sbpair.model.pair import Transport
from sbpair.model.proxy import parse_proxy
from sbpair.testing import EmulatorOptions
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, Rig, a_message, ids
from tests.kit.proxy import SDK_BEHIND_A_PROXY, Proxy, detach_sessions, running_proxy
from tests.kit.running import NAMESPACE, OTHER, Running

pytestmark = [*PAIRED_CLIENTS, *SDK_BEHIND_A_PROXY]


@pytest.fixture
def place() -> Iterator[tuple[Rig, Proxy]]:
    with (
        Running(((NAMESPACE, 0), (OTHER, 0)), options=EmulatorOptions(tls=True)) as running,
        running.entered(running_proxy(login=True)) as proxy,
    ):
        rig = Rig(running, 2)
        sides = {}
        for side, each in zip(("primary", "secondary"), running.ready, strict=True):
            port = int(each.endpoint.rpartition(":")[2])
            found = replace(getattr(rig.pair, side), tls=True, emulator=False, port=port)
            sides[side] = replace(found, ca_file=running.emulator.ready.ca_file, transport=Transport.WEBSOCKET)
        sides["primary"] = replace(sides["primary"], proxy=parse_proxy(proxy.url, "SBPAIR_PRIMARY_PROXY"))
        rig.pair = replace(rig.pair, **sides)
        yield rig, proxy
    detach_sessions()


@KINDS
def test_a_proxy_that_fails_is_an_outage_of_its_side(place: tuple[Rig, Any], kind: str) -> None:
    rig, proxy = place
    with rig.sending(kind) as (sender, _client, log):
        sender.send_messages(a_message("before"))
        assert ids(rig.in_queue(rig.orders)) == ["before"]
        proxy.answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
        rig.do(proxy.break_tunnels)
        sender.send_messages(a_message("during"))
        assert ids(rig.in_backlog()) == ["during"]
        assert {*proxy.targets} == {rig.pair.primary.authority}
        proxy.answer = b"connect"
        log.wait_for(lambda event: isinstance(event, EntityChanged) and event.after is State.HEALTHY)
        sender.send_messages(a_message("after"))
    assert ids(rig.brought_back()) == ["before", "after", "during"]
