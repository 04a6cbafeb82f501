"""Azure's client for Python. Before version 7.9 it stands on uamqp and knows no emulator: it speaks TLS."""

import os
from datetime import UTC, datetime
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient
from lines import serve

TYPES = {int: "int", float: "double", bool: "boolean", str: "string"}
plain, over = os.environ["CONNECTION_STRING"], os.environ["TRANSPORT"]
over_tls = plain.replace(";UseDevelopmentEmulator=true", "")
trusting = {"connection_verify": os.environ["CA_FILE"]}
own_port: dict[str, Any] = {
    "custom_endpoint_address": f"sb://{os.environ['HOST']}:{os.environ['PORT']}",
    "transport_type": TransportType.AmqpOverWebsocket if over == "websocket" else TransportType.Amqp,
    **trusting,
}
in_clear = over == "tcp"
bus = ServiceBusClient.from_connection_string(plain if in_clear else over_tls, **({} if in_clear else own_port))
admin = ServiceBusAdministrationClient.from_connection_string(over_tls, **trusting)
links: dict[Any, Any] = {}
deliveries: list[Any] = []


def link(make: Any, path: str, **options: Any) -> Any:
    key = (make.__name__, path, str(options))
    if key not in links:
        links[key] = make(path, **options)
    return links[key]


def send(to: str, body: str, session: str | None = None, at: int | None = None) -> None:
    message = ServiceBusMessage(body, session_id=session)
    if at:
        message.scheduled_enqueue_time_utc = datetime.fromtimestamp(at / 1000, UTC)
    link(bus.get_queue_sender, to).send_messages(message)


def receiver_of(path: str, given: dict[str, str | None]) -> Any:
    queue, _, dead = path.partition("/$")
    options: dict[str, Any] = {"sub_queue": "deadletter"} if dead else {}
    if "session" in given:
        options["session_id"] = given["session"] or NEXT_AVAILABLE_SESSION
    return link(bus.get_queue_receiver, queue, **options)


def receive(path: str, **given: str | None) -> dict[str, Any]:
    receiver = receiver_of(path, given)
    (message,) = receiver.receive_messages(1, max_wait_time=20)
    deliveries.append((receiver, message))
    return {
        "delivery": len(deliveries) - 1,
        "body": str(message),
        "count": message.delivery_count,
        "session": message.session_id,
        "properties": len(message.application_properties or {}),
        "ttl": message.time_to_live and message.time_to_live.total_seconds() * 1000,
        "partition": (message.raw_amqp_message.annotations or {}).get(b"x-opt-partition-id"),
    }


def browse(path: str, count: int) -> list[str]:
    return [str(message) for message in receiver_of(path, {}).peek_messages(count)]


def get_state(delivery: int) -> str | None:
    state = deliveries[delivery][0].session.get_state()
    return state and state.decode()


def set_state(delivery: int, state: str | None) -> None:
    deliveries[delivery][0].session.set_state(state)


def settle(delivery: int, how: str) -> None:
    receiver, message = deliveries[delivery]
    if how == "reject":
        receiver.dead_letter_message(message, reason="told", error_description="by the client")
    else:
        settles = {"accept": "complete_message", "modify": "abandon_message", "defer": "defer_message"}
        getattr(receiver, settles[how])(message)


def delete_queue(name: str) -> None:
    admin.delete_queue(name)


def has_subscription(topic: str, name: str) -> bool:
    try:
        return bool(admin.get_subscription(topic, name).name == name)
    except ResourceNotFoundError:
        return False


def rule(topic: str, subscription: str, name: str) -> dict[str, str]:
    return {key: TYPES[type(each)] for key, each in admin.get_rule(topic, subscription, name).filter.properties.items()}


serve({
    "send": send,
    "receive": receive,
    "settle": settle,
    "browse": browse,
    "get-state": get_state,
    "set-state": set_state,
    "create-queue": lambda name: admin.create_queue(name).name,
    "delete-queue": delete_queue,
    "list-queues": lambda: [queue.name for queue in admin.list_queues()],
    "has-subscription": has_subscription,
    "rule": rule,
})  # fmt: skip
