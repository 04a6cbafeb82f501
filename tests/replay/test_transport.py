"""A replay where only a proxy leads to the namespaces: its tasks read the proxy's password where they run."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.errors import UsageError
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, Pair, Transport
from sbpair.model.proxy import parse_proxy
from sbpair.replay import driver
from sbpair.replay.run import NamespaceAccess, ReplayMode, ReplayOptions
from sbpair.testing import EmulatorOptions
from tests.kit.proxy import PASSWORD, running_proxy
from tests.kit.running import NAMESPACE, OTHER, Running
from tests.replay.world import VARIABLES, World

PROXIES = ("SBPAIR_PRIMARY_PROXY", "SBPAIR_SECONDARY_PROXY")
HOST = "contoso.servicebus.windows.net"
WITH_PASSWORD = parse_proxy("http://me:nobody-may-see@proxy:3128", "P")
ENDPOINT = Endpoint("contoso", HOST, HOST, 5671, tls=True, credential=Identity(), proxy=WITH_PASSWORD)


def test_a_proxy_s_password_is_not_passed_on_and_read_again() -> None:
    access = NamespaceAccess.from_endpoint(replace(ENDPOINT, transport=Transport.WEBSOCKET), None)
    assert b"nobody-may-see" not in pickle.dumps(access)
    assert access.variables == ("P",)
    found = access.endpoint({"P": "http://me:nobody-may-see@proxy:3128"})
    assert (found.proxy, found.transport) == (WITH_PASSWORD, Transport.WEBSOCKET)
    with pytest.raises(UsageError, match="the environment of this worker has no P"):
        access.endpoint({})


def test_a_proxy_without_a_password_is_passed_on() -> None:
    open_to_all = replace(ENDPOINT, proxy=parse_proxy("http://proxy:3128", "file"))
    access = NamespaceAccess.from_endpoint(open_to_all, None)
    assert access.variables == ()
    assert access.endpoint({}) == open_to_all


def test_a_password_of_no_variable_is_refused() -> None:
    with pytest.raises(UsageError, match="the proxy password of contoso is in no environment variable"):
        NamespaceAccess.from_endpoint(replace(ENDPOINT, proxy=replace(WITH_PASSWORD, source="")), None)


@pytest.fixture
def place() -> Iterator[tuple[World, Any]]:
    options = EmulatorOptions(tls=True)
    with (
        Running(((NAMESPACE, 0), (OTHER, 0)), options=options) as running,
        running.entered(running_proxy(login=True)) as proxy,
    ):
        yield World(running, ("orders", "invoices"), 2), proxy


@pytest.mark.java
@pytest.mark.usefixtures("shared_java")
@pytest.mark.parametrize("mode", ReplayMode)
def test_the_tasks_of_a_replay_go_through_the_proxy(
    place: tuple[World, Any], mode: ReplayMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, proxy = place
    ready = world.running.emulator.ready
    ends = []
    for variable, proxy_variable, each in zip(VARIABLES, PROXIES, ready.namespaces, strict=True):
        monkeypatch.setenv(variable, each.tls_connection_string)
        monkeypatch.setenv(proxy_variable, proxy.url)
        end = endpoint_from_connection_string(each.tls_connection_string, name=each.name, ca_file=ready.ca_file)
        ends.append(replace(end, transport=Transport.WEBSOCKET, proxy=parse_proxy(proxy.url, proxy_variable)))
    world.strand_many(40)
    request = replace(world.request(tmp_path), pair=Pair("orders", *ends))
    options = ReplayOptions(empty_seconds=0.1, mode=mode)
    result = driver.start_run(request, options, world.queues, 4, lambda _event: None)
    assert result.proof.balanced
    world.check_arrived()
    assert {*proxy.targets} == {each.authority for each in ends}
    assert len(proxy.targets) > 4
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in each for each in written)
