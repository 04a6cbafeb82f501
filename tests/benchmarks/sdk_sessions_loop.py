"""The usual loop of the official client for sessions: lock the next, receive, send a batch, complete each message.

python sdk_sessions_loop.py SOURCE DESTINATION
"""

import os
import sys

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import OperationTimeoutError
from sdk_loop import BATCH, IDLE_SECONDS, send


def copied(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
    return ServiceBusMessage(
        b"".join(message.body),
        application_properties=message.application_properties,
        session_id=message.session_id,
        message_id=message.message_id,
        content_type=message.content_type,
    )


def main(source: str, destination: str) -> None:
    opened = ServiceBusClient.from_connection_string
    with (
        opened(os.environ["SBPAIR_PRIMARY_CONNECTION_STRING"]) as primary,
        opened(os.environ["SBPAIR_SECONDARY_CONNECTION_STRING"], retry_total=0) as secondary,
        primary.get_queue_sender(destination) as sender,
    ):
        while True:
            try:
                receiver = secondary.get_queue_receiver(
                    source, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=IDLE_SECONDS
                )
                with receiver:
                    while received := receiver.receive_messages(max_message_count=BATCH, max_wait_time=IDLE_SECONDS):
                        send(sender, list(map(copied, received)))
                        for message in received:
                            receiver.complete_message(message)
            except OperationTimeoutError:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
