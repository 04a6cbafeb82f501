"""The published samples of the SDK for Python, sync and aio, their text as it is.

They are fetched from the package registry into a cache and are no part of this project. Two run at a time, each on
entities of its own.
"""

import asyncio
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.registry import PYTHON, Check
from tests.conformance.report import Outcome

VERSION = "7.15.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbpair-tests"
HOOK = Path(__file__).parents[1] / "integration" / "samples_hook"
TREE = "https://github.com/Azure/azure-sdk-for-python/tree/main/sdk/servicebus/azure-servicebus/samples"
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
"""Lines that some of them print only if all went well: they exit 0 whatever happens."""

PATIENT = re.compile("receive_iterator|failure_and_recovery")
"""Those that would listen for ever."""

WITHOUT_IDENTITY = re.compile("authenticate_client_connstr|authenticate_using|generate_sas")
"""Those that do not sign in as a machine does."""


class NotFetched(Exception):
    """The samples are not in the cache, and the package registry cannot be reached."""


def published() -> Path:
    """Return the directory of the samples, fetched if it is not there yet. Raises NotFetched."""
    samples = CACHE / f"azure_servicebus-{VERSION}" / "samples"
    if not samples.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        wanted = ["--no-binary", ":all:", "--no-deps", f"azure-servicebus=={VERSION}"]
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(CACHE), *wanted]
        try:
            subprocess.run(fetch, check=True, capture_output=True, timeout=FETCH_SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            why = "the SDK's samples are not in the cache, and the package registry cannot be reached"
            raise NotFetched(why) from error
        with tarfile.open(CACHE / f"azure_servicebus-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return samples


def lock_of(sample: str) -> timedelta:
    """Return the LockDuration of the entities of a sample."""
    return timedelta(seconds=5 if "lock_renew" in sample else 60)


def environment(
    sample: str, prefix: str, service: Mapping[str, str], identity: Mapping[str, str], *, plain: bool
) -> dict[str, str]:
    """Return the variables that a sample reads. `service` are those of the namespace and its key."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    patience = {"SAMPLE_PATIENCE_SECONDS": "2"} if PATIENT.search(sample) else {}
    return {
        **kept,
        **identity,
        **patience,
        **service,
        "PYTHONPATH": str(HOOK),
        "PYTHONUNBUFFERED": "1",
        "SAMPLE_PLAIN": "1" if plain else "",
        "SERVICEBUS_QUEUE_NAME": f"{prefix}-queue",
        "SERVICEBUS_SESSION_QUEUE_NAME": f"{prefix}-sessions",
        "SERVICEBUS_SESSION_ID": "session",
        "SERVICEBUS_TOPIC_NAME": f"{prefix}-topic",
        "SERVICEBUS_SUBSCRIPTION_NAME": "all",
    }


def problem_of(sample: str, variables: Mapping[str, str]) -> str | None:
    """Run a sample; return its output if it does not end well."""
    try:
        ended = subprocess.run(
            [sys.executable, str(published() / f"{sample}.py")],
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SAMPLE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done within {SAMPLE_SECONDS} s"
    good = ended.returncode == 0 and "Traceback" not in ended.stdout and SAID.get(sample, "") in ended.stdout
    return None if good else f"exit code {ended.returncode}: {ended.stdout}"


async def run_samples(bench: Bench) -> list[Outcome]:
    """Run the samples, those that need an identity only if the environment has one. Raises NotFetched."""
    await asyncio.to_thread(published)
    identity = {name: value for name, value in os.environ.items() if name.startswith(("IDENTITY_", "AZURE_"))}
    wanted = [name for name in SAMPLES if identity or not bench.service.plain or WITHOUT_IDENTITY.search(name)]
    if len(wanted) < len(SAMPLES):
        sys.stderr.write(f"{len(SAMPLES) - len(wanted)} samples need IDENTITY_ENDPOINT: they are not run\n")
    free = asyncio.Semaphore(WORKERS)

    async def run(sample: str) -> Outcome:
        async with free:
            prefix = bench.name()
            await _furnish(bench.admin, sample, prefix)
            variables = environment(sample, prefix, bench.service.sample_variables, identity, plain=bench.service.plain)
            problem = await asyncio.to_thread(problem_of, sample, variables)
        error = None if problem is None else bench.service.redact(problem)
        return Outcome.of(Check("samples", sample.rpartition("/")[2], f"{TREE}/{sample}.py", PYTHON), error)

    return list(await asyncio.gather(*(run(sample) for sample in wanted)))


async def _furnish(admin: Any, sample: str, prefix: str) -> None:
    lock = lock_of(sample)
    await admin.create_queue(f"{prefix}-queue", lock_duration=lock)
    await admin.create_queue(f"{prefix}-sessions", lock_duration=lock, requires_session=True)
    await admin.create_topic(f"{prefix}-topic")
    listed = "list_sessions" in sample
    await admin.create_subscription(f"{prefix}-topic", "all", lock_duration=lock, requires_session=listed)
