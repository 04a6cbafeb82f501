"""The texts of errors that public sources quote from the service, over real sockets."""

from typing import Any

import pytest

from sbpair.amqp.message import Properties, data_body
from sbpair.amqp.performatives import Rejected
from sbpair.amqp.types import Int, Long, Map
from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.timespan import TICKS_PER_SECOND
from tests.emulator.atom_client import open_manager, sub_code
from tests.emulator.peer import Peer, Stage
from tests.kit.sas import sign

ISSUES = "https://github.com/"
NOT_SESSIONFUL = "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
SESSIONFUL = (
    "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure "
    "RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior."
)
NO_SESSION_ID = (
    "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have session support "
    "enabled can only receive messages that have the SessionId set to a valid value."
)
DISABLED = (
    "Messaging entity 'ENDPOINT/orders' is currently disabled. "
    "For more information please see https://aka.ms/ServiceBusExceptions ."
)
LOCK_LOST = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue, "
    "or was received by a different receiver instance."
)


LINKS = [
    # (source, description, session: None for none, text, condition)
    ("Azure/azure-service-bus/issues/326", {"requires_session": True}, None, NOT_SESSIONFUL, "amqp:not-allowed"),
    ("vdesabou/kafka-docker-playground/issues/7949", {}, "s", SESSIONFUL, "amqp:not-allowed"),
    (
        "Azure/azure-sdk-for-js/issues/7618", {"requires_session": True}, "held",
        "The requested session 'held' cannot be accepted. It may be locked by another receiver.",
        "com.microsoft:session-cannot-be-locked",
    ),
    (
        "Azure/azure-service-bus/issues/677", {"status": "ReceiveDisabled"}, None, DISABLED,
        "com.microsoft:entity-disabled",
    ),
    (
        "Azure/azure-service-bus-dotnet/issues/626", {"forward_to": "other"}, None,
        "Cannot create a message receiver on an entity with auto-forwarding enabled.", "amqp:not-allowed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "properties", "session", "text", "condition"), LINKS)
async def test_a_refused_receiver_has_the_services_text(
    stage: Stage, source: str, properties: dict[str, Any], session: str | None, text: str, condition: str
) -> None:
    stage.namespace.delete_queue("orders")
    queue = stage.namespace.create_queue("orders", QueueDescription(**properties))
    if session == "held":
        queue.messages.accept("held")
    async with stage.connect() as peer:
        error = await peer.refusal_of(peer.attach_receiver("orders", of=session))
    wanted = text.replace("ENDPOINT", stage.namespace.endpoint)
    assert (error.condition, error.description) == (condition, wanted), ISSUES + source


async def test_a_sender_is_refused_with_the_services_text(peer: Peer) -> None:
    # https://github.com/Azure/azure-sdk-for-net/issues/10535
    peer.stage.namespace.create_queue("closed", QueueDescription(status="SendDisabled"))
    error = await peer.refusal_of(peer.attach_sender("closed"))
    assert error.description == "Messaging entity 'contoso:Queue:closed' is currently disabled for Send operations."


async def test_a_refused_message_has_the_services_text(peer: Peer) -> None:
    # https://github.com/Azure/azure-service-bus/issues/289 and https://github.com/Azure/azure-service-bus/issues/683
    peer.stage.namespace.create_queue("sessions", QueueDescription(requires_session=True))
    full = peer.stage.namespace.create_queue("full", QueueDescription(max_size_in_megabytes=0))
    (unnamed,) = await peer.send(await peer.attach_sender("sessions"), data_body(b"x"))
    (refused,) = await peer.send(await peer.attach_sender("full"), data_body(b"x"))
    assert isinstance(unnamed.state, Rejected)
    assert (unnamed.state.error.condition, unnamed.state.error.description) == ("amqp:not-allowed", NO_SESSION_ID)
    assert isinstance(refused.state, Rejected)
    assert refused.state.error.condition == "amqp:resource-limit-exceeded"
    assert refused.state.error.description == (
        "The maximum entity size has been reached or exceeded for Queue: 'contoso:Queue:full'. Size of entity in "
        "bytes:0, Max entity size in bytes:0. For more information please see https://aka.ms/ServiceBusExceptions . "
        "QuotaType: EntitySize"
    )
    assert full.counts().total == 0


async def test_refused_tokens_have_the_services_texts(stage: Stage) -> None:
    # https://github.com/Azure/azure-service-bus-java/issues/354, /423, and sandrinodimattia/RedDog/issues/4
    (rule,) = stage.namespace.keys
    wrong = AuthorizationRule(rule.key_name, "wrong", "wrong")
    tokens = {
        sign(wrong, "sb://h/orders", 1 << 40): "InvalidSignature: The token has an invalid signature.",
        sign(rule, "sb://h/orders", 1_555_017_176): (
            "ExpiredToken: The token is expired. Expiration time: '2019-04-11 21:12:56Z'."
        ),
        sign(rule, "sb://h/other", 1 << 40): (
            "InvalidAudience: The authorization header contains a token with a wrong audience."
        ),
        "SharedAccessSignature sr=x": "MalformedToken: The credentials contained in the authorization header are not",
        "eyJ0eXAiOiJKV1QifQ.e30.x": "MalformedToken: ",
    }
    for token, text in tokens.items():
        async with stage.connect(signed_in=False) as peer:
            reply = await peer.ask("$cbs", "put-token", token, name="sb://h/orders", type="jwt")
        assert (reply["status-code"], reply["status-description"].startswith(text)) == (401, True), reply
        assert "error-condition" not in reply


async def test_a_refused_request_has_the_services_text(stage: Stage) -> None:
    # https://github.com/Azure/azure-sdk-for-net/issues/27130, Azure/azure-service-bus/issues/415 and /287
    space = stage.namespace
    space.create_queue("first", QueueDescription(forward_to="orders"))
    parts = space.create_queue("parts", QueueDescription(enable_partitioning=True))
    space.create_queue("sessions", QueueDescription(requires_session=True))
    parts.send([StoredMessage(b"", 1, partition_key="a")])
    numbers = [Long(1 << 48 | 1), Long(2 << 48 | 1)]
    schedule = Map([("messages", [Map([("message", data_body(b"x"))])])])
    peek = Map([("from-sequence-number", Long(1)), ("message-count", Int(1))])
    browser = "Cannot create a message browser on an entity with auto-forwarding enabled."
    session = "The session lock has expired on the MessageSession. Accept a new MessageSession."
    unlocked = "Failed to lock one or more specified messages. Either the message is already locked or does not exist."
    partitions = (
        "ReceiveBatch of sequence numbers from different partitions is not supported for an entity with partitioning "
        "enabled."
    )
    requests: list[tuple[str, str, Map, int, str, str]] = [
        ("first", "peek-message", peek, 400, "amqp:not-allowed", browser),
        ("first", "schedule-message", schedule, 400, "amqp:not-allowed", browser),
        (
            "sessions", "renew-session-lock", Map([("session-id", "s")]), 410, "com.microsoft:session-lock-lost",
            session,
        ),
        (
            "orders", "receive-by-sequence-number", Map([("sequence-numbers", [Long(9)])]), 404,
            "com.microsoft:message-not-found", unlocked,
        ),
        (
            "parts", "receive-by-sequence-number", Map([("sequence-numbers", numbers)]), 400, "amqp:not-allowed",
            partitions,
        ),
    ]  # fmt: skip
    for entity, operation, body, status, condition, text in requests:
        async with stage.connect() as peer:
            reply = await peer.ask(f"{entity}/$management", f"com.microsoft:{operation}", body)
        assert (reply["statusCode"], reply["errorCondition"], reply["statusDescription"]) == (status, condition, text)


async def test_a_late_settlement_has_the_services_text(peer: Peer) -> None:
    await peer.send(await peer.attach_sender("orders"), Properties(message_id="m").encode() + data_body(b"x"))
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    peer.stage.emulator.advance(peer.stage.queue.description.lock_duration // TICKS_PER_SECOND * 1000)
    answer = await peer.settle(delivery)
    assert isinstance(answer.state, Rejected)
    assert (answer.state.error.condition, answer.state.error.description) == (
        "com.microsoft:message-lock-lost",
        LOCK_LOST,
    )


MANAGEMENT = [
    (
        "ballerina-platform/ballerina-library/issues/6573", "orders", "", 409, 40900,
        ("SubCode=40900. Conflict. You're requesting an operation that isn't allowed in the resource's current state. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions. . TrackingId:"),
    ),
    (
        "Azure/azure-cli/issues/31702", "a", "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes>", 400, 40000,
        ("SubCode=40000. The specified value 81920 is invalid. The property MaxSizeInMegabytes, must be one of the "
        "following values: 1024;2048;3072;4096;5120. To know more visit https://aka.ms/sbResourceMgrExceptions. "),
    ),
    (
        "hashicorp/terraform-provider-azurerm/issues/28576", "a",
        "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>", 400, 40000,
        "SubCode=40000. Bad Request. To know more visit https://aka.ms/sbResourceMgrExceptions.",
    ),
    (
        "MassTransit/MassTransit/issues/1929", "a~b", "", 400, 40000,
        ("contains character(s) that is not allowed by Service Bus. Entity segments can contain only letters, numbers, "
        "periods (.), hyphens (-), and underscores (_). To know more visit https://aka.ms/sbResourceMgrExceptions."),
    ),
    (
        "Azure/azure-service-bus/issues/203", "a", "<ForwardTo>Nowhere</ForwardTo>", 400, 40400,
        "SubCode=40400. The auto forwarding destination entity 'Nowhere' does not exist.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "path", "elements", "status", "code", "text"), MANAGEMENT)
async def test_a_refused_description_has_the_services_text(
    source: str, path: str, elements: str, status: int, code: int, text: str
) -> None:
    async with open_manager() as manager:
        manager.namespace.create_queue("orders")
        answered, body = await manager.put(path, elements)
    assert (answered, sub_code(body)) == (status, code), body
    assert text in body.replace("&#x27;", "'"), ISSUES + source
