"""The Resource Manager frontend, request by request: paths, versions, tokens, bodies and errors."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession
from yarl import URL

from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.test_arm_sdk import SUBSCRIPTION
from tests.kit.async_tests import InLoop
from tests.kit.sas import sign

GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/any/providers/Microsoft.ServiceBus"
CONTOSO = f"{GROUP}/namespaces/contoso"
RULES = "topics/t~1/subscriptions/all/rules"
VERSION = "api-version=2026-01-01"


class Manager:
    """A client that sends requests, with a valid token by default."""

    def __init__(self, emulator: Emulator, session: ClientSession) -> None:
        self.emulator = emulator
        self.namespace = emulator.namespaces["contoso"]
        self._session = session
        assert emulator.identity is not None
        token, _ = emulator.bearers.issue(ARM_AUDIENCES[1], emulator.clock.now_ms())
        self.token = f"Bearer {token}"

    async def ask(
        self, method: str, path: str, body: object = None, *, query: str = VERSION, token: str | None = None
    ) -> tuple[int, Any]:
        url = URL(f"http://{self.namespace.authority}{path}?{query}", encoded=True)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {"Authorization": self.token if token is None else token} if token != "" else {}
        async with self._session.request(method, url, data=data, headers=headers) as answer:
            text = await answer.text()
            assert (answer.status == 401) == ("WWW-Authenticate" in answer.headers)
            return answer.status, json.loads(text) if text else None


@asynccontextmanager
async def open_manager(**options: Any) -> AsyncIterator[Manager]:
    async with (
        Emulator([("contoso", 0)], options=EmulatorOptions(identity=True, **options)) as emulator,
        ClientSession() as session,
    ):
        emulator.namespaces["contoso"].create_queue("a/b")
        emulator.namespaces["contoso"].create_topic("t/1").create_subscription("all")
        emulator.namespaces["contoso"].create_queue("t/1/subscriptions/taken")
        yield Manager(emulator, session)


@pytest.fixture
def manager() -> InLoop:
    return InLoop(open_manager)


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "code"),
    [
        ("GET", CONTOSO, "", 400, "MissingApiVersionParameter"),
        ("GET", CONTOSO, "api-version=2024-05", 400, "InvalidApiVersionParameter"),
        ("GET", CONTOSO.replace("0000-0000", "0000"), VERSION, 400, "InvalidSubscriptionId"),
        ("GET", f"{GROUP}/namespaces/fabrikam", VERSION, 404, "ResourceNotFound"),
        ("GET", f"{GROUP}/namespaces/fabrikam/queues/x", VERSION, 404, "ParentResourceNotFound"),
        ("GET", GROUP, VERSION, 404, "InvalidResourceType"),
        ("GET", f"{GROUP}/operations/x", VERSION, 404, "InvalidResourceType"),
        ("GET", f"{GROUP}/CheckNameAvailability", VERSION, 405, "MethodNotAllowed"),
        ("GET", "/providers/Microsoft.ServiceBus/namespaces", VERSION, 400, "InvalidSubscriptionId"),
        ("GET", f"{CONTOSO}/relays", VERSION, 404, "InvalidResourceType"),
        ("GET", f"{CONTOSO}/queues//x", VERSION, 404, "InvalidResourceType"),
        ("GET", f"{CONTOSO}/queues/a~b/rules", VERSION, 404, "InvalidResourceType"),
        ("GET", f"{CONTOSO}/queues/a%2Fb", VERSION, 400, "InvalidResourceName"),
        ("GET", f"{CONTOSO}/queues/a~c", VERSION, 404, "MessagingGatewayNotFoundStatusCode"),
        ("GET", f"{CONTOSO}/topics/a~b", VERSION, 404, "MessagingGatewayNotFoundStatusCode"),
        ("GET", f"{CONTOSO}/topics/none/subscriptions", VERSION, 404, "MessagingGatewayNotFoundStatusCode"),
        ("GET", f"{CONTOSO}/topics/t~1/subscriptions/x/rules", VERSION, 404, "MessagingGatewayNotFoundStatusCode"),
        ("GET", f"{CONTOSO}/queues", f"{VERSION}&$skip=-1", 400, "BadRequest"),
        ("POST", f"{CONTOSO}/queues/a~b/listKeys", VERSION, 404, "InvalidResourceType"),
        ("POST", f"{CONTOSO}/listKeys", VERSION, 404, "InvalidResourceType"),
        ("GET", f"{CONTOSO}/authorizationRules/RootManageSharedAccessKey/listKeys", VERSION, 405, "MethodNotAllowed"),
        ("POST", f"{CONTOSO}/queues/a~b", VERSION, 405, "MethodNotAllowed"),
        ("PUT", f"{CONTOSO}/queues", VERSION, 405, "MethodNotAllowed"),
        ("POST", f"{GROUP}/namespaces", VERSION, 405, "MethodNotAllowed"),
        ("PUT", CONTOSO, VERSION, 400, "InvalidRequestContent"),
        ("PUT", f"{GROUP}/namespaces/fabrikam", VERSION, 404, "ResourceNotFound"),
        ("DELETE", CONTOSO, VERSION, 409, "OperationNotAllowed"),
    ],
)
async def test_unsupported_requests_have_a_code(
    manager: Manager, method: str, path: str, query: str, status: int, code: str
) -> None:
    answered, document = await manager.ask(method, path, query=query)
    assert (answered, document["error"]["code"]) == (status, code)
    assert document["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("queues/x", b"{", 400, "could not be read"),
        ("queues/x", b"[" * 30_000, 400, "could not be read"),
        ("queues/x", [], 400, "not a JSON object"),
        ("queues/x", {"properties": []}, 400, "not a JSON object"),
        ("queues/x", {"properties": None}, 200, ""),
        ("queues/x", b"null", 400, "not a JSON object"),
        ("queues/x", {"properties": [1]}, 400, "not a JSON object"),
        ("queues/x", {"properties": {"maxSize": 1}}, 400, "'maxSize'"),
        ("queues/x", {"properties": {"maxDeliveryCount": "5"}}, 400, "not a whole number"),
        ("queues/x", {"properties": {"maxDeliveryCount": True}}, 400, "not a whole number"),
        ("queues/x", {"properties": {"requiresSession": "true"}}, 400, "not true or false"),
        ("queues/x", {"properties": {"lockDuration": 60}}, 400, "not a string"),
        ("queues/x", {"properties": {"lockDuration": "PT6M"}}, 400, "SubCode=40000. The value of LockDuration"),
        ("queues/x", {"properties": {"maxSizeInMegabytes": 81920}}, 400, "MaxSizeInMegabytes"),
        ("queues/x", {"properties": {"messageCount": 7, "countDetails": None, "lockDuration": None}}, 200, ""),
        ("", {"properties": {"zoneRedundant": "yes"}}, 400, "not true or false"),
        ("", {"sku": {"name": "Premium"}}, 400, "cannot be changed: it is Standard"),
        ("", {"locations": "westeurope"}, 400, "'locations'"),
        ("networkRuleSets/mine", {}, 404, "could not be found"),
        ("disasterRecoveryConfigs/a", {"properties": {"partner": "x"}}, 400, "'partner'"),
        ("queues/x+y", {}, 400, "contains character(s) that is not allowed"),
        ("queues/t~1", {}, 409, "already exists"),
        ("queues/T~1~subscriptions~ALL", {}, 409, "already exists"),
        ("topics/T~1~subscriptions~ALL", {}, 409, "already exists"),
        ("topics/t~1/subscriptions/Taken", {}, 409, "already exists"),
        ("topics/x", {"properties": {"lockDuration": "PT1M"}}, 400, "'lockDuration'"),
        ("topics/t~1/subscriptions/s", {"properties": {"isClientAffine": True}}, 400, "JMS"),
        ("topics/t~1/subscriptions/s", {"properties": {"isClientAffine": False}}, 200, ""),
        (f"{RULES}/r", {"properties": {"filterType": "Other"}}, 400, "filterType"),
        (f"{RULES}/r", {"properties": {"sqlFilter": {"sqlExpression": "a ="}}}, 400, "SubCode"),
        (f"{RULES}/r", {"properties": {"sqlFilter": 1}}, 400, "not a JSON object"),
        (f"{RULES}/r", {"properties": {"correlationFilter": {"x": 1}}}, 400, "'x'"),
        (f"{RULES}/r", {}, 200, ""),
        ("authorizationRules/r", {"properties": {"rights": "Send"}}, 400, "not a list"),
        ("authorizationRules/r", {"properties": {"rights": ["Sing"]}}, 400, "Manage, Send and Listen"),
        ("authorizationRules/r", {"properties": {"rights": ["Send"]}}, 200, ""),
    ],
)
async def test_an_invalid_body_is_refused(manager: Manager, path: str, body: object, status: int, says: str) -> None:
    answered, document = await manager.ask("PUT", f"{CONTOSO}/{path}", body)
    assert answered == status, document
    if status == 200:
        assert document["id"] == f"{CONTOSO}/{path}"
        assert await manager.ask("GET", f"{CONTOSO}/{path}") == (200, document)
    else:
        assert says in document["error"]["message"]


async def test_only_bearer_tokens_are_accepted(manager: Manager) -> None:
    signed = sign(manager.namespace.keys[0], f"https://{manager.namespace.authority}", 2**33)
    for token, code in {
        "": "AuthenticationFailed",
        signed: "AuthenticationFailed",
        "Bearer ": "InvalidAuthenticationToken",
        f"{manager.token}x": "InvalidAuthenticationToken",
    }.items():
        status, document = await manager.ask("GET", f"{CONTOSO}/queues", token=token)
        assert (status, document["error"]["code"]) == (401, code)
        assert "SAS_KEY" not in document["error"]["message"]


async def test_any_well_formed_token_can_be_accepted() -> None:
    async with open_manager(accept_any_token=True) as manager:
        foreign = manager.token.rpartition(".")[0] + ".c2lnbmVk"
        assert (await manager.ask("GET", f"{CONTOSO}/queues", token=foreign))[0] == 200


async def test_types_ignore_case_and_the_resource_group_is_optional(manager: Manager) -> None:
    path = f"/SUBSCRIPTIONS/{SUBSCRIPTION}/RESOURCEGROUPS/X/PROVIDERS/microsoft.servicebus/NAMESPACES/Contoso"
    status, document = await manager.ask("GET", f"{path}/QUEUES/A~B")
    assert (status, document["name"]) == (200, "a~b")
    status, document = await manager.ask("GET", CONTOSO.replace("/resourceGroups/any", ""))
    assert (status, document["name"]) == (200, "contoso")


async def test_management_requests_cost_credits() -> None:
    async with open_manager(credits=10) as manager:
        answered = [await manager.ask("GET", f"{CONTOSO}/queues") for _ in range(3)]
        status, document = answered[-1]
        assert (status, document["error"]["code"]) == (429, "MessagingGatewayTooManyRequests")
        assert answered[0][0] == 200
