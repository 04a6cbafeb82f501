"""Job definitions of managed platforms: complete, valid by published schemas, and free of secrets."""

from __future__ import annotations

import ast
import base64
import json
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.replay.job_definitions import PLATFORMS
from sbpair.replay.secret_references import PRINCIPAL
from tests.cli.test_replay import NAMESPACES, sbpair
from tests.kit.installed import outside
from tests.replay.secret_managers import secret_managers
from tests.replay.test_submit import bare_python
from tests.replay.world import VARIABLES, world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARCHIVE = "s3://bucket/backlog"
ABFSS = "abfss://container@account.dfs.core.windows.net/backlog"
ARCHIVES = {**dict.fromkeys(PLATFORMS, ARCHIVE), "dataproc": "gs://bucket/backlog", "fabric": ABFSS}
DEFINITIONS = {
    "databricks": "databricks.yml",
    "dataproc": "batch.json",
    "emr-serverless": "job-run.json",
    "fabric": "item.json",
    "kubernetes": "job.json",
}
VAULT = {**dict.fromkeys(PLATFORMS, ()), "fabric": ("--vault", "orders-kv")}
FABRIC_CREDENTIALS = """
import json, os, urllib.request
class FabricAnalyticsTokenCredentials:
    def get_token(self, scope):
        assert scope == "https://vault.azure.net/.default", scope
        url = os.environ["IDENTITY_ENDPOINT"] + "?resource=https://vault.azure.net"
        request = urllib.request.Request(url, headers={"X-IDENTITY-HEADER": os.environ["IDENTITY_HEADER"]})
        self.token = json.loads(urllib.request.urlopen(request).read())["access_token"]
        return self
"""
FABRIC_MODELS = """
import json, sys
from microsoft_fabric_api.generated.core.models import CreateItemRequest
from microsoft_fabric_api.generated.sparkjobdefinition.models import RunSparkJobDefinitionRequest
for model, document in zip((CreateItemRequest, RunSparkJobDefinitionRequest), json.load(sys.stdin)):
    found = model.deserialize(document).serialize()
    assert found == document, found
"""
READ = """
from pyspark.sql import SparkSession
import sys
spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("sbpair").load(sys.argv[1]).select("message_id", "body")
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
        done = sbpair(*words, *VAULT[platform], "-o", "json")
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        assert printed["files"] == sorted(each.name for each in (directory / platform).iterdir())
        assert (printed["schema"], printed["secrets"][-2:]) == ("sbpair/replay-job/1", [*VARIABLES])
    return directory


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def definition(jobs: Path, platform: str) -> dict[str, Any]:
    """Return the document, and in place of Fabric's encoded parts their content."""
    document = dict(json.loads((jobs / platform / DEFINITIONS[platform]).read_text()))
    for part in document["definition"]["parts"] if platform == "fabric" else ():
        text = base64.b64decode(part.pop("payload")).decode()
        part["content"] = json.loads(text) if part["path"].endswith(".json") else ast.literal_eval(constants(text))
    return document


def constants(text: str) -> str:
    """Return the environment that Fabric's main program has."""
    return text.partition("ENVIRONMENT = ")[2].partition("\nSETTINGS")[0]


def texts(value: object) -> Iterator[str]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        yield from texts(each) if isinstance(each, dict | list) else str(each).split()


def test_a_job_names_its_secrets_and_has_none(jobs: Path, platform: str) -> None:
    document = definition(jobs, platform)
    encoded = {"sbpair.zip", DEFINITIONS[platform]}
    for text in (
        json.dumps(document),
        *(each.read_text() for each in (jobs / platform).iterdir() if each.name not in encoded),
    ):
        assert "c2VjcmV0" not in text
        assert "SharedAccessKey" not in text
    for name in VARIABLES:
        assert name in json.dumps(document)
        assert name in (jobs / platform / "README.md").read_text()
    reference = {
        "databricks": "{{{{secrets/sbpair-replay/{}}}}}",
        "dataproc": "gsm://{}",
        "emr-serverless": "EMR.secret@{}",
        "fabric": "https://orders-kv.vault.azure.net/secrets/{}",
        "kubernetes": "{}",
    }
    names = [name.replace("_", "-") if platform == "fabric" else name for name in VARIABLES]
    assert {reference[platform].format(name) for name in names} <= set(texts(document))


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
    assert ("CONNECTION_STRING.txt" in readme) == ("Each `NAME.txt` below has the value" in readme)
    assert ("must be deleted before it is submitted again" in readme) == (platform == "kubernetes")
    assert ("databricks bundle deploy                   # again after each change" in readme) == (
        platform == "databricks"
    )


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
        (["--for", "synapse"], "Synapse reads secrets through the driver's Java only"),
        (["--for", "kubernetes"], "--for needs --archive"),
        (["--for", "fabric"], "such as abfss://container@account.dfs.core.windows.net/backlog"),
        (["--for", "fabric", "--archive", ABFSS], "--for fabric needs --vault"),
        (
            ["--for", "fabric", "--archive", ABFSS, "--vault", "https://kv"],
            "'https://kv' is not the name of a Key Vault",
        ),
        (["--for", "dataproc", "--archive", "gs://b/x", "--vault", "kv"], "--vault goes with --for fabric"),
        (["--vault", "kv"], "--vault goes with --for"),
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
    text = (jobs / "dataproc" / "batch.json").read_text()
    program = "import sys; from google.cloud.dataproc_v1.types import Batch; Batch.from_json(sys.stdin.read())"
    check = checker(tmp_path, "google-cloud-dataproc", program)
    assert check(text) == ""
    assert "no field named" in check(text.replace("pythonFileUris", "pyFiles"))


@pytest.mark.slow
def test_the_fabric_item_and_run_are_valid_by_the_published_models(jobs: Path, tmp_path: Path) -> None:
    """A model keeps what it knows, and no more."""
    check = checker(tmp_path, "microsoft-fabric-api", FABRIC_MODELS)
    item, run = ((jobs / "fabric" / name).read_text() for name in ("item.json", "run.json"))
    assert check(f"[{item}, {run}]") == ""
    assert check(f"[{item}, {run.replace('environmentId', 'environment')}]")


def checker(directory: Path, package: str, program: str) -> Callable[[str], str]:
    """Install a package. Return a function that runs the program with a text, and returns its errors."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory), package]
    subprocess.run(install, check=True, capture_output=True)

    def check(text: str) -> str:
        environment = outside({}) | {"PYTHONPATH": str(directory)}
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, input=text, env=environment, stderr=subprocess.PIPE, text=True, check=False
        ).stderr

    return check


def submit(python: Path, words: list[str], environment: dict[str, str], package: Path | None = None, **own: str) -> str:
    """Run a file by spark-submit with a Python that has Spark's packages alone. Return its output."""
    [pyspark] = python.parents[1].glob("lib/python3*/site-packages/pyspark")
    own |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_HOME": str(pyspark)}
    files = ["--py-files", str(package)] if package else []
    done = subprocess.run(
        [str(pyspark / "bin" / "spark-submit"), "--master", "local[2,4]", *files, *words],
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
            submit(python, [str(folder / "main.py"), *words, "--shared-archive"], environment, package)
        )
        assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert (place.left(), place.altered()) == (0, [])
        if find_spec("pyspark.sql.datasource") is not None:  # Spark 3.5 does not have it
            (tmp_path / "read.py").write_text(READ)
            where = (str(archive / receipt["run"]), place.destinations[0], str(tmp_path / "ledger"))
            submit(python, [str(tmp_path / "read.py"), *where], environment, package, PYTHONPATH=str(package))
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
        state = {"XDG_STATE_HOME": str(tmp_path / "state")}
        environment = {**place.shell(tmp_path), **named, **state, **managers.environment}
        main = [*conf, str(folder / "main.py"), *words, "--shared-archive"]
        receipt = json.loads(submit(python, main, environment, folder / "sbpair.zip"))
        assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert (place.left(), place.altered()) == (0, [])
        assert len(managers.requests) > len(VARIABLES), "workers fetch them too"
        keys = [
            value.rpartition("SharedAccessKey=")[2].partition(";")[0].encode() for value in managers.secrets.values()
        ]
    for path in (each for part in ("events", "archive") for each in (tmp_path / part).rglob("*") if each.is_file()):
        assert not any(key in path.read_bytes() for key in keys), path


@pytest.mark.java
@pytest.mark.slow
def test_the_fabric_job_reads_its_secrets_from_key_vault(jobs: Path, tmp_path: Path) -> None:
    """Fabric's own package of tokens runs there alone: another one with its interface takes its place."""
    [description, _] = definition(jobs, "fabric")["definition"]["parts"]
    words = description["content"]["commandLineArguments"].split()
    here = {ABFSS: str(tmp_path / "archive"), "10": "2"}
    python, package = bare_python(tmp_path / "bare"), jobs / "fabric" / "sbpair.zip"
    [site] = python.parents[1].glob("lib/python3*/site-packages")
    module = site / "fabric" / "analytics" / "environment" / "credentials.py"
    module.parent.mkdir(parents=True)
    module.write_text(FABRIC_CREDENTIALS)
    main = tmp_path / "main.py"
    text = (jobs / "fabric" / "main.py").read_text().replace(f"{ABFSS}-job/sbpair.zip", str(package))
    main.write_text(text.replace("/tmp/sbpair", str(tmp_path / "state")))  # noqa: S108  not the one of a container
    with world(queues=2) as place:
        principal = dict.fromkeys(PRINCIPAL, "x")
        secrets = {name.replace("_", "-"): value for name, value in {**place.environment, **principal}.items()}
        with place.running.entered(secret_managers(secrets)) as managers:
            place.strand_many(40)
            environment = {name: value for name, value in place.shell(tmp_path).items() if name not in VARIABLES}
            environment = {**environment, **managers.environment}
            output = submit(
                python, [str(main), *(here.get(word, word) for word in words), "--shared-archive"], environment
            )
            receipt = json.loads(output)
            assert (receipt["acknowledged"], receipt["balanced"]) == (40, True)
            assert sorted(place.ids()) == sorted(place.sent)
            assert (place.left(), place.altered()) == (0, [])
            assert {request.partition("?")[0].rpartition("/")[2] for request in managers.requests} == secrets.keys()
            assert len(managers.requests) > len(secrets), "workers fetch them too"
