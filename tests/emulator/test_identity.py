"""Sign-in with azure-identity: two tenants, two user-assigned identities, and an identity provider that is away."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import azure.identity
import azure.identity.aio
import pytest
from aiohttp import ClientSession, ServerDisconnectedError
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusConnectionError
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.amqp.link import LinkDetached
from sbpair.emulator.bearer_tokens import ARM_AUDIENCES, AUDIENCE, Bearers, read_jwt, tenant_of
from sbpair.emulator.clock import ManualClock, token_ms
from sbpair.emulator.server import Ready, ReadyNamespace
from sbpair.testing import Emulator, EmulatorOptions, EmulatorThread
from tests.emulator.peer import Stage, plain

SCOPE = f"{AUDIENCE}/.default"
TENANTS = EmulatorOptions(tls=True, identity=True, tenants=True)
NAMES = ("contoso", "contoso-dr")


class SignIn:
    """An emulator with two tenants, and the credentials of azure-identity for their clients."""

    def __init__(self, ready: Ready, folder: Path) -> None:
        self.ready = ready
        self.authority = {"authority": ready.authority, "disable_instance_discovery": True}
        self.options = {**self.authority, "connection_verify": ready.ca_file, "retry_total": 0}
        self._assertion = folder / "assertion"
        token, _ = Bearers().issue("api://AzureADTokenExchange", time.time_ns() // 1_000_000)
        self._assertion.write_text(token)

    def secret(self, module: Any, at: ReadyNamespace) -> Any:
        return module.ClientSecretCredential(at.tenant_id, at.client_id, at.client_secret, **self.options)

    def workload(self, module: Any, at: ReadyNamespace) -> Any:
        ids = {"tenant_id": at.tenant_id, "client_id": at.client_id, "token_file_path": str(self._assertion)}
        return module.WorkloadIdentityCredential(**ids, **self.options)

    def managed(self, module: Any, at: ReadyNamespace) -> Any:
        return module.ManagedIdentityCredential(client_id=at.client_id, retry_total=0)


@pytest.fixture(scope="module")
def thread() -> Iterator[EmulatorThread]:
    with EmulatorThread(options=TENANTS) as thread:
        for name in NAMES:
            thread[name].declare(["orders"])
        yield thread


@pytest.fixture
def sign_in(thread: EmulatorThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignIn:
    ready = thread.emulator.ready
    assert ready.identity is not None
    for name, value in ready.identity.environment.items():
        monkeypatch.setenv(name, value)
    return SignIn(ready, tmp_path)


def token_of(credential: Any) -> Any:
    """Return a token of a credential, sync or aio, and close it."""
    if not credential.__class__.__module__.startswith("azure.identity.aio"):
        with credential:
            return credential.get_token(SCOPE)

    async def ask() -> Any:
        async with credential:
            return await credential.get_token(SCOPE)

    return asyncio.run(ask())


@pytest.mark.parametrize("module", [azure.identity, azure.identity.aio], ids=["sync", "aio"])
@pytest.mark.parametrize("kind", [SignIn.secret, SignIn.workload, SignIn.managed])
def test_a_token_names_tenant_and_client(sign_in: SignIn, kind: Callable[..., Any], module: Any) -> None:
    seen = set()
    for each in sign_in.ready.namespaces:
        claims = read_jwt(token_of(kind(sign_in, module, each)).token).claims
        assert (claims["tid"], claims["appid"], claims["aud"]) == (each.tenant_id, each.client_id, AUDIENCE)
        assert each.tenant_id == tenant_of(each.name)
        seen.add((each.tenant_id, each.client_id))
    assert len(seen) == 2


@pytest.mark.parametrize("transport", TransportType)
@pytest.mark.parametrize("kind", [SignIn.secret, SignIn.managed])
def test_a_namespace_takes_tokens_of_its_tenant(
    sign_in: SignIn, kind: Callable[..., Any], transport: TransportType
) -> None:
    first, other = sign_in.ready.namespaces
    for at, credential_of, whether in ((first, first, True), (other, other, True), (other, first, False)):
        # With an endpoint of its own, the client calls each refusal of a token an error of the connection.
        expected = nullcontext() if whether else pytest.raises(ServiceBusConnectionError)
        with (
            kind(sign_in, azure.identity, credential_of) as credential,
            ServiceBusClient(
                f"{at.name}.servicebus.windows.net",
                credential,
                custom_endpoint_address=at.endpoint,
                connection_verify=sign_in.ready.ca_file,
                transport_type=transport,
                retry_total=0,
            ) as client,
            expected as refused,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
        if refused is not None:
            assert "InvalidIssuer: Token issuer is invalid." in str(refused.value.inner_exception)


def test_atom_takes_tokens_of_its_tenant(sign_in: SignIn) -> None:
    first, other = sign_in.ready.namespaces
    with sign_in.secret(azure.identity, first) as credential:
        for at, text in ((first, ""), (other, "InvalidIssuer: Token issuer is invalid.")):
            verify = {"connection_verify": sign_in.ready.ca_file, "retry_total": 0}
            with ServiceBusAdministrationClient(at.endpoint.removeprefix("sb://"), credential, **verify) as client:
                if not text:
                    assert client.get_queue("orders").name == "orders"
                    continue
                with pytest.raises(ClientAuthenticationError, match=text) as refused:
                    client.get_queue("orders")
                assert refused.value.status_code == 401


async def test_resource_manager_lists_the_namespaces_of_a_tenant() -> None:
    async with Emulator(options=TENANTS) as emulator, ClientSession() as http:
        now_ms = token_ms(emulator.clock)
        provider = "subscriptions/00000000-0000-0000-0000-000000000001/providers/Microsoft.ServiceBus/namespaces"
        base = f"http://{emulator.namespaces['contoso'].authority}/{provider}?api-version=2021-11-01"
        for tenant, names in ((tenant_of("contoso-dr"), ["contoso-dr"]), ("none", None)):
            token, _ = emulator.bearers.issue(ARM_AUDIENCES[0], now_ms, tenant)
            async with http.get(base, headers={"Authorization": f"Bearer {token}"}) as answer:
                document = await answer.json()
            assert answer.status == (401 if names is None else 200)
            assert names is None or [each["name"] for each in document["value"]] == names


# What is refused

JWT = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
EXPIRED, _ = Bearers().issue("api://AzureADTokenExchange", 0)
REFUSALS: list[tuple[dict[str, str], int, str, int]] = [
    ({}, 200, "", 0),
    ({"client_secret": "wrong"}, 401, "invalid_client", 7000215),
    ({"client_secret": ""}, 401, "invalid_client", 7000215),
    ({"client_id": "other"}, 400, "unauthorized_client", 700016),
    ({"grant_type": "password"}, 400, "unsupported_grant_type", 70003),
    ({"scope": AUDIENCE}, 400, "invalid_scope", 1002012),
    ({"scope": "/.default"}, 400, "invalid_scope", 1002012),
    ({"scope": f"{SCOPE} {SCOPE}"}, 400, "invalid_scope", 1002012),
    ({"client_assertion_type": JWT, "client_assertion": "x"}, 401, "invalid_client", 50027),
    ({"client_assertion_type": JWT}, 401, "invalid_client", 50027),
    ({"client_assertion_type": JWT, "client_assertion": EXPIRED}, 401, "invalid_client", 700024),
    ({"tenant": "none"}, 400, "invalid_tenant", 90002),
    ({"padding": "x" * 70_000}, 400, "invalid_request", 90013),
]


async def test_the_authority_refuses_in_the_words_of_entra() -> None:
    async with Emulator(options=TENANTS) as emulator, ClientSession() as http:
        first = emulator.ready.namespaces[0]
        ids = {"client_id": first.client_id, "client_secret": first.client_secret}
        for changed, status, error, code in REFUSALS:
            form = {"grant_type": "client_credentials", "scope": SCOPE, **ids, **changed}
            url = f"{emulator.ready.authority}/{form.pop('tenant', first.tenant_id)}/oauth2/v2.0/token"
            async with http.post(url, data=form, ssl=False) as answer:
                document = await answer.json()
            assert (answer.status, document.get("error", "")) == (status, error), changed
            assert document.get("error_codes", [0]) == [code]
            assert first.client_secret not in json.dumps(document)
        async with http.get(url, ssl=False) as answer:
            assert answer.status == 400
        async with http.get(url.replace("https://", "http://")) as answer:
            assert (answer.status, "MissingToken" in await answer.text()) == (401, True)


async def test_an_unknown_user_assigned_identity_is_refused() -> None:
    async with Emulator(options=EmulatorOptions(identity=True)) as emulator, ClientSession() as http:
        ready = emulator.ready
        assert ready.identity is not None
        assert (ready.authority, ready.namespaces[0].client_secret) == (None, "")
        base = f"{ready.identity.endpoint}?api-version=2019-08-01&resource={AUDIENCE}"
        for more, status in (
            ("", 200),
            (f"&client_id={ready.namespaces[1].client_id.upper()}", 200),
            ("&client_id=00000000-0000-0000-0000-000000000000", 400),
            ("&principal_id=x", 400),
        ):
            async with http.get(base + more, headers={"X-IDENTITY-HEADER": ready.identity.header}) as answer:
                document = await answer.json()
            assert answer.status == status, more
            if status == 400:
                assert document["message"].startswith("No User Assigned or Delegated Managed Identity found")
        assert document["statusCode"] == 400


# The life of tokens


@pytest.mark.parametrize("kind", [SignIn.secret, SignIn.managed])
def test_the_life_of_tokens_can_be_chosen(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmulatorThread(options=EmulatorOptions(tls=True, identity=True, token_life=20)) as thread:
        ready = thread.emulator.ready
        assert ready.identity is not None
        for name, value in ready.identity.environment.items():
            monkeypatch.setenv(name, value)
        token = token_of(kind(SignIn(ready, tmp_path), azure.identity, ready.namespaces[0]))
        claims = read_jwt(token.token).claims
        assert claims["exp"] - claims["iat"] == 20
        assert abs(token.expires_on - claims["exp"]) <= 2


async def test_links_end_when_a_short_token_does() -> None:
    async with Emulator(
        [("contoso", 0)], clock=ManualClock(), options=EmulatorOptions(identity=True, token_life=20)
    ) as emulator:
        stage = Stage(emulator)
        async with stage.connect(signed_in=False) as peer:
            for seconds in (0, 15):
                emulator.advance(seconds * 1000)
                token, _ = emulator.bearers.issue(AUDIENCE, token_ms(emulator.clock))
                assert (await peer.ask("$cbs", "put-token", token, name="sb://h/orders"))["status-code"] == 202
            sender = await peer.attach_sender("orders")
            emulator.advance(15_000)
            await peer.send(sender, plain())
            emulator.advance(5_000)
            error = (await peer.wait(LinkDetached, of=sender)).error
            assert error.condition == "amqp:unauthorized-access"
            assert str(error.description).startswith("ExpiredToken: The token is expired.")
            refused = await peer.ask("$cbs", "put-token", token, name="sb://h/orders")
            assert refused["status-code"] == 401


# An identity provider that is away


async def ask(http: ClientSession, emulator: Emulator, source: str, name: str) -> int:
    """Ask one of the two sources for a token of a namespace's client. Return the status, 0 for no answer."""
    ready = emulator.ready
    at = next(each for each in ready.namespaces if each.name == name)
    assert ready.identity is not None
    try:
        if source == "managed":
            url = f"{ready.identity.endpoint}?api-version=2019-08-01&resource={AUDIENCE}&client_id={at.client_id}"
            async with http.get(url, headers={"X-IDENTITY-HEADER": ready.identity.header}) as answer:
                return answer.status
        ids = {"client_id": at.client_id, "client_secret": at.client_secret}
        form = {"grant_type": "client_credentials", "scope": SCOPE, **ids}
        async with http.post(f"{ready.authority}/{at.tenant_id}/oauth2/v2.0/token", data=form, ssl=False) as answer:
            return answer.status
    except ServerDisconnectedError:
        return 0


@pytest.mark.parametrize("source", ["managed", "authority"])
@pytest.mark.parametrize(("mode", "status"), [("refuse", 0), ("500", 500), ("throttle", 429), ("hang", None)])
async def test_the_identities_of_one_namespace_are_away(source: str, mode: str, status: int | None) -> None:
    async with Emulator(options=TENANTS) as emulator, ClientSession() as http:
        url = f"http://{emulator.namespaces['contoso-dr'].authority}/$control/faults"
        async with http.post(url, json={"kind": "identity-down", "namespace": "contoso", "mode": mode}) as answer:
            assert answer.status == 201
            identity = (await answer.json())["id"]
        asked = asyncio.create_task(ask(http, emulator, source, "contoso"))
        assert await ask(http, emulator, source, "contoso-dr") == 200
        if status is not None:
            assert await asked == status
        async with http.delete(f"{url}/{identity}") as answer:
            assert answer.status == 200
        if status is None:
            assert await asked == 200
        with emulator.faults.during("identity-down", "contoso", mode="500", count=1):
            assert [await ask(http, emulator, source, "contoso") for _ in range(2)] == [500, 200]


@pytest.mark.parametrize("kind", [SignIn.secret, SignIn.workload, SignIn.managed])
@pytest.mark.parametrize("mode", ["refuse", "500", "throttle"])
def test_azure_identity_fails_while_the_provider_is_away(
    thread: EmulatorThread, sign_in: SignIn, kind: Callable[..., Any], mode: str
) -> None:
    at = sign_in.ready.namespaces[0]
    with thread["contoso"].fault("identity-down", mode=mode), pytest.raises(AzureError):
        token_of(kind(sign_in, azure.identity, at))
    assert token_of(kind(sign_in, azure.identity, at)).token


async def test_a_hung_sign_in_ends_with_the_emulator() -> None:
    async with ClientSession() as http:
        async with Emulator(options=TENANTS) as emulator:
            emulator.faults.identity_down("contoso", "hang")
            asked = asyncio.create_task(ask(http, emulator, "authority", "contoso"))
            assert await ask(http, emulator, "authority", "contoso-dr") == 200
        await asyncio.wait([asked])
