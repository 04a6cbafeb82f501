"""A replay where only a proxy leads to the namespaces: its tasks read the proxy's password where they run."""

import asyncio
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.errors import UsageError
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, Pair, SasKey, Transport
from sbpair.model.proxy import parse_proxy
from sbpair.replay.destination_checks import find_missing
from sbpair.replay.run_description import NamespaceAccess, ReplayMode
from sbpair.testing import EmulatorOptions
from tests.kit.proxy import PASSWORD, running_proxy
from tests.kit.running import NAMESPACE, OTHER, Running
from tests.replay.tasks import proof_of, replayed, stranded
from tests.replay.world import SENDING, VARIABLES, World

PROXIES = ("SBPAIR_PRIMARY_PROXY", "SBPAIR_SECONDARY_PROXY")
HOST = "contoso.servicebus.windows.net"
PROXY = "http://me:nobody-may-see@proxy:3128"
WITH_PASSWORD = parse_proxy(PROXY, "P")
ENDPOINT = Endpoint("contoso", HOST, HOST, 5671, tls=True, credential=Identity(), proxy=WITH_PASSWORD)


KEY = SasKey("root", "bm9ib2R5LW1heS1zZWU=")
STRING = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=root;SharedAccessKey={KEY.key}"


@pytest.mark.parametrize(
    ("endpoint", "environ"),
    [
        (replace(ENDPOINT, proxy=None, credential=KEY, key_source="K"), {"K": STRING}),
        (replace(ENDPOINT, transport=Transport.WEBSOCKET), {"P": PROXY}),
        (replace(ENDPOINT, proxy=parse_proxy("http://proxy:3128", "file")), {}),
    ],
    ids=["key", "proxy with a password", "proxy without one"],
)
def test_a_secret_is_not_passed_on_and_read_again(endpoint: Endpoint, environ: dict[str, str]) -> None:
    access = NamespaceAccess.from_endpoint(endpoint)
    for secret in ("nobody-may-see", KEY.key):
        assert secret not in repr(access)
        assert secret.encode() not in pickle.dumps(access)
    assert access.variables == (*environ,)
    assert access.endpoint(environ) == endpoint
    for name in environ:
        with pytest.raises(UsageError, match=f"the environment of this worker has no {name}"):
            access.endpoint({})


@pytest.mark.parametrize(
    ("endpoint", "secret"),
    [
        (replace(ENDPOINT, proxy=replace(WITH_PASSWORD, source="")), "proxy password"),
        (replace(ENDPOINT, proxy=None, credential=KEY), "key"),
    ],
)
def test_a_secret_of_no_variable_is_refused(endpoint: Endpoint, secret: str) -> None:
    with pytest.raises(UsageError, match=f"the {secret} of contoso is in no environment variable"):
        NamespaceAccess.from_endpoint(endpoint)


@pytest.fixture
def place() -> Iterator[tuple[World, Any]]:
    options = EmulatorOptions(tls=True)
    with (
        Running(((NAMESPACE, 0), (OTHER, 0)), options=options) as running,
        running.entered(running_proxy(login=True)) as proxy,
    ):
        yield World(running, ("orders", "invoices"), 2), proxy


@pytest.mark.parametrize("mode", SENDING)
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
        ends.append(
            replace(
                end, key_source=variable, transport=Transport.WEBSOCKET, proxy=parse_proxy(proxy.url, proxy_variable)
            )
        )
    monkeypatch.setattr(World, "pair", Pair("orders", *ends))
    job = stranded(world, tmp_path, 40, mode=mode)
    assert asyncio.run(find_missing(job, [*world.destinations])) == []
    replayed(job)
    assert proof_of(job).balanced
    world.check_arrived()
    assert {*proxy.targets} == {each.authority for each in ends}
    assert len(proxy.targets) > 4
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in each for each in written)
