"""Job definitions of managed platforms: complete, valid by published schemas, and free of secrets."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.replay.job_definitions import PLATFORMS
from tests.cli.test_replay import NAMESPACES, sbpair
from tests.replay.test_submit import bare_python, outside
from tests.replay.world import VARIABLES, world

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHIVE = "s3://bucket/backlog"
DEFINITIONS = {"databricks": "databricks.yml", "emr-serverless": "job-run.json", "kubernetes": "job.json"}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the job of each platform into its directory."""
    directory = tmp_path_factory.mktemp("jobs")
    for platform in PLATFORMS:
        done = sbpair("package", str(directory / platform), "--for", platform, "--archive", f"{ARCHIVE}/", "-o", "json")
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
        "emr-serverless": "EMR.secret@{}",
        "kubernetes": "{}",
    }
    assert {reference[platform].format(name) for name in VARIABLES} <= set(texts(document))


def test_a_job_has_all_that_the_archive_and_the_pair_are(jobs: Path, platform: str) -> None:
    words = list(texts(definition(jobs, platform)))
    start = words.index("run") - 1
    assert words[start : start + 6] == ["replay", "run", "--archive", ARCHIVE, "--master", "platform"]
    assert {"contoso", "contoso-dr"} <= {word.rpartition("=")[2] for word in words}
    with zipfile.ZipFile(jobs / platform / "sbpair.zip") as package:
        assert "sbpair/__init__.py" in package.namelist()
    assert "pyarrow" in (jobs / platform / "requirements.txt").read_text()
    readme = (jobs / platform / "README.md").read_text()
    assert len(re.findall("# submit|# watch|# end at once|start-job-run", readme)) >= 3
    assert f"sbpair replay stop RUN --archive {ARCHIVE}" in readme


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
        (["--for", "synapse", "--archive", ARCHIVE], "Synapse has no secrets for executors"),
        (["--for", "kubernetes"], "--for needs --archive"),
        (["--archive", ARCHIVE], "--archive goes with --for"),
        (["--for", "kubernetes", "--archive", "/mnt/archive"], "Kubernetes does not reach /mnt/archive"),
        (["--for", "emr-serverless", "--archive", "gs://bucket/x"], "EMR Serverless does not reach gs://bucket/x"),
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


@pytest.mark.java
@pytest.mark.slow
def test_the_job_runs_by_spark_submit_where_nothing_else_is(jobs: Path, tmp_path: Path) -> None:
    """Use the words of the definition, with another archive and count."""
    place_of = jobs / "emr-serverless"
    submit = definition(jobs, "emr-serverless")["jobDriver"]["sparkSubmit"]
    here = {ARCHIVE: str(tmp_path / "archive"), "10": "2"}
    words = [here.get(word, word) for word in submit["entryPointArguments"]]
    python = bare_python(tmp_path / "bare")
    [pyspark] = (tmp_path / "bare").glob("lib/python3*/site-packages/pyspark")
    with world(queues=2) as place:
        place.strand_many(40)
        own = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_HOME": str(pyspark)}
        done = subprocess.run(
            [
                str(pyspark / "bin" / "spark-submit"),
                *("--master", "local[2,4]", "--py-files", str(place_of / "sbpair.zip"), str(place_of / "main.py")),
                *(*words, "--shared-archive"),
            ],
            env={**outside(place.shell(tmp_path)), **own},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
        receipt = json.loads(done.stdout)
        assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert (place.left(), place.altered()) == (0, [])
