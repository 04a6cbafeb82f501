"""Who may do what: each operation of each frontend, by the right of a token, by its scope and by its key."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest
from aiohttp import ClientSession, WSServerHandshakeError

from sbpair.amqp.link import LinkAttached, LinkDetached
from sbpair.amqp.performatives import Accepted, Source, Target
from sbpair.amqp.sasl import SaslClient
from sbpair.amqp.types import Map, Symbol
from sbpair.amqp_server.shared_access import ALL_RIGHTS, AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.testing import Emulator
from tests.emulator.atom_client import entry
from tests.emulator.peer import Peer, Stage, plain
from tests.kit.async_tests import InLoop
from tests.kit.sas import sign

SEND, LISTEN, MANAGE = AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE
RIGHTS: Final = {right: ALL_RIGHTS if right is MANAGE else frozenset({right}) for right in AccessRight}


def rules_of(owner: str) -> tuple[AuthorizationRule, ...]:
    """Return a rule for each right, with keys of their own."""
    return tuple(
        AuthorizationRule(f"{owner}-{right}", f"{owner}{right}1", f"{owner}{right}2", rights)
        for right, rights in RIGHTS.items()
    )


class Scope(NamedTuple):
    """A token: the entity whose rule signs it, "" for the namespace; and the path in `sr`."""

    owner: str
    path: str
    allowed: bool


def scopes_of(target: str) -> dict[str, Scope]:
    """Return tokens that cover the target, and others that nearly do."""
    parent = target.partition("/")[0]
    own = target.partition("/subscriptions/")[0]
    return {
        "namespace": Scope("", "", allowed=True),
        "path": Scope("", target, allowed=True),
        "path in capitals": Scope("", target.upper(), allowed=True),
        "path above": Scope("", parent, allowed=True),
        "own key": Scope(own, target, allowed=True),
        "own key in capitals": Scope(own, f"{own.upper()}/", allowed=True),
        "own key for the namespace": Scope(own, "", allowed=False),
        "own key for the path above": Scope(own, parent, allowed=False),
        "path less a letter": Scope("", target[:-1], allowed=False),
        "path and a letter": Scope("", f"{target}2", allowed=False),
        "path below": Scope("", f"{target}/below", allowed=False),
        "other path": Scope("", "other", allowed=False),
        "key of another": Scope("other", "other", allowed=False),
        "key of another for this path": Scope("other", target, allowed=False),
        "key of the entity above": Scope(parent, parent, allowed=False),
        "key of the entity above for this path": Scope(parent, target, allowed=False),
    }


def tokens_for(target: str) -> Iterator[tuple[str, Scope, AccessRight]]:
    """Yield scopes, by name, and rights: elsewhere than on the path itself, a token with all of them says enough."""
    for name, scope in scopes_of(target).items():
        for right in AccessRight if name in ("path", "own key") else (MANAGE,):
            yield name, scope, right


QUEUE, SESSIONS, TOPIC, HYCO = "shop/orders", "shop/sessions", "shop/news", "hub/hyco"
SUBSCRIPTION: Final = f"{TOPIC}/subscriptions/all"


class RightsStage(Stage):
    """A stage with entities whose keys differ, and clients without rights until they present a token."""

    def __init__(self, emulator: Emulator, http: ClientSession) -> None:
        super().__init__(emulator)
        self.http = http
        space = self.namespace
        space.keys = (ROOT_RULE, *rules_of(""))
        for path in ("shop", "shop/order", "shop/orders2", "other"):
            space.create_queue(path, QueueDescription(authorization_rules=rules_of(path)))
        self.restore()
        space.create_queue(SESSIONS, QueueDescription(requires_session=True, authorization_rules=rules_of(SESSIONS)))
        topic = space.create_topic(TOPIC, TopicDescription(authorization_rules=rules_of(TOPIC)))
        topic.create_subscription("all", SubscriptionDescription())
        for path in ("hub", HYCO):
            own = HybridConnectionDescription(authorization_rules=rules_of(path))
            space.hybrid_connections.create(path, own)

    def restore(self) -> None:
        """Create the queue, unless it is there."""
        if self.namespace.find(QUEUE) is None:
            self.namespace.create_queue(QUEUE, QueueDescription(authorization_rules=rules_of(QUEUE)))

    def token(self, scope: Scope, right: AccessRight) -> str:
        rule = next(each for each in rules_of(scope.owner) if each.rights == RIGHTS[right])
        return sign(rule, f"sb://{self.namespace.authority}/{scope.path}", 1 << 40)

    async def put_token(self, peer: Peer, scope: Scope, right: AccessRight, audience: str) -> Map:
        return await peer.ask("$cbs", "put-token", self.token(scope, right), name=f"sb://127.0.0.1/{audience}")

    async def status(self, method: str, path: str, body: str = "", **headers: str) -> int:
        url = f"http://{self.namespace.authority}/{path}"
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, url, data=body, headers=sent) as answer:
            return answer.status


@asynccontextmanager
async def open_rights_stage() -> AsyncIterator[RightsStage]:
    async with Emulator([("contoso", 0)]) as emulator, ClientSession() as http:
        yield RightsStage(emulator, http)


@pytest.fixture
def rights() -> InLoop:
    return InLoop(open_rights_stage)


# Over AMQP: each returns whether it was refused for want of a right.

Refused = Callable[[Peer], Awaitable[bool]]
UNAUTHORIZED: Final = "amqp:unauthorized-access"


async def refused(peer: Peer, link: Any) -> bool:
    """Return whether a link was closed at once for want of a right."""
    # What the emulator has sent before its answer has arrived with it.
    await peer.begin()
    ends = [event for event in peer.events if isinstance(event, LinkDetached) and event.link is link]
    assert {event.error.condition for event in ends} <= {UNAUTHORIZED}, ends
    return bool(ends)


def sender(address: str) -> Refused:
    async def attach(peer: Peer) -> bool:
        return await refused(peer, await peer.attach_sender(address))

    return attach


def receiver(address: str, of: str | None = None) -> Refused:
    async def attach(peer: Peer) -> bool:
        return await refused(peer, await peer.attach_receiver(address, of=of))

    return attach


async def attach_via(peer: Peer, via: str, destination: str) -> Any:
    link = (await peer.begin()).sender("via")
    properties = {Symbol("com.microsoft:transfer-destination-address"): destination}
    link.open(source=Source("peer"), target=Target(via), properties=properties)
    await peer.wait(LinkAttached, of=link)
    return link


def operation(address: str, name: str) -> Refused:
    """Ask a management node. An answer that the arguments are wrong is one to a client that may ask."""

    async def ask(peer: Peer) -> bool:
        node = f"{address}/$management"
        if await refused(peer, await peer.attach_sender(node)):
            return True
        answer = await peer.ask(node, f"com.microsoft:{name}", Map())
        assert (answer["statusCode"] == 401) is (answer.get("errorCondition") == UNAUTHORIZED)
        return bool(answer["statusCode"] == 401)

    return ask


def operations(address: str, right: AccessRight, *names: str) -> dict[str, tuple[AccessRight, Refused]]:
    return {name: (right, operation(address, name)) for name in names}


AMQP: Final[dict[str, dict[str, tuple[AccessRight, Refused]]]] = {
    QUEUE: {
        "send": (SEND, sender(QUEUE)),
        "receive": (LISTEN, receiver(QUEUE)),
        "receive dead letters": (LISTEN, receiver(f"{QUEUE}/$DeadLetterQueue")),
        **operations(QUEUE, LISTEN, "peek-message", "renew-lock", "update-disposition", "receive-by-sequence-number"),
        **operations(QUEUE, LISTEN, "batch-delete-messages"),
        **operations(QUEUE, SEND, "schedule-message", "cancel-scheduled-message"),
    },
    SESSIONS: {
        "receive a session": (LISTEN, receiver(SESSIONS, "a")),
        **operations(SESSIONS, LISTEN, "renew-session-lock", "get-session-state", "set-session-state"),
        **operations(SESSIONS, LISTEN, "get-message-sessions"),
    },
    TOPIC: {"send": (SEND, sender(TOPIC)), **operations(TOPIC, SEND, "schedule-message", "cancel-scheduled-message")},
    SUBSCRIPTION: {
        "receive": (LISTEN, receiver(SUBSCRIPTION)),
        # A receiver of a subscription may change its rules:
        # https://learn.microsoft.com/azure/service-bus-messaging/service-bus-sas
        **operations(SUBSCRIPTION, LISTEN, "add-rule", "remove-rule", "enumerate-rules", "peek-message"),
    },
}


@pytest.mark.parametrize("target", AMQP)
async def test_each_operation_over_amqp_needs_its_right_and_scope(rights: RightsStage, target: str) -> None:
    wrong = []
    for case, scope, right in tokens_for(target):
        async with rights.connect(signed_in=False) as peer:
            # For the target; and for what the token names, in the hope that it opens the target, too.
            for audience in (target, scope.path):
                await rights.put_token(peer, scope, right, audience)
            for name, (needed, try_it) in AMQP[target].items():
                if await try_it(peer) is not (not scope.allowed or needed not in RIGHTS[right]):
                    wrong.append((name, case, right))
    assert wrong == []


async def test_a_refusal_names_the_right_and_the_resource(rights: RightsStage) -> None:
    # https://github.com/Azure/azure-sdk-for-java/issues/27831
    async with rights.connect(signed_in=False) as peer:
        await put_all(rights, peer, {QUEUE: LISTEN})
        error = await peer.refusal_of(peer.attach_sender(QUEUE))
        text = "Unauthorized access. 'Send' claim(s) are required to perform this operation. "
        assert (error.condition, error.description) == (UNAUTHORIZED, f"{text}Resource: 'sb://127.0.0.1/{QUEUE}'.")


# Over HTTP: each returns the status.

AskHttp = Callable[[RightsStage, str], Awaitable[int]]
ATOM_VERSION: Final = "api-version=2021-05"
ARM: Final = f"subscriptions/{UUID(int=1)}/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso"


def atom(method: str, path: str, body: str = "", **headers: str) -> AskHttp:
    async def ask(rights: RightsStage, token: str) -> int:
        status = await rights.status(method, f"{path}?{ATOM_VERSION}", body, Authorization=token, **headers)
        rights.restore()
        return status

    return ask


def websocket(action: str) -> AskHttp:
    async def connect(rights: RightsStage, token: str) -> int:
        url = f"ws://{rights.namespace.authority}/$hc/{HYCO}?sb-hc-action={action}"
        try:
            socket = await rights.http.ws_connect(url, headers={"ServiceBusAuthorization": token})
        except WSServerHandshakeError as error:
            return error.status
        await socket.close()
        return 101

    return connect


def relayed(path: str) -> AskHttp:
    async def ask(rights: RightsStage, token: str) -> int:
        return await rights.status("GET", path, ServiceBusAuthorization=token)

    return ask


HTTP: Final[dict[str, dict[str, tuple[AccessRight, AskHttp]]]] = {
    QUEUE: {
        "read": (MANAGE, atom("GET", QUEUE)),
        "change": (MANAGE, atom("PUT", QUEUE, "no description", If_Match="*")),
        "delete": (MANAGE, atom("DELETE", QUEUE)),
    },
    TOPIC: {"read": (MANAGE, atom("GET", TOPIC)), "list": (MANAGE, atom("GET", f"{TOPIC}/subscriptions"))},
    SUBSCRIPTION: {
        "read": (MANAGE, atom("GET", SUBSCRIPTION)),
        "list rules": (MANAGE, atom("GET", f"{SUBSCRIPTION}/rules")),
        "delete a rule": (MANAGE, atom("DELETE", f"{SUBSCRIPTION}/rules/missing")),
    },
    HYCO: {
        "read": (MANAGE, atom("GET", HYCO, X_PROCESS_AT="ServiceBus")),
        "listen": (LISTEN, websocket("listen")),
        "connect": (SEND, websocket("connect")),
        "request": (SEND, relayed(HYCO)),
        "request below": (SEND, relayed(f"{HYCO}/a/b")),
        "request like a URL": (SEND, relayed(f"{HYCO}/sb://host/other")),
    },
}


@pytest.mark.parametrize("target", HTTP)
async def test_each_operation_over_http_needs_its_right_and_scope(rights: RightsStage, target: str) -> None:
    wrong = []
    for case, scope, right in tokens_for(target):
        for name, (needed, ask) in HTTP[target].items():
            status = await ask(rights, rights.token(scope, right))
            if (status in (401, 403)) is not (not scope.allowed or needed not in RIGHTS[right]):
                wrong.append((name, case, right, status))
    assert wrong == []


@pytest.mark.parametrize("path", ["$Resources/queues", "$Resources/topics", "$namespaceinfo"])
async def test_only_manage_of_the_namespace_lists_its_entities(rights: RightsStage, path: str) -> None:
    list_all = atom("GET", path)
    for right in AccessRight:
        status = await list_all(rights, rights.token(Scope("", "", allowed=True), right))
        assert status == (200 if right is MANAGE else 401)
    for scope in (Scope("", QUEUE, allowed=False), Scope(QUEUE, "", allowed=False), Scope(QUEUE, path, allowed=False)):
        assert await list_all(rights, rights.token(scope, MANAGE)) == 401


async def test_the_key_of_an_entity_creates_none_below_it(rights: RightsStage) -> None:
    create, space = atom("PUT", f"{QUEUE}/new", entry()), rights.namespace
    for path in (QUEUE, f"{QUEUE}/new"):
        assert await create(rights, rights.token(Scope(QUEUE, path, allowed=False), MANAGE)) == 401
    assert space.find(f"{QUEUE}/new") is None
    assert await create(rights, rights.token(Scope("", QUEUE, allowed=True), MANAGE)) == 201


async def test_resource_manager_takes_no_key_of_service_bus(rights: RightsStage) -> None:
    for scope in (Scope("", "", allowed=False), Scope(QUEUE, QUEUE, allowed=False)):
        token = rights.token(scope, MANAGE)
        for header in (token, f"Bearer {token}"):
            assert await rights.status("GET", f"{ARM}/queues?api-version=2021-11-01", Authorization=header) == 401


# Forwarding: to set a target needs a token for it, too

OF_FORWARDS: Final = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}


@pytest.mark.parametrize("element", OF_FORWARDS)
async def test_forwarding_needs_manage_of_both_entities(rights: RightsStage, element: str) -> None:
    forward = atom("PUT", QUEUE, entry(f"<{element}>other</{element}>"), If_Match="*")
    own = rights.token(Scope("", QUEUE, allowed=True), MANAGE)
    whole = rights.token(Scope("", "", allowed=True), MANAGE)
    assert [await forward(rights, token) for token in (own, whole)] == [401, 401]
    for scope, right, status in (
        (Scope("", QUEUE, allowed=True), MANAGE, 401),
        (Scope("", "shop/order", allowed=True), MANAGE, 401),
        (Scope("other", "other", allowed=True), SEND, 401),
        (Scope("other", "other", allowed=True), MANAGE, 200),
        (Scope("", "", allowed=True), MANAGE, 200),
    ):
        header = {OF_FORWARDS[element]: rights.token(scope, right)}
        forward = atom("PUT", QUEUE, entry(f"<{element}>other</{element}>"), If_Match="*", **header)
        assert await forward(rights, own) == status, scope


# Rights that change while links are open


async def put_all(rights: RightsStage, peer: Peer, entities: dict[str, AccessRight]) -> None:
    for entity, right in entities.items():
        assert (await rights.put_token(peer, Scope("", entity, allowed=True), right, entity))["status-code"] == 202


async def test_a_token_with_fewer_rights_ends_the_links_it_forbids(rights: RightsStage) -> None:
    async with rights.connect(signed_in=False) as peer:
        await put_all(rights, peer, {QUEUE: MANAGE, "other": SEND})
        to_queue, to_other = await peer.attach_sender(QUEUE), await peer.attach_sender("other")
        await peer.attach_receiver(QUEUE)
        await put_all(rights, peer, {QUEUE: LISTEN})
        assert (await peer.wait(LinkDetached)).link is to_queue
        await put_all(rights, peer, {QUEUE: MANAGE, "other": MANAGE})
        await peer.send(to_other, plain())
        await peer.send(await peer.attach_sender(QUEUE), plain())
        assert not any(isinstance(event, LinkDetached) for event in peer.events)


async def test_a_send_by_way_of_a_subscription_needs_no_right_on_its_topic(rights: RightsStage) -> None:
    async with rights.connect() as outside, rights.connect(signed_in=False) as peer:
        await outside.send(await outside.attach_sender(TOPIC), plain())
        await put_all(rights, peer, {SUBSCRIPTION: LISTEN, QUEUE: SEND})
        session = await peer.begin()
        control = await peer.attach_coordinator(session=session)
        (delivery,) = await peer.take(await peer.attach_receiver(SUBSCRIPTION, session=session), 1)
        sender, txn_id = await peer.attach_sender(QUEUE, session=session), await peer.declare(control)
        await peer.settle_in(txn_id, delivery)
        await peer.send_in(txn_id, sender, plain())
        assert await peer.discharge(control, txn_id) == Accepted()
    assert [len(rights.namespace.entity(path).messages) for path in (SUBSCRIPTION, QUEUE)] == [0, 1]


async def test_a_refused_token_takes_no_rights_away(rights: RightsStage) -> None:
    async with rights.connect(signed_in=False) as peer:
        await put_all(rights, peer, {QUEUE: SEND})
        link = await peer.attach_sender(QUEUE)
        answer = await rights.put_token(peer, Scope("other", "other", allowed=False), LISTEN, QUEUE)
        assert answer["status-code"] == 401
        await peer.send(link, plain())


async def test_a_new_key_refuses_old_tokens_and_leaves_open_links(rights: RightsStage) -> None:
    # The check is made when a link is opened: https://github.com/Azure/azure-service-bus-dotnet/issues/357
    scope = Scope(QUEUE, QUEUE, allowed=True)
    async with rights.connect(signed_in=False) as peer:
        assert (await rights.put_token(peer, scope, MANAGE, QUEUE))["status-code"] == 202
        link = await peer.attach_sender(QUEUE)
        queue = rights.namespace.queue(QUEUE)
        queue.update(replace(queue.description, authorization_rules=rules_of("new")))
        await peer.send(link, plain())
        refused = await rights.put_token(peer, scope, MANAGE, QUEUE)
        assert refused["status-description"].startswith("InvalidSignature")
        assert await atom("GET", QUEUE)(rights, rights.token(scope, MANAGE)) == 401


async def test_the_key_of_a_sign_in_has_the_rights_of_its_rule(rights: RightsStage) -> None:
    for right in AccessRight:
        rule = next(each for each in rules_of("") if each.rights == RIGHTS[right])
        sign_in = SaslClient("PLAIN", f"\0{rule.key_name}\0{rule.secondary_key}".encode())
        async with rights.connect(sasl=sign_in) as peer:
            assert await sender(QUEUE)(peer) is (right is LISTEN)
            assert await receiver(SUBSCRIPTION)(peer) is (right is SEND)


# Transactions


async def test_sending_via_an_entity_needs_send_of_both(rights: RightsStage) -> None:
    for entities in ({QUEUE: SEND, "other": LISTEN}, {QUEUE: LISTEN, "other": SEND}, {QUEUE: SEND}, {"other": SEND}):
        async with rights.connect(signed_in=False) as peer:
            await put_all(rights, peer, entities)
            assert await refused(peer, await attach_via(peer, QUEUE, "other")), entities


@pytest.mark.parametrize("lost", [QUEUE, "other"])
async def test_sending_via_an_entity_ends_with_either_right(rights: RightsStage, lost: str) -> None:
    async with rights.connect(signed_in=False) as peer:
        await put_all(rights, peer, {QUEUE: SEND, "other": SEND})
        link = await attach_via(peer, QUEUE, "other")
        assert not await refused(peer, link)
        await put_all(rights, peer, {lost: LISTEN})
        assert (await peer.wait(LinkDetached)).error.condition == UNAUTHORIZED


async def test_a_coordinator_needs_no_right_and_gives_none(rights: RightsStage) -> None:
    # Clients declare a transaction before they present their first token.
    async with rights.connect(signed_in=False) as peer:
        control, txn_id = await peer.begin_transaction()
        assert await refused(peer, await peer.attach_sender(QUEUE, session=control.session))
        await put_all(rights, peer, {QUEUE: LISTEN})
        answer = await peer.ask(f"{QUEUE}/$management", "com.microsoft:cancel-scheduled-message", Map(), txn_id=txn_id)
        assert answer["statusCode"] == 401
        assert await peer.discharge(control, txn_id) == Accepted()
