"""The broker for Service Bus of FastStream."""

import asyncio
import os
from datetime import UTC, datetime
from typing import Any

from faststream_azure_servicebus import ServiceBusBroker
from lines import serve

loop = asyncio.new_event_loop()
broker = ServiceBusBroker(os.environ["CONNECTION_STRING"], logger=None)
loop.run_until_complete(broker.start())
subscribers: dict[Any, Any] = {}
deliveries: list[Any] = []


async def send(to: str, body: str, session: str | None = None, at: int | None = None) -> None:
    due = datetime.fromtimestamp(at / 1000, UTC) if at else None
    await broker.publish(body, to, session_id=session, scheduled_enqueue_time=due)


async def receive(path: str) -> dict[str, Any]:
    if path not in subscribers:
        subscribers[path] = broker.subscriber(path)
        await subscribers[path].start()
    message = None
    while message is None:
        message = await subscribers[path].get_one(timeout=20)
    deliveries.append(message)
    return {"delivery": len(deliveries) - 1, "body": message.body.decode(), "count": message.delivery_count}


async def settle(delivery: int, how: str) -> None:
    message = deliveries[delivery]
    if how == "reject":
        await message.reject("told", "by the client")
    else:
        await {"accept": message.ack, "modify": message.nack, "defer": message.defer}[how]()


def blocking(operation: Any) -> Any:
    return lambda **arguments: loop.run_until_complete(operation(**arguments))


serve({name: blocking(each) for name, each in {"send": send, "receive": receive, "settle": settle}.items()})
