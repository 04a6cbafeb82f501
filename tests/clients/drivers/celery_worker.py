"""A worker of Celery in a thread, with one task, which ends once it is accepted; it acknowledges late."""

import queue
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker
from lines import serve

# The transport's URL is not used, but read.
app = Celery("tasks", broker="azureservicebus://name:key@namespace")
app.conf.update(
    broker_transport="kombu_transport:Transport",
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)
begun: queue.Queue[str] = queue.Queue()
accepted: queue.Queue[int] = queue.Queue()
workers: dict[str, Any] = {}


@app.task(name="wait")
def wait(text: str) -> None:
    begun.put(text)
    accepted.get()


def receive(path: str) -> dict[str, Any]:
    if path not in workers:
        workers[path] = start_worker(app, pool="solo", perform_ping_check=False, queues=path)
        workers[path].__enter__()
    return {"delivery": 0, "body": begun.get(), "count": 0}


serve({
    "send": lambda to, body: wait.apply_async([body], queue=to).id,
    "receive": receive,
    "settle": lambda delivery, how: {"accept": accepted.put}[how](delivery),
})  # fmt: skip
