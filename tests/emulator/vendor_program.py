"""A program written for the vendor's emulator: its ports, its connection strings and its health check, unchanged.

Its arguments are a command that starts the emulator, where the ports 5672 and EMULATOR_HTTP_PORT [5300] are free. It
prints a line for each step. BESIDE may be the words of another program to run beside it, as JSON.
"""

import json
import os
import subprocess
import sys
import urllib.request

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
HTTP_PORT = os.environ.get("EMULATOR_HTTP_PORT", "5300")
BESIDE = json.loads(os.environ.get("BESIDE", "[]"))
READY = "Emulator Service is Successfully Up!"


def note(step: object) -> None:
    sys.stdout.write(f"{step}\n")


def administer() -> None:
    with ServiceBusAdministrationClient.from_connection_string(f"Endpoint=sb://localhost:{HTTP_PORT};{KEY}") as admin:
        # As the vendor's sample does it: this client always uses HTTPS.
        admin._impl._client._base_url = f"http://localhost:{HTTP_PORT}"
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


command = sys.argv[1:]
with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as emulator:
    assert emulator.stderr is not None
    try:
        note(any(READY in line for line in emulator.stderr))
        with urllib.request.urlopen(f"http://localhost:{HTTP_PORT}/health", timeout=5) as answer:
            note(f"{answer.status} {answer.read().decode()}")
        administer()
        exchange(queue="queue.1")
        exchange(queue="made")
        if BESIDE:
            done = subprocess.run(BESIDE, check=False, capture_output=True, text=True)
            note(f"{done.stdout}{done.returncode}")
    finally:
        emulator.terminate()
        emulator.communicate()
note(emulator.returncode)
