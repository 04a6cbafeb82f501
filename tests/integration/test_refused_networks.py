"""A namespace whose network rules or disabled keys refuse this client: named so, over every way to it."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from sbpair import errors
from sbpair.amqp_client.client import connect
from sbpair.azure import data_plane
from sbpair.azure.atom import open_atom
from sbpair.azure.sdk_administration import open_administration
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Transport
from sbpair.model.queues import QueueSpec
from sbpair.relay.relay_client import AsyncRelayClient
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from sbpair.testing import EmulatedNamespace, EmulatorOptions, EmulatorThread

# The SDK leaves the sockets of what has failed to whoever collects the garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmulatedNamespace]:
    with EmulatorThread([("contoso", 0)], options=EmulatorOptions(tls=True)) as thread:
        thread["contoso"].declare(["orders"], hybrid_connections=["hyco"])
        yield thread["contoso"]


async def by_amqp(endpoint: Endpoint) -> None:
    async with connect(endpoint) as client:
        await client.receiver("orders")


async def by_websocket(endpoint: Endpoint) -> None:
    await by_amqp(replace(endpoint, transport=Transport.WEBSOCKET))


async def by_atom(endpoint: Endpoint) -> None:
    async with open_atom(endpoint) as management:
        await management.list_under("")


async def by_sdk(endpoint: Endpoint) -> None:
    async with data_plane.open_sender(endpoint, "orders"):
        pass


async def by_sdk_administration(endpoint: Endpoint) -> None:
    async with open_administration(endpoint, 10.0) as administration:
        await administration.create(QueueSpec("orders"))


async def by_relay(endpoint: Endpoint) -> None:
    relay = RelayEndpoint.of_namespace(endpoint, "hyco")
    async with AsyncRelayClient(RelayPair(relay, replace(relay, namespace="127.0.0.1:1")), first="primary") as client:
        await client.request("GET")


WAYS = [by_amqp, by_websocket, by_atom, by_sdk, by_sdk_administration, by_relay]
CAUSES = [
    ("firewall", errors.FirewallRefused, ("network rule", "Networking")),
    ("local-auth-disabled", errors.KeysDisabled, ("accepts no keys", "Local Authentication")),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("fault", "kind", "named"), CAUSES)
async def test_a_refusal_names_its_cause_and_never_the_key(
    namespace: EmulatedNamespace,
    way: Callable[[Endpoint], Awaitable[None]],
    fault: str,
    kind: type[errors.SbpairError],
    named: tuple[str, str],
) -> None:
    endpoint = endpoint_from_connection_string(namespace.connection_string, name="contoso")
    with namespace.fault(fault), pytest.raises(errors.SbpairError) as raised:
        await way(endpoint)
    error: BaseException = raised.value
    if isinstance(error, errors.BothFailed):
        error = error.reasons["primary"]
    assert isinstance(error, kind)
    assert error.exit_code == 5
    assert all(each in error.hint for each in named)
    assert "check the key" not in error.hint
