"""A program written for the vendor's emulator: its ports, its connection strings and its health check, unchanged.

It prints a line for each step. Run it where the ports 5672 and 5300 are free: it starts the emulator with its argument.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
READY = "Emulator Service is Successfully Up!"


def note(step: object) -> None:
    sys.stdout.write(f"{step}\n")


def administer() -> None:
    with ServiceBusAdministrationClient.from_connection_string(f"Endpoint=sb://localhost:5300;{KEY}") as admin:
        # As the vendor's sample does it: this client always uses HTTPS.
        admin._impl._client._base_url = "http://localhost:5300"
        note(sorted(queue.name for queue in admin.list_queues()))
        admin.create_queue("made", forward_to="queue.1")
        note(admin.get_queue("made").forward_to.endswith("/queue.1"))


def exchange(*, queue: str) -> None:
    with ServiceBusClient.from_connection_string(f"Endpoint=sb://localhost;{KEY}") as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client.get_queue_receiver("queue.1", max_wait_time=5) as receiver:
            for message in receiver:
                note(str(message))
                receiver.complete_message(message)
                break


with subprocess.Popen(
    [sys.executable, "-m", "sbpair", "emulator", "--config-file", sys.argv[1]],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
) as emulator:
    assert emulator.stderr is not None
    try:
        note(any(READY in line for line in emulator.stderr))
        with urllib.request.urlopen("http://localhost:5300/health", timeout=5) as answer:
            note(f"{answer.status} {answer.read().decode()}")
        administer()
        exchange(queue="queue.1")
        exchange(queue="made")
    finally:
        emulator.terminate()
