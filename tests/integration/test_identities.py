"""An identity of its own for each side: two tenants, and two user-assigned identities, from the configuration."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.azure.atom import open_atom
from sbpair.azure.identity_tokens import GRACE_SECONDS, BlockingTokens
from sbpair.backlog import queue_path
from sbpair.config import load_pair
from sbpair.emulator.bearer_tokens import Bearers
from sbpair.model.pair import SIDES, Identity, Pair, pair_variables
from sbpair.replay.run_description import NamespaceAccess
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request
from sbpair.testing import EmulatorOptions
from tests.kit.pairs import BACKLOG
from tests.kit.running import Running
from tests.kit.stranded import numbered, put

TENANTS = EmulatorOptions(tls=True, identity=True, tenants=True)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running(options=TENANTS) as running:
        running.do(lambda: running.namespace.create_queue("orders"))
        running.do(lambda: running.other.create_queue(queue_path("contoso", 0), BACKLOG))
        yield running


@pytest.fixture
def assertion(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a machine with managed and workload identities."""
    ready = running.emulator.ready
    assert ready.identity is not None
    token, _ = Bearers().issue("api://AzureADTokenExchange", time.time_ns() // 1_000_000)
    (tmp_path / "assertion").write_text(token)
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "assertion"))
    for name, value in ready.identity.environment.items():
        monkeypatch.setenv(name, value)


def environment(running: Running, kind: str, *, swapped: bool = False) -> dict[str, str]:
    """Return the variables of a pair whose sides have an identity each, of this kind."""
    ready = running.emulator.ready
    environ = {"HOME": "/nonexistent"}
    namespaces = ready.namespaces
    for side, at, of in zip(SIDES, namespaces, reversed(namespaces) if swapped else namespaces, strict=True):
        values: dict[str, Any] = {
            "NAMESPACE": f"{at.name}.servicebus.windows.net",
            "ENDPOINT": at.endpoint.removeprefix("sb://").rstrip("/"),
            "CA_FILE": ready.ca_file,
            "IDENTITY": kind,
            "CLIENT_ID": of.client_id,
        }
        if kind != "managed":
            values |= {"TENANT": of.tenant_id, "AUTHORITY": ready.authority}
        if kind == "client-secret":
            values["CLIENT_SECRET"] = of.client_secret
        environ |= {f"SBPAIR_{side.upper()}_{key}": str(value) for key, value in values.items()}
    return environ


def probe(pair: Pair) -> None:
    async def read() -> None:
        for end in (pair.primary, pair.secondary):
            async with open_atom(end) as atom:
                await atom.tier_name()

    asyncio.run(read())


@pytest.mark.usefixtures("assertion")
@pytest.mark.parametrize("kind", ["client-secret", "workload", "managed"])
def test_each_side_has_its_own_identity(running: Running, kind: str) -> None:
    pair = load_pair(environ=environment(running, kind))
    backlog, orders = running.other.find_queue(queue_path("contoso", 0)), running.namespace.find_queue("orders")
    before = len(running.do(lambda: orders.messages.peek(0, 100)))
    running.do(lambda: [put(backlog, numbered(number, "orders")) for number in range(5)])
    result = asyncio.run(runner.run(syphon_request(pair, once=True, lease=False)))
    assert (result.exit_code, result.receipt.sent) == (0, 5)
    assert len(running.do(lambda: orders.messages.peek(0, 100))) == before + 5


@pytest.mark.usefixtures("assertion")
@pytest.mark.parametrize("kind", ["client-secret", "managed"])
def test_the_identity_of_the_other_side_is_refused(running: Running, kind: str) -> None:
    with pytest.raises(errors.NotAuthenticated):
        probe(load_pair(environ=environment(running, kind, swapped=True)))


def test_an_identity_reaches_tasks_and_services_without_its_secret(running: Running) -> None:
    environ = environment(running, "client-secret")
    secrets = [environ[f"SBPAIR_{side.upper()}_CLIENT_SECRET"] for side in SIDES]
    pair = load_pair(environ=environ)
    shown, names = pair_variables(pair)
    assert names == ("SBPAIR_PRIMARY_CLIENT_SECRET", "SBPAIR_SECONDARY_CLIENT_SECRET")
    assert {**shown, **{name: environ[name] for name in names}}.items() >= {
        name: value for name, value in environ.items() if name != "HOME"
    }.items()
    access = NamespaceAccess.from_endpoint(pair.secondary)
    assert access.variables == ("SBPAIR_SECONDARY_CLIENT_SECRET",)
    assert access.endpoint(environ) == pair.secondary
    assert not any(secret in f"{pair!r} {access!r} {shown}" for secret in secrets)
    with pytest.raises(errors.UsageError, match="has no SBPAIR_SECONDARY_CLIENT_SECRET"):
        access.endpoint({})


def test_a_program_that_blocks_waits_briefly_for_a_provider_that_hangs(running: Running) -> None:
    name = running.emulator.ready.namespaces[0].name
    identity = load_pair(environ=environment(running, "client-secret")).primary.credential
    assert isinstance(identity, Identity)
    with closing(BlockingTokens(identity, 0.1)) as tokens:
        hanging = running.emulator.faults.during("identity-down", name, mode="hang")
        running.do(hanging.__enter__)
        with pytest.raises(errors.NoToken, match=r"no answer within 0\.1 s"):
            tokens.get_token("https://servicebus.azure.net/.default")
        began = time.monotonic()
        tokens.close()
        assert time.monotonic() - began < GRACE_SECONDS
        running.do(lambda: hanging.__exit__(None, None, None))
