"""The usual loop with the official client for Python: receive, send a batch to each destination, complete each message.

It restores the aliases as far as that client can. python sdk_loop.py QUEUE …
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

BATCH = 100
IDLE_SECONDS = 1
PATH, SESSION_ID, TTL, SCHEDULED = b"x-ms-path", b"x-ms-sessionid", b"x-ms-timetolive", b"x-ms-scheduledenqueuetimeutc"
ALIASES = (PATH, SESSION_ID, TTL, SCHEDULED)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def restore(message: ServiceBusReceivedMessage) -> tuple[str, ServiceBusMessage]:
    """Return the destination of a message, and the message restored."""
    own: dict[Any, Any] = message.application_properties or {}
    session_id, ttl, scheduled = own.get(SESSION_ID), own.get(TTL), own.get(SCHEDULED)
    made = ServiceBusMessage(
        b"".join(message.body),
        application_properties={key: value for key, value in own.items() if key not in ALIASES},
        session_id=session_id.decode() if session_id is not None else None,
        time_to_live=timedelta(microseconds=int(ttl) // 10) if ttl is not None else None,
        scheduled_enqueue_time_utc=EPOCH + timedelta(milliseconds=int(scheduled)) if scheduled is not None else None,
        message_id=message.message_id,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
    )
    return own[PATH].decode(), made


def send(sender: Any, messages: list[ServiceBusMessage]) -> None:
    batch = sender.create_message_batch()
    for message in messages:
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            sender.send_messages(batch)
            batch = sender.create_message_batch()
            batch.add_message(message)
    sender.send_messages(batch)


def drain(receiver: Any, primary: ServiceBusClient, senders: dict[str, Any]) -> None:
    while received := receiver.receive_messages(max_message_count=BATCH, max_wait_time=IDLE_SECONDS):
        by_destination: dict[str, list[ServiceBusMessage]] = {}
        for message in received:
            destination, made = restore(message)
            by_destination.setdefault(destination, []).append(made)
        for destination, messages in by_destination.items():
            if destination not in senders:
                senders[destination] = primary.get_queue_sender(destination)
            send(senders[destination], messages)
        for message in received:
            receiver.complete_message(message)


def main(queues: list[str]) -> None:
    senders: dict[str, Any] = {}
    opened = ServiceBusClient.from_connection_string
    with (
        opened(os.environ["SBPAIR_PRIMARY_CONNECTION_STRING"]) as primary,
        opened(os.environ["SBPAIR_SECONDARY_CONNECTION_STRING"]) as secondary,
    ):
        for queue in queues:
            with secondary.get_queue_receiver(queue) as receiver:
                drain(receiver, primary, senders)
        for sender in senders.values():
            sender.close()


if __name__ == "__main__":
    main(sys.argv[1:])
