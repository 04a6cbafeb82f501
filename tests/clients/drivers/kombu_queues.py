"""Kombu's transport azureservicebus://, on which Celery stands. It settles by completing only."""

from typing import Any

from kombu import Connection
from kombu_transport import Transport
from lines import serve

connection = Connection(transport=Transport, transport_options={"wait_time_seconds": 20})
queues: dict[str, Any] = {}
deliveries: list[Any] = []


def queue(path: str) -> Any:
    if path not in queues:
        queues[path] = connection.SimpleQueue(path)
    return queues[path]


def receive(path: str) -> dict[str, Any]:
    message = queue(path).get(timeout=20)
    deliveries.append(message)
    count = message.delivery_info["azure_message"].delivery_count
    return {"delivery": len(deliveries) - 1, "body": message.payload, "count": count}


serve({
    "send": lambda to, body: queue(to).put(body),
    "receive": receive,
    "settle": lambda delivery, how: {"accept": deliveries[delivery].ack}[how](),
})  # fmt: skip
