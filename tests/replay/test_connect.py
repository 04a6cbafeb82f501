"""Replays through Spark Connect, whose server runs the tasks. The driver has no Java."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.replay import driver, task_lease
from sbpair.replay import spark as spark_module
from sbpair.replay.archive import LEASE
from sbpair.replay.run_description import DedupMode, ReplayOptions, ReplaySelection
from sbpair.replay.task_lease import end_detached_tasks, hold_leases
from tests.kit.installed import install, outside
from tests.replay.cluster import connect_server
from tests.replay.replays import OPTIONS, end, nothing_is_lost, replay
from tests.replay.segments import created
from tests.replay.world import HASTY, World, world

MESSAGES = 3_000
SLOW_RATE = 150.0
"""Messages a second, so that the tasks of a killed driver have some left once they stop."""

NO_JAVA = {"JAVA_HOME": "/nonexistent"}


@pytest.mark.parametrize(
    "url", ["sc://host", "sc://host:15002", "sc://host:15002/", "sc://[::1]:5/;use_ssl=true;user_id=me"]
)
def test_the_url_of_a_server_is_accepted_and_named_without_parameters(url: str) -> None:
    spark_module.check_remote(url, shown=True)
    assert spark_module.server_name(url) in {"sc://host:15002", "sc://[::1]:5"}


@pytest.mark.parametrize("url", ["", "local[2]", "sc://", "host:15002", "sc://me@host", "spark://host:7077"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(errors.UsageError, match=r"^--remote is not the URL of a Spark Connect server$"):
        spark_module.check_remote(url, shown=True)


@pytest.mark.parametrize("name", ["token", "Token", "x-api-key"])
def test_a_secret_is_refused_as_argument_and_not_repeated(name: str) -> None:
    url = f"sc://host:443/;use_ssl=true;{name}=nobody-may-see"
    with pytest.raises(errors.UsageError, match=f"^--remote has {name.lower()}, and other users") as refused:
        spark_module.check_remote(url, shown=True)
    assert "nobody-may-see" not in f"{refused.value.message} {refused.value.hint}"
    spark_module.check_remote(url, shown=False)
    assert spark_module.server_name(url) == "sc://host:443"


def test_a_request_does_not_show_the_url(place: World, tmp_path: Path) -> None:
    request = place.request(tmp_path, remote="sc://host/;token=nobody-may-see")
    assert "nobody-may-see" not in repr(request)
    with pytest.raises(errors.Unsafe, match="a directory of this machine, and sc://host:15002 runs on others"):
        request.check()
    replace(request, shared_archive=True).check()


def test_a_server_that_does_not_answer_is_named_and_no_run_is_left(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_lease, "HEARTBEAT_SECONDS", 0.0)
    request = place.request(tmp_path, remote="sc://127.0.0.1:1", shared_archive=True)
    with pytest.raises(errors.MachineLacks, match=r"no Spark answers at sc://127\.0\.0\.1:1: "):
        driver.start_run(request, ReplayOptions(), place.queues, lambda _event: None)
    assert [*(tmp_path / "archive").iterdir()] == []


def test_tasks_of_a_killed_driver_are_ended_before_a_resume(tmp_path: Path) -> None:
    archive = created(tmp_path)
    left, own = (f"{LEASE}/detached-{name}.json" for name in ("left", "own"))
    archive.write_line(left, {"number": 7, "valid_seconds": 0.2, "lost": None})
    archive.write_line(own, {"number": 1, "valid_seconds": 900.0, "lost": None})
    before = archive.read(own)
    end_detached_tasks(archive, but=own, spare_seconds=0.05)
    assert archive.read_json(left) == {"number": 8, "valid_seconds": 0.0, "lost": "it was resumed"}
    assert archive.read(own) == before
    end_detached_tasks(archive, but=own)  # they have ended: it does not wait again


def test_a_driver_that_is_alive_keeps_its_run(place: World, tmp_path: Path) -> None:
    archive = created(tmp_path)
    with hold_leases(place.pair, archive.run, archive, detached=True) as held:
        assert held.heartbeat is not None
        archive.write(f"{held.heartbeat.replace('/', '/.')}.0", b"")  # a heartbeat that is half written
        with pytest.raises(errors.LeaseHeld, match="is still going: its driver is alive"):
            end_detached_tasks(archive)
    assert not archive.exists(held.heartbeat), "nothing is left of an orderly end"


def parameters(url: str, **changes: Any) -> dict[str, Any]:
    return {"remote": url, "shared_archive": True, "tasks": 2, "settings": HASTY, **changes}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, str]]:
    with world() as place, connect_server(place.shell(tmp_path / "server")) as (url, _):
        for name, value in {**place.environment, **NO_JAVA}.items():
            monkeypatch.setenv(name, value)
        yield place, url


@pytest.mark.java
@pytest.mark.slow
def test_a_run_selects_deduplicates_and_is_resumed(served: tuple[World, str], tmp_path: Path) -> None:
    place, url = served
    place.strand_many(40)
    request = place.request(tmp_path, **parameters(url))
    chosen = ReplaySelection((), "size < 65536 AND message_id <> 'm0'")
    options = ReplayOptions(empty_seconds=0.1, dedup=DedupMode.MESSAGE_ID, selection=chosen)
    for where, reason in {
        "rand() > 0.5": "not deterministic",
        "hash(*) > 0": "all columns",
        "nonsense": "resolved",
    }.items():
        refused = replace(options, selection=ReplaySelection((), where))
        with pytest.raises(errors.UsageError, match=reason):
            driver.start_run(request, refused, place.queues, lambda _event: None)
    with pytest.raises(errors.UsageError, match=r"does not take spark\.ui\.enabled from a session: .*Cannot modify"):
        driver.start_run(
            replace(request, settings={"spark.ui.enabled": "true"}), options, place.queues, lambda _event: None
        )
    assert place.left() == 40
    result = driver.start_run(request, options, place.queues, lambda _event: None)
    assert (result.proof.archived, result.proof.acknowledged, result.proof.unsent) == (40, 39, 1)
    assert driver.resume_run(request, result.run.id, lambda _event: None).proof.unsent == 1, "it selects as before"
    result = driver.resume_run(request, result.run.id, lambda _event: None, ReplaySelection())
    assert (result.proof.acknowledged, result.proof.balanced) == (40, True)
    place.check_arrived()
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize(
    "packages",
    [("pyspark-client", "pandas<3"), ("pyspark[connect]==3.5.9", "numpy<2", "pandas<3", "pyarrow<22")],
    ids=["pyspark-client", "3.5"],
)
def test_a_smaller_or_older_client_runs_a_replay(packages: tuple[str, ...], tmp_path: Path) -> None:
    """The package pyspark-client has neither Spark nor py4j."""
    python = install(tmp_path, *packages)
    with world(queues=2) as place, connect_server(place.shell(tmp_path)) as (url, _):
        place.strand_many(40)
        words = ["replay", "run", "--archive", str(tmp_path / "archive"), "--shared-archive", "--count", "2"]
        environment = outside({**place.shell(tmp_path), **NO_JAVA})
        command = [python, "-m", "sbpair", *words, "--remote", url, "--output", "json"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        receipt = json.loads(done.stdout)
        assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
        place.check_arrived()


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "phase"), [*(("driver", phase) for phase in ("drain", "plan", "send", "move")), ("server", "send")]
)
def test_a_run_whose_driver_or_server_is_killed_is_resumed(killed: str, phase: str, tmp_path: Path) -> None:
    """The tasks of a killed driver run on, and stop sending by themselves: nothing is sent twice."""
    options = {**OPTIONS, "rate": SLOW_RATE, "mode": "direct" if phase == "move" else "archive"}
    with world(lock_seconds=15) as place, ExitStack() as servers:
        place.strand_many(MESSAGES)
        url, pid = servers.enter_context(connect_server(place.shell(tmp_path)))
        with replay(place, tmp_path, request=parameters(url), options=options) as running:
            running.until(phase, 1 if phase == "move" else 4)
            end(running.process.pid if killed == "driver" else pid)
            assert running.receipt() is None
            assert running.is_in(phase, MESSAGES), "the kill came too late to prove anything"
        if killed == "server":
            url, _ = servers.enter_context(connect_server(place.shell(tmp_path)))
        with replay(place, tmp_path, request=parameters(url), options=options, resume=running.run) as again:
            receipt = again.receipt()
        assert receipt is not None
        nothing_is_lost(place, receipt)
        assert killed == "server" or len(place.ids()) == MESSAGES, "nothing was sent twice"
