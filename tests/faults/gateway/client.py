"""The client for Python of a campaign, as a process. Those for JavaScript and Go have the same protocol.

The argument is a JSON document: `send` lists queues with a session, the number of the first message, how many (0 for
all until the end) and the seconds between two; `receive` lists queues. Each message follows from its number. The client
prints a JSON line for each message that it has `sent`, `received` or `completed`, and for each error. A line on stdin
ends it.
"""

import asyncio
import json
import logging
import os
import sys
from contextlib import suppress
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

SHAPES: Final = 4
ERRORS: Final = (ServiceBusError, OSError, ValueError)
"""The last is of a receiver that has shut itself down."""

BATCH, BATCH_EVERY = 3, 7
RECEIVED: Final = ("session_id", "subject", "content_type", "correlation_id", "reply_to", "to")


def name(number: int) -> str:
    return f"py-{number:08d}"


def message(number: int, session: str | None) -> ServiceBusMessage:
    text = f"{name(number)} " * (1 + 40 * (number % SHAPES))
    shapes: list[dict[str, Any]] = [
        {},
        {
            "application_properties": {"number": 7, "ratio": 0.5, "yes": True, "text": "grüß"},
            "subject": "subject",
            "content_type": "application/json",
        },
        {"correlation_id": "correlation", "reply_to": "reply", "to": "to"},
        {"application_properties": {"empty": "", "bytes": b"\x00\x7f"}},
    ]
    return ServiceBusMessage(text, message_id=name(number), session_id=session or None, **shapes[number % SHAPES])


def is_same(received: Any) -> bool:
    wanted = message(int(str(received.message_id)[3:]), received.session_id)
    # This client receives the names of properties as bytes.
    properties = {key.decode(): _text(value) for key, value in (received.application_properties or {}).items()}
    return (
        str(received) == str(wanted)
        and properties == {key: _text(value) for key, value in (wanted.application_properties or {}).items()}
        and all(getattr(received, each) == getattr(wanted, each) for each in RECEIVED)
    )


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def report(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Client:
    def __init__(self, client: ServiceBusClient) -> None:
        self._client = client
        self._stopped = asyncio.Event()

    async def run(self, wanted: dict[str, Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in wanted["send"]:
                tasks.create_task(self._send(**each))
            for queue in wanted["receive"]:
                tasks.create_task(self._receive(queue))
            waiting = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            if any(not each["count"] for each in wanted["send"]) or wanted["receive"]:
                await waiting
            self._stopped.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    async def _send(self, queue: str, session: str, first: int, count: int, gap: float) -> None:
        number = first
        async with self._client.get_queue_sender(queue) as sender:
            while number < first + count if count else not self._stopped.is_set():
                size = BATCH if number % BATCH_EVERY == 0 and not count else 1
                messages = [message(each, session) for each in range(number, number + size)]
                while not await self._sent(sender, messages):
                    await self._pause(0.1)
                    if self._stopped.is_set():
                        return
                for each in messages:
                    report(sent=each.message_id, queue=queue, session=session)
                number += size
                await self._pause(gap)

    async def _sent(self, sender: Any, messages: list[ServiceBusMessage]) -> bool:
        try:
            await sender.send_messages(messages[0] if len(messages) == 1 else messages)
        except ERRORS as error:
            report(failed=messages[0].message_id, error=repr(error))
            return False
        return True

    async def _receive(self, queue: str) -> None:
        while not self._stopped.is_set():
            try:
                async with self._client.get_queue_receiver(queue) as receiver:
                    while not self._stopped.is_set():
                        for each in await receiver.receive_messages(20, max_wait_time=1):
                            await self._complete(receiver, each)
            except ERRORS as error:
                report(failed="receive", error=repr(error))
                await self._pause(0.1)

    async def _complete(self, receiver: Any, received: Any) -> None:
        report(received=received.message_id, same=is_same(received), sequence=received.sequence_number)
        # This client does not wait for the answer: nothing is reported as completed.
        with suppress(*ERRORS):
            await receiver.complete_message(received)


async def main() -> None:
    logging.disable(logging.CRITICAL)
    async with ServiceBusClient.from_connection_string(os.environ["CONNECTION_STRING"]) as client:
        await Client(client).run(json.loads(sys.argv[1]))


if __name__ == "__main__":
    asyncio.run(main())
    # The thread that reads from stdin may wait for ever.
    os._exit(0)
