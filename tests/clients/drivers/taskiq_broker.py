"""The broker for Service Bus of taskiq: it settles by completing only."""

import asyncio
import os
import time
from typing import Any

from lines import serve
from taskiq import BrokerMessage
from taskiq_service_bus import ServiceBusBroker

loop = asyncio.new_event_loop()
brokers: dict[str, Any] = {}
deliveries: list[Any] = []


async def broker(path: str) -> Any:
    if path not in brokers:
        made = ServiceBusBroker(os.environ["CONNECTION_STRING"], path)
        made.is_worker_process = True
        await made.startup()
        brokers[path] = made, made.listen()
    return brokers[path]


async def send(to: str, body: str, at: int | None = None) -> None:
    labels = {"delay": at / 1000 - time.time()} if at else {}
    made, _ = await broker(to)
    await made.kick(BrokerMessage(task_id="1", task_name="task", message=body.encode(), labels=labels))


async def receive(path: str) -> dict[str, Any]:
    _, listening = await broker(path)
    message = await anext(listening)
    deliveries.append(message)
    return {"delivery": len(deliveries) - 1, "body": message.data.decode(), "count": 0}


async def settle(delivery: int, how: str) -> None:
    await {"accept": deliveries[delivery].ack}[how]()


def blocking(operation: Any) -> Any:
    return lambda **arguments: loop.run_until_complete(operation(**arguments))


serve({name: blocking(each) for name, each in {"send": send, "receive": receive, "settle": settle}.items()})
