"""uamqp: Azure's earlier AMQP client, over azure-uamqp-c. It signs in by a token on $cbs, over TLS."""

import base64
import os
import uuid
from datetime import UTC, datetime
from typing import Any

import uamqp
from lines import serve
from uamqp import authentication, types
from uamqp.address import Source

HOST, PORT, CA_FILE = os.environ["HOST"], int(os.environ["PORT"]), os.environ["CA_FILE"]
FILTER = b"com.microsoft:session-filter"
FIRST, WAIT_MS = 1, 20_000

clients: dict[Any, Any] = {}
deliveries: list[Any] = []


def sign_in(address: str) -> Any:
    return authentication.SASTokenAuth.from_shared_access_key(
        f"sb://{HOST}:{PORT}/{address}", os.environ["KEY_NAME"], os.environ["KEY"], port=PORT, verify=CA_FILE
    )


def client(kind: Any, address: str, terminus: Any = None, **options: Any) -> Any:
    key = (kind, address, str(options.pop("session", None)))
    if key not in clients:
        clients[key] = kind(terminus or f"amqps://{HOST}:{PORT}/{address}", auth=sign_in(address), **options)
    return clients[key]


def send(to: str, body: str, session: str | None = None, at: int | None = None) -> None:
    properties = uamqp.message.MessageProperties(group_id=session) if session else None
    message = uamqp.Message(body.encode(), properties=properties)
    if at:
        message.annotations = {
            types.AMQPSymbol(b"x-opt-scheduled-enqueue-time"): datetime.fromtimestamp(at / 1000, UTC)
        }
    client(uamqp.SendClient, to).send_message(message)


def receive(path: str, **given: str | None) -> dict[str, Any]:
    terminus = Source(f"amqps://{HOST}:{PORT}/{path}")
    if "session" in given:
        terminus.set_filter(given["session"], name=FILTER, descriptor=FILTER)
    receiver = client(uamqp.ReceiveClient, path, terminus, prefetch=FIRST, auto_complete=False, **given)
    (message,) = receiver.receive_message_batch(1, timeout=WAIT_MS)
    deliveries.append((receiver, message))
    return {
        "delivery": len(deliveries) - 1,
        "body": b"".join(message.get_data()).decode(),
        "count": message.header.delivery_count if message.header else 0,
        "session": message.properties and message.properties.group_id and message.properties.group_id.decode(),
        "properties": len(message.application_properties or {}),
    }


def settle(delivery: int, how: str) -> None:
    receiver, message = deliveries[delivery]
    info = {b"DeadLetterReason": "told", b"DeadLetterErrorDescription": "by the client"}
    {
        "accept": message.accept,
        "release": message.release,
        "modify": lambda: message.modify(True, False),
        "defer": lambda: message.modify(False, True),
        "reject": lambda: message.reject(b"com.microsoft:dead-letter", "", info),
    }[how]()
    receiver.do_work()


def value(given: dict[str, Any]) -> Any:
    ((kind, inner),) = given.items()
    return {
        "text": str,
        "int": types.AMQPInt,
        "long": types.AMQPLong,
        "binary": lambda each: bytearray(base64.b64decode(each)),
        "longs": lambda each: types.AMQPArray([types.AMQPLong(one) for one in each]),
        "uuids": lambda each: types.AMQPArray([uuid.UUID(one) for one in each]),
        "maps": lambda each: [{key: value(one) for key, one in entry.items()} for entry in each],
    }[kind](inner)


def request(node: str, properties: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    content = {key: value(each) for key, each in body.items()}
    answer = client(uamqp.AMQPClient, node.removesuffix("/$management"))
    answer.open()
    operation = properties["operation"].encode()
    return answer.mgmt_request(
        uamqp.Message(content),
        operation,
        op_type=b"entity-mgmt",
        node=node.encode(),
        timeout=WAIT_MS,
        callback=lambda status, message, _: {
            "status": status,
            "keys": sorted(k.decode() for k in message.get_data() or {}),
        },
        description_fields=b"statusDescription",
    )


serve({"send": send, "receive": receive, "settle": settle, "request": request})
