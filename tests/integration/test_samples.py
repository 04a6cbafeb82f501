"""The published samples of the Python SDK, sync and aio, their text as it is, on the emulator: they end well.

They are fetched from the package registry into a cache and are no part of this project. Two run at a time, each on
entities of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sbpair.emulator import timespan
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.testing import EmulatorOptions

VERSION = "7.15.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbpair-tests"
HOOK = Path(__file__).parent / "samples_hook"
WORKERS = 2
FETCH_SECONDS = 120
SAMPLE_SECONDS = 150

SYNC = (
    "authenticate_client_connstr", "authenticate_using_azure_named_key_credential",
    "authenticate_using_azure_sas_credential", "auto_lock_renew", "client_identity_authentication",
    "deadletter_messages_and_correct", "failure_and_recovery", "generate_sas_token_and_authenticate_client",
    "list_sessions", "mgmt_queue", "mgmt_rule", "mgmt_subscription", "mgmt_topic", "receive_deadlettered_messages",
    "receive_deferred_message_queue", "receive_iterator_queue", "receive_peek", "receive_queue",
    "receive_subscription", "sample_code_servicebus", "schedule_messages_and_cancellation",
    "schedule_topic_messages_and_cancellation", "send_and_receive_amqp_annotated_message", "send_queue", "send_topic",
    "session_pool_receive", "session_send_receive", "topic_subscription_with_rule_operations",
)  # fmt: skip
SAMPLES = [
    *(f"sync_samples/{name}" for name in SYNC),
    *(
        f"async_samples/{name}_async"
        for name in SYNC
        if name not in {"failure_and_recovery", "generate_sas_token_and_authenticate_client"}
    ),
]
PROXY = "speaks AMQP in WebSockets, through a proxy on a port that its text names"
PLACEHOLDERS = "its text has placeholders where the address and the CA file go"
UNRUN = {
    "sync_samples/proxy": PROXY,
    "async_samples/proxy_async": PROXY,
    "sync_samples/connection_to_custom_endpoint_address": PLACEHOLDERS,
    "async_samples/connection_to_custom_endpoint_address_async": PLACEHOLDERS,
}
SAID = {
    "sync_samples/session_pool_receive": "Received total 200 messages across 10 sessions.",
    "sync_samples/topic_subscription_with_rule_operations": "'3' Messages From Subscription: sb-sqlfilteraction-sub",
    "async_samples/topic_subscription_with_rule_operations_async": "'1' Messages From Subscription: sb-corrfiltersub",
    "sync_samples/auto_lock_renew": "Messages cannot be settled if they have timed out. (This is expected)",
}
"""What some of them say only if all went well: they exit 0 whatever happens."""

PATIENT = re.compile("receive_iterator|failure_and_recovery")
"""Those that would listen for ever."""

pytestmark = pytest.mark.samples


@pytest.fixture(scope="module")
def published() -> Path:
    """The directory of the samples, fetched if it is not there yet."""
    samples = CACHE / f"azure_servicebus-{VERSION}" / "samples"
    if not samples.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        wanted = ["--no-binary", ":all:", "--no-deps", f"azure-servicebus=={VERSION}"]
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(CACHE), *wanted]
        try:
            subprocess.run(fetch, check=True, capture_output=True, timeout=FETCH_SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip("the SDK's samples are not in the cache, and the package registry cannot be reached")
        with tarfile.open(CACHE / f"azure_servicebus-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return samples


class Stage:
    """What a sample needs in its namespace, and in its environment."""

    def __init__(self, running: Any, published: Path) -> None:
        self._running = running
        self._published = published

    def run(self, sample: str) -> subprocess.CompletedProcess[str]:
        name = sample.rpartition("/")[2]
        self._running.do(lambda: self._furnish(name))
        return subprocess.run(
            [sys.executable, str(self._published / f"{sample}.py")],
            env=self._environment(name),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SAMPLE_SECONDS,
            check=False,
        )

    def _furnish(self, name: str) -> None:
        namespace = self._running.namespace
        lock = timespan.parse("PT5S" if "lock_renew" in name else "PT1M")
        namespace.create_queue(f"{name}-queue", QueueDescription(lock_duration=lock))
        with_sessions = QueueDescription(lock_duration=lock, requires_session=True)
        namespace.create_queue(f"{name}-sessions", with_sessions)
        listed = "list_sessions" in name
        topic = namespace.create_topic(f"{name}-topic")
        topic.create_subscription("all", SubscriptionDescription(lock_duration=lock, requires_session=listed))

    def _environment(self, name: str) -> dict[str, str]:
        emulator, rule = self._running.emulator, self._running.namespace.keys[0]
        patience = {"SAMPLE_PATIENCE_SECONDS": "2"} if PATIENT.search(name) else {}
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **emulator.ready.identity.environment,
            **patience,
            "PYTHONPATH": str(HOOK),
            "PYTHONUNBUFFERED": "1",
            "SERVICEBUS_CONNECTION_STR": self._running.connection_string,
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": self._running.namespace.authority,
            "SERVICEBUS_SAS_POLICY": rule.key_name,
            "SERVICEBUS_SAS_KEY": rule.primary_key,
            "SERVICEBUS_QUEUE_NAME": f"{name}-queue",
            "SERVICEBUS_SESSION_QUEUE_NAME": f"{name}-sessions",
            "SERVICEBUS_SESSION_ID": "session",
            "SERVICEBUS_TOPIC_NAME": f"{name}-topic",
            "SERVICEBUS_SUBSCRIPTION_NAME": "all",
        }


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, another: Any, published: Path) -> Iterator[dict[str, Future[Any]]]:
    """All samples that were asked for, under way."""
    wanted = [
        item.callspec.params["sample"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    with another(options=EmulatorOptions(identity=True)) as running, ThreadPoolExecutor(WORKERS, "samples") as pool:
        stage = Stage(running, published)
        yield {sample: pool.submit(stage.run, sample) for sample in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_published_sample_ends_well(runs: dict[str, Future[Any]], sample: str) -> None:
    ended = runs[sample].result(len(SAMPLES) * SAMPLE_SECONDS)
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout, ended.stdout
    assert SAID.get(sample, "") in ended.stdout, ended.stdout


def test_every_published_sample_is_run_or_there_is_a_reason(published: Path) -> None:
    there = {f"{path.parent.name}/{path.stem}" for path in published.glob("*/*.py")}
    assert there == {*SAMPLES, *UNRUN}
