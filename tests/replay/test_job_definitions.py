"""Job definitions of managed platforms: complete, valid by published schemas, and free of secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.sql as pyspark_sql
import pytest

from sbpair.replay.job_definitions import PLATFORMS
from tests.cli.test_replay import NAMESPACES, sbpair
from tests.replay.secret_managers import secret_managers
from tests.replay.test_submit import bare_python, outside
from tests.replay.world import VARIABLES, world

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHIVE = "s3://bucket/backlog"
ARCHIVES = {**dict.fromkeys(PLATFORMS, ARCHIVE), "dataproc": "gs://bucket/backlog"}
DEFINITIONS = {
    "databricks": "databricks.yml",
    "dataproc": "batch.json",
    "emr-serverless": "job-run.json",
    "kubernetes": "job.json",
}
READ = """
from pyspark.sql import SparkSession
import sys
spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("sbpair").load(sys.argv[1])
assert rows.count() == 40, rows.count()
rows.selectExpr("concat('again-', message_id) AS message_id", "body").write.format("sbpair").option(
    "destination", sys.argv[2]).option("ledger", sys.argv[3]).mode("append").save()
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the job of each platform into its directory."""
    directory = tmp_path_factory.mktemp("jobs")
    for platform in PLATFORMS:
        words = ("package", str(directory / platform), "--for", platform, "--archive", f"{ARCHIVES[platform]}/")
        done = sbpair(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        assert printed["files"] == sorted(each.name for each in (directory / platform).iterdir())
        assert (printed["schema"], printed["secrets"]) == ("sbpair/replay-job/1", [*VARIABLES])
    return directory


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def definition(jobs: Path, platform: str) -> dict[str, Any]:
    return dict(json.loads((jobs / platform / DEFINITIONS[platform]).read_text()))


def texts(value: object) -> Iterator[str]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        yield from texts(each) if isinstance(each, dict | list) else [str(each)]


def test_a_job_names_its_secrets_and_has_none(jobs: Path, platform: str) -> None:
    for path in (jobs / platform).iterdir():
        if path.suffix != ".zip":
            assert "c2VjcmV0" not in path.read_text()
            assert "SharedAccessKey" not in path.read_text()
    document = definition(jobs, platform)
    for name in VARIABLES:
        assert name in json.dumps(document)
        assert name in (jobs / platform / "README.md").read_text()
    reference = {
        "databricks": "{{{{secrets/sbpair-replay/{}}}}}",
        "dataproc": "gsm://{}",
        "emr-serverless": "EMR.secret@{}",
        "kubernetes": "{}",
    }
    assert {reference[platform].format(name) for name in VARIABLES} <= set(texts(document))


def test_a_job_has_all_that_the_archive_and_the_pair_are(jobs: Path, platform: str) -> None:
    words = list(texts(definition(jobs, platform)))
    start = words.index("run") - 1
    assert words[start : start + 6] == ["replay", "run", "--archive", ARCHIVES[platform], "--master", "platform"]
    assert {"contoso", "contoso-dr"} <= {word.rpartition("=")[2] for word in words}
    with zipfile.ZipFile(jobs / platform / "sbpair.zip") as package:
        assert {"sbpair/__init__.py", "pyspark_sbpair.py"} <= {*package.namelist()}
    assert "pyarrow" in (jobs / platform / "requirements.txt").read_text()
    readme = (jobs / platform / "README.md").read_text()
    assert len(re.findall("# submit|# watch|# end at once|start-job-run", readme)) >= 3
    assert f"sbpair replay stop RUN --archive {ARCHIVES[platform]}" in readme


def test_the_emr_job_is_valid_by_the_service_model(jobs: Path) -> None:
    loaders = pytest.importorskip("botocore.loaders", reason="no model of EMR Serverless: pip install botocore")
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    model = ServiceModel(loaders.Loader().load_service_model("emr-serverless", "service-2"))
    given = {"applicationId": "x", "clientToken": "x", "executionRoleArn": "arn:aws:iam::123456789012:role/replay"}
    shape = model.operation_model("StartJobRun").input_shape
    report = ParamValidator().validate({**given, **definition(jobs, "emr-serverless")}, shape)
    assert report.generate_report() == ""


def test_the_kubernetes_objects_are_valid_by_the_published_schema(jobs: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    for each in definition(jobs, "kubernetes")["items"]:
        validate.validate(each, "1.30", strict=True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--for", "hadoop", "--archive", ARCHIVE], "--for: 'hadoop' is not a platform"),
        (["--for", "synapse", "--archive", ARCHIVE], "Synapse reads secrets through the driver's Java only"),
        (["--for", "kubernetes"], "--for needs --archive"),
        (["--archive", ARCHIVE], "--archive goes with --for"),
        (["--for", "kubernetes", "--archive", "/mnt/archive"], "Kubernetes does not reach /mnt/archive"),
        (["--for", "emr-serverless", "--archive", "gs://bucket/x"], "EMR Serverless does not reach gs://bucket/x"),
        (["--for", "dataproc", "--archive", ARCHIVE], "Dataproc Serverless does not reach s3://bucket/backlog"),
        (["--for", "dataproc", "--archive", "gs://bucket/x", "--name", "a" * 53], "does not allow 'aaa"),
        (["--for", "emr-serverless", "--archive", "s3://bucket"], "EMR Serverless does not reach s3://bucket"),
        (["--for", "databricks", "--archive", "s3://key:c2VjcmV0@bucket/x"], "looks like a URL with a password"),
        (
            ["--for", "databricks", "--archive", f"{ARCHIVE}?secret_key=c2VjcmV0"],
            "--archive has parameters or a password",
        ),
        (["--for", "kubernetes", "--archive", ARCHIVE, "--name", "My_Job"], "Kubernetes does not allow 'My_Job'"),
    ],
)
def test_a_job_that_would_not_run_is_refused(words: list[str], reason: str, tmp_path: Path) -> None:
    done = sbpair("package", str(tmp_path / "job"), *words)
    assert (done.returncode, reason in done.stderr, "hint: " in done.stderr) == (2, True, True), done.stderr
    assert "c2VjcmV0" not in done.stderr
    assert not (tmp_path / "job").exists()


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        done = sbpair("package", str(path), "--for", "kubernetes", "--archive", ARCHIVE)
        assert (done.returncode, "exists and is not an empty directory" in done.stderr) == (2, True)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_pair_of_identities_needs_no_secret(tmp_path: Path) -> None:
    named = {"SBPAIR_PRIMARY_NAMESPACE": "contoso", "SBPAIR_SECONDARY_NAMESPACE": "contoso-dr"}
    without = dict.fromkeys(NAMESPACES, "")
    words = ("package", str(tmp_path / "job"), "--for", "kubernetes", "--archive", ARCHIVE, "-o", "json")
    done = sbpair(*words, **without, **named)
    assert (done.returncode, json.loads(done.stdout)["secrets"]) == (0, [])
    text = (tmp_path / "job" / "job.json").read_text()
    assert "contoso.servicebus.windows.net" in text
    assert "secretKeyRef" not in text


@pytest.mark.slow
def test_the_dataproc_batch_is_valid_by_the_published_messages(jobs: Path, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), "google-cloud-dataproc"]
    subprocess.run(install, check=True, capture_output=True)
    program = "import sys; from google.cloud.dataproc_v1.types import Batch; Batch.from_json(sys.stdin.read())"
    text = (jobs / "dataproc" / "batch.json").read_text()
    for batch, message in ((text, ""), (text.replace("pythonFileUris", "pyFiles"), "no field named")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=batch,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0, message in done.stderr) == (not message, True), done.stderr


def submit(python: Path, package: Path, words: list[str], environment: dict[str, str]) -> str:
    """Run a file by spark-submit with a Python that has Spark's packages alone. Return its output."""
    [pyspark] = python.parents[1].glob("lib/python3*/site-packages/pyspark")
    own = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_HOME": str(pyspark)}
    done = subprocess.run(
        [str(pyspark / "bin" / "spark-submit"), "--master", "local[2,4]", "--py-files", str(package), *words],
        env={**outside(environment), **own},
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.java
@pytest.mark.slow
def test_the_job_runs_by_spark_submit_where_nothing_else_is(jobs: Path, tmp_path: Path) -> None:
    """Use the words of the definition, with another archive and count. Then read the archive with Spark itself."""
    folder = jobs / "emr-serverless"
    job = definition(jobs, "emr-serverless")["jobDriver"]["sparkSubmit"]
    archive = tmp_path / "archive"
    here = {ARCHIVE: str(archive), "10": "2"}
    words = [here.get(word, word) for word in job["entryPointArguments"]]
    python, package = bare_python(tmp_path / "bare"), folder / "sbpair.zip"
    with world(queues=2) as place:
        place.strand_many(40)
        environment = place.shell(tmp_path)
        receipt = json.loads(
            submit(python, package, [str(folder / "main.py"), *words, "--shared-archive"], environment)
        )
        assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert (place.left(), place.altered()) == (0, [])
        if hasattr(pyspark_sql, "datasource"):  # Spark 3.5 has no Python data sources
            (tmp_path / "read.py").write_text(READ)
            where = (str(archive / receipt["run"]), place.destinations[0], str(tmp_path / "ledger"))
            submit(python, package, [str(tmp_path / "read.py"), *where], environment)
            assert len(place.ids()) == 80


@pytest.mark.java
@pytest.mark.slow
def test_driver_and_workers_fetch_the_secrets_that_a_job_names(jobs: Path, tmp_path: Path) -> None:
    """Use the words and settings of the definition. Nobody but Secret Manager has the keys."""
    folder, batch = jobs / "dataproc", definition(jobs, "dataproc")
    here = {ARCHIVES["dataproc"]: str(tmp_path / "archive"), "10": "2"}
    words = [here.get(word, word) for word in batch["pysparkBatch"]["args"]]
    properties = batch["runtimeConfig"]["properties"]
    head = "spark.dataproc.driverEnv."
    named = {name.removeprefix(head): value for name, value in properties.items() if name.startswith(head)}
    settings = {**properties, "spark.eventLog.enabled": "true", "spark.eventLog.dir": str(tmp_path / "events")}
    conf = [word for name, value in settings.items() if head not in name for word in ("--conf", f"{name}={value}")]
    (tmp_path / "events").mkdir()
    python = bare_python(tmp_path / "bare")
    with world(queues=2) as place, place.running.entered(secret_managers(dict(place.environment))) as managers:
        place.strand_many(40)
        environment = {**place.shell(tmp_path), **named, **managers.environment}
        main = [*conf, str(folder / "main.py"), *words, "--shared-archive"]
        receipt = json.loads(submit(python, folder / "sbpair.zip", main, environment))
        assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert (place.left(), place.altered()) == (0, [])
        assert len(managers.requests) > len(VARIABLES), "workers fetch them too"
        keys = [
            value.rpartition("SharedAccessKey=")[2].partition(";")[0].encode() for value in managers.secrets.values()
        ]
    for path in (each for part in ("events", "archive") for each in (tmp_path / part).rglob("*") if each.is_file()):
        assert not any(key in path.read_bytes() for key in keys), path
