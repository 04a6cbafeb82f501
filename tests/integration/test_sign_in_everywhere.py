"""Every way to sign in, on the data plane by both clients, over Atom and with Resource Manager; and nobody is."""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage

from sbpair import errors
from sbpair.amqp_client.client import connect
from sbpair.azure import data_plane
from sbpair.azure.credentials import open_tokens
from sbpair.backlog import queue_path
from sbpair.management.audit_findings import audit_exit_code
from sbpair.management.auditing import audit
from sbpair.management.provisioning import provision
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, Pair, ResourceGroup, SasToken
from sbpair.model.report import Outcome
from sbpair.syphon.run_request import RunTimings
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.moves import run_syphon
from tests.kit.sas import sign
from tests.kit.stranded import numbered, put
from tests.kit.waiting import no_wait

GROUP = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
MAX_SECONDS = 60

# It leaves the sockets of what has failed to whoever collects the garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SIGNED_IN = """#!{python} -SE
import json, sys, time, urllib.parse, urllib.request

assert sys.argv[1:5] == ["account", "get-access-token", "--output", "json"], sys.argv
resource = urllib.parse.quote(sys.argv[sys.argv.index("--resource") + 1])
url = "{endpoint}?api-version=2019-08-01&resource=" + resource
request = urllib.request.Request(url, headers={{"X-IDENTITY-HEADER": "{header}"}})
with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request) as answer:
    token = json.load(answer)
expires_on = int(token["expires_on"])
print(json.dumps({{
    "accessToken": token["access_token"],
    "expiresOn": time.strftime("%Y-%m-%d %H:%M:%S.000000", time.localtime(expires_on)),
    "expires_on": expires_on,
    "subscription": "00000000-0000-0000-0000-000000000000",
    "tenant": "00000000-0000-0000-0000-000000000000",
    "tokenType": "Bearer",
}}))
"""
SIGNED_OUT = """#!/bin/sh
echo "ERROR: Please run 'az login' to setup account." >&2
exit 1
"""


class Signing:
    """A way to sign in to an emulator: what it does to the environment, and the pair that goes with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._folder = folder

    def with_keys(self, emulator: Emulator) -> Pair:
        return Pair("keys", *self._ends(emulator), backlog_queues=1)

    def with_managed_identity(self, emulator: Emulator) -> Pair:
        assert emulator.ready.identity
        for name, value in emulator.ready.identity.environment.items():
            self._monkeypatch.setenv(name, value)
        return self._by_name(emulator)

    def with_az_login(self, emulator: Emulator) -> Pair:
        assert emulator.ready.identity
        endpoint, header = emulator.ready.identity.endpoint, emulator.ready.identity.header
        self._az(SIGNED_IN.format(python=sys.executable, endpoint=endpoint, header=header))
        return self._by_name(emulator)

    def with_nobody(self, emulator: Emulator) -> Pair:
        self._az(SIGNED_OUT)
        return self._by_name(emulator)

    def _az(self, script: str) -> None:
        az = self._folder / "az"
        az.write_text(script)
        az.chmod(az.stat().st_mode | stat.S_IXUSR)
        self._monkeypatch.setenv("PATH", f"{self._folder}{os.pathsep}{os.environ['PATH']}")
        # Others than this one would look for themselves outside of this machine.
        self._monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")

    def _by_name(self, emulator: Emulator) -> Pair:
        """Both namespaces as `namespace = …` in the configuration means them, and where they are."""
        ends = [
            replace(end, authority=f"{end.name}.servicebus.windows.net", credential=Identity(), emulator=False)
            for end in self._ends(emulator)
        ]
        return Pair("identity", *ends, backlog_queues=1)

    def _ends(self, emulator: Emulator) -> list[Endpoint]:
        return [
            endpoint_from_connection_string(each.connection_string, name=name)
            for name, each in emulator.namespaces.items()
        ]


@pytest.fixture
def signing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Signing:
    for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER"):
        monkeypatch.delenv(name, raising=False)
    return Signing(monkeypatch, tmp_path)


def open_emulator() -> Emulator:
    return Emulator(options=EmulatorOptions(identity=True))


@pytest.mark.parametrize("way", ["with_managed_identity", "with_az_login"])
async def test_whoever_is_signed_in_provisions_audits_and_moves(signing: Signing, way: str) -> None:
    async with open_emulator() as emulator:
        pair = getattr(signing, way)(emulator)
        for group in (None, GROUP):
            report = await provision(pair, group=group)
            assert [item.outcome for item in report.items] == [Outcome.CREATED if group is None else Outcome.EXISTING]
        assert audit_exit_code(await audit(pair)) == 0
        orders = emulator.namespaces["contoso"].create_queue("orders")
        backlog = emulator.namespaces["contoso-dr"].queue(queue_path("contoso", 0))
        put(backlog, numbered(1, "orders"))
        result = await run_syphon(pair, once=True, timings=RunTimings(empty_wait_seconds=0.05))
        assert (result.receipt.sent, orders.counts().active, backlog.counts().total) == (1, 1, 0)
        async with data_plane.open_sender(pair.primary, "orders") as sender:
            await sender.send(AmqpAnnotatedMessage(data_body=b"x"), MAX_SECONDS)
        assert orders.counts().active == 2


@pytest.mark.parametrize("kind", ["key", "signature"])
async def test_azure_servicebus_connects_over_tls_to_any_port_by_a_ca_file(kind: str) -> None:
    async with Emulator(options=EmulatorOptions(tls=True)) as emulator:
        ready, namespace = emulator.ready, emulator.namespaces["contoso"]
        endpoint = endpoint_from_connection_string(
            ready.namespaces[0].tls_connection_string, name="contoso", ca_file=ready.ca_file
        )
        assert endpoint.tls
        if kind == "signature":
            expiry = emulator.clock.now_ms() // 1000 + 600
            token = sign(namespace.keys[0], f"sb://{endpoint.authority}", expiry)
            endpoint = replace(endpoint, credential=SasToken(token))
        orders = namespace.create_queue("orders")
        async with data_plane.open_sender(endpoint, "orders") as sender:
            await sender.send(AmqpAnnotatedMessage(data_body=b"x"), MAX_SECONDS)
        assert orders.counts().active == 1


@pytest.mark.parametrize("group", [None, GROUP])
async def test_where_nobody_is_signed_in_management_says_so_once(signing: Signing, group: ResourceGroup | None) -> None:
    async with open_emulator() as emulator:
        pair = signing.with_nobody(emulator)
        with pytest.raises(errors.NotAuthenticated, match="no identity is signed in") as refused:
            await provision(pair, group=group, sleep=no_wait)
        check(refused.value)
        assert ("--via atom" in refused.value.hint) == (group is not None)


async def test_a_connection_string_alone_does_not_get_in_to_resource_manager(signing: Signing) -> None:
    async with open_emulator() as emulator:
        signing.with_nobody(emulator)
        with pytest.raises(errors.NotAuthenticated, match="no identity is signed in") as refused:
            await provision(signing.with_keys(emulator), group=GROUP, sleep=no_wait)
        check(refused.value)
        assert "accepts no connection string" in refused.value.hint


async def test_where_nobody_is_signed_in_both_clients_say_so(signing: Signing) -> None:
    async with open_emulator() as emulator:
        pair = signing.with_nobody(emulator)
        emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", 0))
        with pytest.raises(errors.NotAuthenticated) as refused:
            await run_syphon(pair, once=True, timings=RunTimings(empty_wait_seconds=0.05))
        check(refused.value)
        with pytest.raises(errors.NotAuthenticated) as by_wire:
            async with open_tokens() as get_token, connect(pair.secondary, get_token=get_token) as wire:
                await wire.receiver(queue_path("contoso", 0))
        check(by_wire.value)
        with pytest.raises(errors.NotAuthenticated) as by_sdk:
            async with data_plane.open_sender(pair.secondary, queue_path("contoso", 0)):
                pass
        check(by_sdk.value)


def check(error: errors.SbpairError) -> None:
    assert error.exit_code == 5
    assert "\n" not in error.message + error.hint
    assert "az login" in error.hint
