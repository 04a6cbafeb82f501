"""The published samples of the Python SDK, sync and aio, their text as it is, on the emulator: they end well."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.testing import EmulatorOptions
from sbpair.timespan import TICKS_PER_SECOND
from tests.conformance import samples
from tests.conformance.bench import Service

pytestmark = pytest.mark.samples


@pytest.fixture(scope="module")
def published() -> Path:
    """The directory of the samples."""
    try:
        return samples.published()
    except samples.NotFetched as error:
        pytest.skip(str(error))


class Stage:
    """The entities of a sample in its namespace, and its environment."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self._service = Service.read(running.connection_string)
        self._identity = running.emulator.ready.identity.environment

    def run(self, sample: str) -> str | None:
        prefix = sample.replace("/", "-")
        self._running.do(lambda: self._furnish(sample, prefix))
        variables = samples.environment(sample, prefix, self._service.sample_variables, self._identity, plain=True)
        return samples.problem_of(sample, variables)

    def _furnish(self, sample: str, prefix: str) -> None:
        namespace = self._running.namespace
        lock = int(samples.lock_of(sample).total_seconds()) * TICKS_PER_SECOND
        namespace.create_queue(f"{prefix}-queue", QueueDescription(lock_duration=lock))
        with_sessions = QueueDescription(lock_duration=lock, requires_session=True)
        namespace.create_queue(f"{prefix}-sessions", with_sessions)
        listed = "list_sessions" in sample
        topic = namespace.create_topic(f"{prefix}-topic")
        topic.create_subscription("all", SubscriptionDescription(lock_duration=lock, requires_session=listed))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, another: Any, published: Path) -> Iterator[dict[str, Future[Any]]]:
    """All samples that were asked for, under way."""
    del published
    wanted = [
        item.callspec.params["sample"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    with (
        another(options=EmulatorOptions(identity=True)) as running,
        ThreadPoolExecutor(samples.WORKERS, "samples") as pool,
    ):
        stage = Stage(running)
        yield {sample: pool.submit(stage.run, sample) for sample in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("sample", samples.SAMPLES)
def test_a_published_sample_ends_well(runs: dict[str, Future[Any]], sample: str) -> None:
    assert runs[sample].result(len(samples.SAMPLES) * samples.SAMPLE_SECONDS) is None


def test_every_published_sample_is_run_or_there_is_a_reason(published: Path) -> None:
    there = {f"{path.parent.name}/{path.stem}" for path in published.glob("*/*.py")}
    assert there == {*samples.SAMPLES, *samples.UNRUN}
